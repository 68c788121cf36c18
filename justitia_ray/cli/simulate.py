"""`justitia simulate`: run a workload under several policies on modelled replicas."""

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from justitia_ray.cli.text_table import format_cell, text_table
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import (
    LAB_POLICIES,
    POLICIES,
    find_policy,
    parse_options,
    policy_path,
)
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.training import check_seed
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost, load_profile
from justitia_ray.sim.predictions import LEARNED, parse_noise, predictions_of
from justitia_ray.sim.recognition import APPLICATION, CONVERSATION, WAYS, count_recognised
from justitia_ray.sim.result_files import check_writable, draw_figures, write_results
from justitia_ray.sim.results import RunResult, Summary
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import read_workload
from justitia_ray.yaml_text import read_yaml

_EXACT_UP_TO = 4
"""Up to this number of simulated replicas, each reports after every iteration; more report at
intervals.
"""
_MOST_REPLICAS = 10_000
_LATE_S = 2.0
_BAR_AFTER_S = 2.0


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="run a workload under policies, on modelled replicas",
        description=(
            "Run a workload file under one policy after another, with the service's own scheduler"
            " and modelled replicas. The same arguments give the same results. Without"
            " --engine-profile, all iterations take the same time and overflow is swapped out."
        ),
        epilog=f"policies: {', '.join((*POLICIES, *LAB_POLICIES))}, or the import path of your own",
    )
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--policy", action="append", required=True, metavar="NAME", help="policy; repeatable"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory for the results"
    )
    parser.add_argument(
        "--kv-tokens",
        type=int,
        metavar="M",
        help="KV memory of a replica; required without a profile",
    )
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="replicas (default 1)")
    parser.add_argument(
        "--iteration-s", type=float, metavar="S", help="seconds of an iteration (default 0.03)"
    )
    parser.add_argument(
        "--prefill-s-per-token", type=float, metavar="S", help="added seconds (default 0)"
    )
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="sequences of a replica (default 256)"
    )
    parser.add_argument("--clock", choices=["served", "nominal"], help="clock (default served)")
    parser.add_argument(
        "--prediction",
        default="oracle",
        help="oracle (default), noisy:λ (factors from 1/λ to λ), or learned (as in the service)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="for learned: models to predict with, untrained further (default: train in the run)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of noise and trainings (default 0)"
    )
    parser.add_argument(
        "--engine-profile",
        metavar="NAME_OR_FILE",
        help="profile of a calibrated engine: its M and rules",
    )
    parser.add_argument(
        "--admission", choices=sorted(ADMISSIONS), help="default: prompt, or the profile's"
    )
    parser.add_argument(
        "--recognised",
        choices=WAYS,
        default=APPLICATION,
        help=(
            "unit that the scheduler treats as one application: the workload's (default),"
            " a conversation, or each inference; results are those of the workload's applications"
        ),
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="POLICY.OPTION=VALUE",
        help="option of a policy; repeatable",
    )
    parser.add_argument(
        "--report-interval-s",
        type=float,
        metavar="S",
        help=(
            "longest delay of a replica's reports; 0 is exact, and the default for up to"
            f" {_EXACT_UP_TO} replicas; for more it is {_LATE_S:g}"
        ),
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Simulate a workload under each policy, write the results and print a summary.

    Raises:
        ConfigError: If an option or the workload is wrong; nothing is written then.
    """
    engine = _engine_of(options)
    _check_range("--replicas", options.replicas, least=1, most=_MOST_REPLICAS)
    check_seed(options.seed)
    interval_s = options.report_interval_s
    if interval_s is None:
        interval_s = 0.0 if options.replicas <= _EXACT_UP_TO else _LATE_S
    _check_range("--report-interval-s", interval_s, least=0)
    if options.models is not None and options.prediction != LEARNED:
        raise ConfigError(f"--models needs --prediction {LEARNED}, got {options.prediction!r}")
    if options.prediction != LEARNED:
        parse_noise(options.prediction)
    settings = [
        RunSettings(
            engine,
            policy,
            policy_options,
            options.replicas,
            options.prediction,
            options.seed,
            interval_s,
            models_dir=None if options.models is None else str(options.models),
            recognised=options.recognised,
        )
        for policy, policy_options in _policies(options, engine).items()
    ]
    predictions_of(settings[0])
    check_writable(options.out)
    results: dict[str, RunResult] = {}
    with _without_garbage_collection():
        applications = read_workload(options.workload)
        for setting in settings:
            bar = _ProgressBar(setting.policy, len(applications))
            results[setting.policy] = simulate(applications, setting, bar.show)
            bar.clear()
    about: dict[str, Any] = {
        "command": "simulate",
        "workload": str(options.workload),
        "seed": options.seed,
        "settings": {setting.policy: asdict(setting) for setting in settings},
    }
    if options.recognised == CONVERSATION:
        recognised = count_recognised(applications)
        about["recognised"] = {name: asdict(of_class) for name, of_class in recognised.items()}
    summary = write_results(options.out, results, about)
    print(_summary_table(summary))
    if options.recognised == CONVERSATION:
        calls, following, put = (
            sum(counts) for counts in zip(*map(astuple, recognised.values()), strict=True)
        )
        print(f"Put with an earlier call: {put:,} of {calls:,}, {following:,} of which follow one")
    no_figures = draw_figures(options.out, results)
    print(f"Results: {options.out}" + (f" (no figures: {no_figures})" if no_figures else ""))
    return 0


def _engine_of(options: argparse.Namespace) -> EngineProfile:
    if options.engine_profile is None:
        if options.kv_tokens is None:
            raise ConfigError("--kv-tokens must be given, or an --engine-profile that says it")
        engine = EngineProfile(
            options.kv_tokens,
            iteration=IterationCost(
                0.03 if options.iteration_s is None else options.iteration_s,
                per_prefill_token_s=options.prefill_s_per_token or 0.0,
            ),
        )
    else:
        for name in ("iteration_s", "prefill_s_per_token"):
            if getattr(options, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} must not be given with --engine-profile, which says it")
        engine = load_profile(options.engine_profile)
    for name in ("kv_tokens", "max_num_seqs", "admission"):
        value = getattr(options, name)
        if value is not None:
            engine = replace(engine, **{name: value})
    _check_range("--kv-tokens", engine.kv_tokens, least=1)
    _check_range("--max-num-seqs", engine.max_num_seqs, least=1)
    _check_range("--iteration-s", engine.iteration.base_s, least=0)
    if not engine.iteration.base_s and options.engine_profile is None:
        raise ConfigError("--iteration-s must be a number > 0, got 0")
    _check_range("--prefill-s-per-token", engine.iteration.per_prefill_token_s, least=0)
    return engine


def _policies(options: argparse.Namespace, engine: EngineProfile) -> dict[str, dict[str, object]]:
    """Return the validated options of each policy, in the order of the command line."""
    chosen: dict[str, dict[str, object]] = {}
    for policy in options.policy:
        find_policy(policy_path(policy))
        chosen[policy] = {}
        if options.clock is not None:
            chosen[policy]["clock"] = options.clock
    for text in options.set:
        name, separator, value = text.partition("=")
        policy, dot, option = name.rpartition(".")
        if not (separator and dot and option):
            raise ConfigError(f"--set must be POLICY.OPTION=VALUE, got {text!r}")
        if policy not in chosen:
            raise ConfigError(
                f"--set {text}: {policy!r} is not one of the policies that are run:"
                f" {', '.join(chosen)}"
            )
        chosen[policy][option] = read_yaml(value, f"--set {text}")
    for policy, policy_options in chosen.items():
        if policy_options.get("clock") == "nominal":
            iteration_s = engine.iteration.base_s / engine.speedup
            policy_options.setdefault("nominal_iteration_s", iteration_s)
        try:
            parse_options(policy_path(policy), policy_options)
        except ConfigError as error:
            raise ConfigError(f"{policy}: {error}") from error
    return chosen


def _check_range(name: str, value: float, *, least: float, most: float | None = None) -> None:
    if not least <= value < float("inf") or (most is not None and value > most):
        allowed = f">= {least:g}" if most is None else f"from {least:g} to {most:,}"
        raise ConfigError(f"{name} must be a number {allowed}, got {value:g}")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, because its scans of millions of objects are slow."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _ProgressBar:
    """Progress bar on a terminal, shown only if a run takes long."""

    def __init__(self, policy: str, count: int) -> None:
        self._policy, self._count = policy, count
        self._show_from = time.monotonic() + _BAR_AFTER_S
        self._shown = False

    def show(self, ended: int) -> None:
        """Show how many applications have ended."""
        if sys.stderr.isatty() and time.monotonic() >= self._show_from:
            filled = 30 * ended // self._count
            bar = "#" * filled + "." * (30 - filled)
            line = f"\r{self._policy:<12} [{bar}] {ended:,} of {self._count:,} applications"
            print(line, end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


_COLUMNS: dict[str, tuple[str, str]] = {
    "mean_jct_s": ("mean JCT s", ".1f"),
    "p90_jct_s": ("p90", ".1f"),
    "max_jct_s": ("max", ".1f"),
    "makespan_s": ("makespan s", ".1f"),
    "kv_utilization": ("KV used", ".0%"),
    "no_later_than_vtc": ("no later than vtc", ".1%"),
    "worst_ratio_to_vtc": ("worst ratio", ".2f"),
    "max_gps_lag_s": ("GPS lag s", ".1f"),
    "delay_bound_s": ("bound s", ".1f"),
    "preemptions": ("preemptions", ",d"),
}


def _summary_table(summary: dict[str, Summary]) -> str:
    rows = [["policy", *(head for head, _ in _COLUMNS.values())]]
    for policy, figures in summary.items():
        rows.append([policy, *(format_cell(figures[n], form) for n, (_, form) in _COLUMNS.items())])
    return text_table(rows, numbers_from=1)
