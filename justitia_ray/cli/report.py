"""`justitia report`: simulate the papers' evaluations and others; write one HTML page."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.build import FIRST_SEED, PAGE, RunProgress, build_report
from justitia_ray.lab.report.experiment import Scale
from justitia_ray.lab.report.experiments import EXPERIMENTS
from justitia_ray.lab.report.experiments.live import live_experiments
from justitia_ray.sim.suites.inputs import data_directory

SEEDS, QUICK_SEEDS = 5, 2
QUICK_APPLICATIONS = 60
_LINE_EVERY_S = 10.0
"""Seconds between progress lines if stderr is not a terminal."""


def add_subcommand(commands: Any) -> None:
    names = ", ".join(experiment.name for experiment in EXPERIMENTS)
    parser = commands.add_parser(
        "report",
        help="simulate the papers' experiments and write a page about them",
        description="Simulate the papers' experiments and this project's own, and write "
        "report.html, results.jsonl and figures/ into a directory.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="directory of recorded runs, inputs and arrivals (default: JUSTITIA_DATA)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write")
    parser.add_argument(
        "--quick", action="store_true", help="fewer seeds, fewer and smaller runs: a minute or so"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=f"number of seeds (default {SEEDS}, quick {QUICK_SEEDS})",
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        default=FIRST_SEED,
        metavar="N",
        help=f"first seed (default {FIRST_SEED})",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"run only this experiment; repeatable. One of {names}",
    )
    parser.add_argument(
        "--live",
        type=Path,
        metavar="DIR",
        help="output directory of scripts/bench_live, to show on the page as well",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: all cores)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the report; return 1 if an experiment failed.

    Raises:
        ConfigError: If an option is wrong, or the directory cannot be written.
    """
    seeds = _check_at_least_one("--seeds", options.seeds)
    workers = _check_at_least_one("--workers", options.workers) or 1
    data_dir = data_directory(options.data, required=True)
    experiments = EXPERIMENTS
    if options.live is not None:
        experiments = (*live_experiments(options.live), *EXPERIMENTS)
    if options.only:
        known = {experiment.name: experiment for experiment in experiments}
        for name in options.only:
            if name not in known:
                raise ConfigError(f"--only {name}: must be one of {', '.join(known)}")
        experiments = tuple(known[name] for name in dict.fromkeys(options.only))
    count = seeds or (QUICK_SEEDS if options.quick else SEEDS)
    first = options.first_seed
    if first < 0:
        raise ConfigError(f"--first-seed must be a whole number of at least 0, got {first}")
    scale = Scale(tuple(range(first, first + count)), data_dir.resolve())
    if options.quick:
        scale = Scale(scale.seeds, scale.data_dir, True, QUICK_APPLICATIONS)
    started = time.perf_counter()
    sections = build_report(experiments, scale, options.out, workers, _ProgressLines())
    failed = [section for section in sections if section.failure is not None]
    for section in failed:
        print(f"{section.experiment.name} failed: {section.failure}", file=sys.stderr)
    print(
        f"{options.out / PAGE}: {len(sections) - len(failed)} of {len(sections)} experiments, "
        f"{time.perf_counter() - started:.0f} s"
    )
    return 1 if failed else 0


def _check_at_least_one(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value}")
    return value


class _ProgressLines:
    """Prints progress to stderr: in place on a terminal, otherwise a line every ten seconds."""

    def __init__(self) -> None:
        self._printed_at = 0.0

    def __call__(self, progress: RunProgress) -> None:
        is_last = progress.done == progress.total
        if sys.stderr.isatty():
            end = "\n" if is_last else ""
            print(f"\r\033[Kreport: {progress}", end=end, file=sys.stderr, flush=True)
        elif is_last or progress.elapsed_s - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = progress.elapsed_s
            print(f"report: {progress}", file=sys.stderr, flush=True)
