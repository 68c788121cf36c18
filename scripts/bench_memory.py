"""Measure the memory of waiting inferences, open applications and large bodies."""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from justitia_ray.cli.text_table import text_table
from justitia_ray.errors import JustitiaError
from scripts.bench.bodies import measure_bodies
from scripts.bench.memory import Case, measure_ingress, measure_scheduler
from scripts.bench.output import print_machine, write_json

SCHEDULER = (
    Case(20_000, 10),
    Case(100_000, 2),
    Case(50_000, 0),
    Case(200_000, 0),
)
"""Measured cases at the scheduler: 200,000 waiting inferences, or many idle applications."""
INGRESS = (Case(20_000, 1), Case(2_000, 10), Case(50_000, 0))
"""Measured cases at the ingress: as many inferences as it allows, or many idle applications."""
BODIES = (1_000,)
"""Number of bodies of 1 kB to 16 MB, sent 20 at a time."""
QUICK = 20
"""Factor by which `--quick` reduces the number of applications and inferences."""

Measure = Callable[[Any, Path], Coroutine[Any, Any, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} times smaller")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument(
        "--only", choices=("scheduler", "ingress", "bodies"), help="measure only one part"
    )
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else 1
    about = print_machine(("redis",))
    found = {}
    try:
        parts: tuple[tuple[str, Measure, list[Any]], ...] = (
            ("scheduler", measure_scheduler, [_scaled_cases(case, scale) for case in SCHEDULER]),
            ("ingress", measure_ingress, [_scaled_cases(case, scale) for case in INGRESS]),
            ("bodies", measure_bodies, [bodies // scale for bodies in BODIES]),
        )
        for name, measure, cases in parts:
            if options.only not in (None, name):
                continue
            taken = [_run_in_process(measure, case) for case in cases]
            found[name] = taken
            rows = [list(taken[0]), *(_table_row(one) for one in taken)]
            print(f"\n{name}\n{text_table(rows, numbers_from=0)}")
    except JustitiaError as error:
        print(error, file=sys.stderr)
        return 1
    write_json(options.json, {"about": about, **found})
    return 0


def _scaled_cases(case: Case, scale: int) -> Case:
    return Case(case.applications // scale, case.inferences)


def _run_in_process(measure: Measure, case: Any) -> dict[str, Any]:
    """Run one case in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawning) as process:
        return process.submit(_run_case, measure, case).result()


def _run_case(measure: Measure, case: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        return asdict(asyncio.run(measure(case, Path(directory))))


def _table_row(taken: dict[str, Any]) -> list[str]:
    return [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in taken.values()]


if __name__ == "__main__":
    sys.exit(main())
