"""Measure the application cost models: errors, spread, time, learning curve, drift."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.training import KINDS, load_packages
from justitia_ray.sim.sessions.profiles import PROFILES
from justitia_ray.sim.sessions.trace import SESSIONS_FILE, read_sessions
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.sim.suites.recorded_samples import load_samples
from scripts.bench.machine import machine
from scripts.bench.predicted_stages import measure_stages, stage_table
from scripts.bench.predictor import (
    APART,
    OURS,
    PAPER,
    SEVEN,
    Data,
    Latency,
    Trial,
    coverage_table,
    curve_table,
    drift_line,
    error_table,
    latency_table,
    measure_curve,
    measure_drift,
    measure_errors,
    measure_latency,
    measure_s3,
    verdicts,
)
from scripts.bench.session_costs import measure_sessions, session_table

DRIFTS = (("KBQAV", "CC"), ("EV", "PE"))
"""Pairs of classes; the drift test replaces the first by the second half-way."""
CURVE_SETS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        data_dir = data_directory(options.data, required=True)
        if options.sessions:
            return _print_sessions(data_dir, options)
        data = {name: load_samples(data_dir, name) for name in (*SEVEN, APART)}
        load_packages()
    except ConfigError as error:
        print(f"bench_predictor: {error}", file=sys.stderr)
        return 2
    about = machine(("numpy", "scikit-learn", "torch"))
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    if options.stages:
        print(f"{options.sets} random splits from seed {options.seed}: 80 % learned, the rest told")
    else:
        print(
            f"{options.sets} random training sets from seed {options.seed}: 100 samples, or 80 % of"
            f" a class that has fewer than 125; tested on the rest. {PAPER}.",
            flush=True,
        )
    load_before = os.getloadavg()
    if options.stages:
        errors = measure_stages(data_dir, list(data), options.sets, options.seed)
        print(f"\nStages of runs that the table has not seen\n\n{stage_table(errors)}")
        found: dict[str, Any] = {"stages": [asdict(one) for one in errors]}
    else:
        found = measure(data, options)
    print(f"\nMachine load (1 min) {load_before[0]:.1f} before, {os.getloadavg()[0]:.1f} after.")
    if options.json is not None:
        results = {
            "justitia_ray": __version__,
            "machine": about,
            "seed": options.seed,
            "sets": options.sets,
            **found,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"JSON: {options.json}")
    return 0


def _print_sessions(data_dir: Path, options: argparse.Namespace) -> int:
    """Measure and print predictions of the costs of recorded sessions; return 0.

    Raises:
        ConfigError: If the data directory lacks them.
    """
    sessions = read_sessions(data_dir / SESSIONS_FILE)
    print(f"{options.sets} random halves of {len(sessions)} sessions from seed {options.seed}")
    found = [
        measure_sessions(sessions, profile, options.sets, options.seed)
        for profile in PROFILES.values()
    ]
    print(
        "\nExpected computed prompt tokens (u), and rank correlation of predicted and true costs\n"
        f"\n{session_table(found)}"
    )
    if options.json is not None:
        results = {"seed": options.seed, "sets": options.sets, "sessions": list(map(asdict, found))}
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(data: Data, options: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - started:4.0f} s  {line}", flush=True)

    kinds = (OURS,) if options.spread else KINDS
    trials, models = measure_errors(data, kinds, options.sets, options.seed, say)
    latencies = [measure_latency(data, models, kind) for kind in kinds]
    if not (options.quick or options.spread):
        trials += measure_s3(data, options.sets, options.seed, say)
    print(f"\nMean relative error\n\n{error_table(trials, 'mean_error')}")
    print(f"\nMedian relative error\n\n{error_table(trials, 'median_error')}")
    if not (options.quick or options.spread):
        print("\ns3: DistilBERT's form, tiny and with random weights; pretrained ones not at hand.")
    print(f"\n{OURS}: spread, training\n\n{coverage_table(trials)}")
    print(f"\nMilliseconds a prediction, features included\n\n{latency_table(latencies)}\n")
    if options.spread:
        return _print_verdicts(trials, latencies)
    curve = measure_curve(data, min(options.sets, CURVE_SETS), options.seed, say)
    print(f"\nMean relative error of {OURS} by training samples\n\n{curve_table(curve)}\n")
    drifts = {
        f"{first} to {then}": measure_drift(data[first], data[then], OURS, options.seed)
        for first, then in DRIFTS
    }
    print("Drift: the applications of one class become another's, while it learns")
    for name, drift in drifts.items():
        print(f"  {drift_line(name, drift)}")
    return {
        **_print_verdicts(trials, latencies),
        "curve": {size: [asdict(trial) for trial in of] for size, of in curve.items()},
        "drift": {name: asdict(drift) for name, drift in drifts.items()},
    }


def _print_verdicts(trials: Sequence[Trial], latencies: Sequence[Latency]) -> dict[str, Any]:
    judged = verdicts(trials, latencies)
    print()
    for verdict in judged:
        print(verdict)
    return {
        "trials": [asdict(trial) for trial in trials],
        "latency": [asdict(latency) for latency in latencies],
        "verdicts": [asdict(verdict) for verdict in judged],
    }


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_predictor", description=__doc__)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="recorded runs and inputs (or JUSTITIA_DATA)"
    )
    parser.add_argument("--sets", type=int, metavar="N", help="training sets (default 5; quick: 1)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the first (default 0)"
    )
    parser.add_argument("--quick", action="store_true", help="one set, no S3")
    parser.add_argument(
        "--spread", action="store_true", help=f"only errors and spread of {OURS} and the median"
    )
    parser.add_argument(
        "--stages", action="store_true", help="only the stage table: lengths, gaps, turns"
    )
    parser.add_argument(
        "--sessions",
        action="store_true",
        help="only recorded coding sessions: computed prompt tokens, ranks of costs",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all results")
    options = parser.parse_args(arguments)
    if options.sets is None:
        options.sets = 1 if options.quick else 5
    if options.sets < 1:
        parser.error(f"--sets {options.sets}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
