"""Measure one scheduler's limits: inferences per second, CPU per inference, decision times."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench.output import print_machine, progress_printer, write_json
from scripts.bench.scheduler import OUTPUT_TOKENS, PROMPT_TOKENS, SEATS, Load, Reading, measure
from scripts.bench.statistics import Verdict, spread

JUDGED = (2, 8)
"""Numbers of ingresses and replicas in the load whose figures are compared with targets."""
_LEAST_PER_S, _MOST_DECISION_S = 2_500.0, 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    about, say = print_machine(("msgspec", "aiohttp")), progress_printer()
    print(
        f"Applications of one inference of {PROMPT_TOKENS} and {OUTPUT_TOKENS} tokens, "
        f"{options.callers:,} at every instant, {options.standing:,} idle ones besides; replicas of"
        f" {SEATS} sequences end what they are leased at once. Durability {options.durability}."
        f" {options.repeats} window(s) of {options.window:g} s each. Ceiling: at its CPU an"
        " inference, alone on a core. Decisions by wall clock: other processes disturb them.",
        flush=True,
    )
    load_before = os.getloadavg()
    readings: dict[Load, list[Reading]] = {}
    for repeat in range(options.repeats):
        for load in loads(options):
            say(f"repeat {repeat + 1}: {load.ingresses} ingresses, {load.replicas} replicas")
            readings.setdefault(load, []).append(measure(load, options.profile))
    load_after = os.getloadavg()
    judged = verdicts(readings)
    print(
        f"\nMachine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after.\n\n"
        f"{table(readings)}\n"
    )
    for verdict in judged:
        print(verdict)
    write_json(
        options.json,
        {
            "machine": about,
            "load_average": [load_before, load_after],
            "readings": [
                {**asdict(load), "windows": [asdict(reading) for reading in windows]}
                for load, windows in readings.items()
            ],
            "verdicts": [asdict(verdict) for verdict in judged],
        },
    )
    return 0


def loads(options: argparse.Namespace) -> list[Load]:
    """Return the loads that the options select, in order."""
    return [
        Load(
            ingresses,
            replicas,
            options.callers,
            options.standing,
            options.warm_up,
            options.window,
            options.durability,
        )
        for ingresses in options.ingresses
        for replicas in options.replicas
    ]


def table(readings: dict[Load, list[Reading]]) -> str:
    """Return a table row for each load: medians of its windows, with minimum and maximum."""
    lines = [
        "ingresses  replicas  inferences/s           ceiling/s              scheduler ms"
        "             busy  ingresses ms  replicas ms  decision p50, p99 us"
    ]
    for load, windows in readings.items():
        per_s = spread([window.inferences_per_s for window in windows]).format(0)
        ceiling = spread([window.ceiling_per_s for window in windows]).format(0)
        cpu = spread([window.cpu_ms for window in windows]).format(3)
        busy = spread([window.busy for window in windows]).median
        fakes = [spread([w.fakes_cpu_ms[side] for w in windows]).median for side in (0, 1)]
        p50 = spread([window.decision_p50_s for window in windows]).median
        p99 = spread([window.decision_p99_s for window in windows]).median
        lines.append(
            f"{load.ingresses:9}  {load.replicas:8}  {per_s:21}  {ceiling:21}  {cpu:23}"
            f"  {busy:4.0%}  {fakes[0]:12.3f}  {fakes[1]:11.3f}  {p50 * 1e6:.0f}, {p99 * 1e6:.0f}"
        )
    return "\n".join(lines)


def verdicts(readings: dict[Load, list[Reading]]) -> list[Verdict]:
    """Return a verdict for each target; none if the load with targets was not run."""
    judged = []
    for load, windows in readings.items():
        if (load.ingresses, load.replicas) == JUDGED:
            per_s = spread([window.inferences_per_s for window in windows])
            p99 = spread([window.decision_p99_s for window in windows])
            where = f"{JUDGED[0]} ingresses, {JUDGED[1]} replicas of {SEATS}: "
            judged += [
                Verdict(
                    f"{where}inferences/s >= {_LEAST_PER_S:,.0f}",
                    per_s.median >= _LEAST_PER_S,
                    per_s.format(0),
                ),
                Verdict(
                    f"{where}decision p99 <= {_MOST_DECISION_S * 1e3:g} ms",
                    p99.median <= _MOST_DECISION_S,
                    f"{p99.median * 1e6:.0f} us",
                ),
            ]
    return judged


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_scheduler", description=__doc__)
    positive = _positive_int
    parser.add_argument("--ingresses", nargs="+", type=positive, default=[1, 2, 8], metavar="N")
    parser.add_argument("--replicas", nargs="+", type=positive, default=[1, 8, 32], metavar="N")
    parser.add_argument(
        "--callers",
        type=positive,
        default=2_048,
        metavar="N",
        help="concurrent callers (default 2048)",
    )
    parser.add_argument(
        "--standing",
        type=int,
        default=10_000,
        metavar="N",
        help="idle applications (default 10000)",
    )
    parser.add_argument("--durability", choices=("batched", "none"), default="batched")
    parser.add_argument(
        "--repeats", type=positive, default=5, metavar="N", help="repeats of all loads (default 5)"
    )
    parser.add_argument(
        "--window", type=float, default=10.0, metavar="S", help="seconds of a window (default 10)"
    )
    parser.add_argument(
        "--warm-up", type=float, default=3.0, metavar="S", help="seconds of warm-up (default 3)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one repeat of 2 ingresses and 8 replicas, of one second",
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="file for a cProfile of the scheduler"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all results")
    options = parser.parse_args(arguments)
    if options.quick:
        options.ingresses, options.replicas = [JUDGED[0]], [JUDGED[1]]
        options.repeats, options.window, options.warm_up = 1, 1.0, 0.5
    return options


def _positive_int(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
