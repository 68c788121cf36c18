"""Measure the CPU time that the console costs a scheduler."""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench.console import Reading, measure
from scripts.bench.output import print_machine, write_json

TARGET = 0.10
"""Largest share of a core that the console may use, with an operator and four tenants watching."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    about = print_machine()
    readings = asyncio.run(
        measure(
            options.applications,
            options.replicas,
            options.tenants,
            options.window_s,
            options.repeats,
        )
    )
    print(report(readings))
    write_json(
        options.json, {"machine": about, "readings": [asdict(reading) for reading in readings]}
    )
    return 0


def report(readings: Sequence[Reading]) -> str:
    last = readings[-1]
    costs = [reading.console for reading in readings]
    cost = statistics.median(costs)
    verdict = "met" if cost <= TARGET else "MISSED"
    lines = [
        f"{last.applications:,} applications, {last.running:,} running and {last.waiting:,} waiting"
        f" calls, {last.events_per_s:,.0f} events a second.",
        f"Scheduler without viewers: {statistics.median(r.unwatched for r in readings):.1%} of a"
        f" core; watched: {statistics.median(r.watched for r in readings):.1%}.",
        f"Console: {cost:.1%} of a core [{min(costs):.1%}, {max(costs):.1%}]; at most {TARGET:.0%}:"
        f" {verdict}.",
        f"{last.frames_per_s:.2f} frames a second; {last.frame_bytes / 1e3:.0f} kB with the"
        f" changes of a second, {last.whole_bytes / 1e3:.0f} kB whole.",
    ]
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_console", description=__doc__)
    parser.add_argument("--applications", type=int, default=1_000, metavar="N")
    parser.add_argument("--replicas", type=int, default=32, metavar="N")
    parser.add_argument(
        "--tenants", type=int, default=4, metavar="N", help="tenants that watch (default 4)"
    )
    parser.add_argument("--window-s", type=float, default=10.0, metavar="S")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="pairs of windows (default 3)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all results")
    options = parser.parse_args(arguments)
    for name in ("applications", "replicas", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1 is needed")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
