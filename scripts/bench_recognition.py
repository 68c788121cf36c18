"""Serve one load as single calls, as conversations and as applications: simulated, and live.

In addition, measure how often time and key identify the application of a side call.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.sim.suites.inputs import data_directory
from scripts.bench.output import print_machine, progress_printer, write_json
from scripts.bench.recognition import MIXES, ORACLE, SimulatedLoad, simulate_load, ways
from scripts.bench.recognition_beside import read_timelines, session_rules_table
from scripts.bench.recognition_cost import cost_table, measure_cost
from scripts.bench.recognition_live import (
    ARMS,
    FAKE,
    FULL,
    QUICK,
    REPLICAS,
    SPEED,
    LivePlays,
    LiveSize,
    play_arms,
)
from scripts.bench.recognition_report import document, live_tables, simulated_tables
from scripts.bench.serve_arms import BenchArms, RunningArms

SEEDS, QUICK_SEEDS = (11, 12, 13, 14, 15), (11,)
DENSITIES, QUICK_DENSITIES = (2.0, 3.0), (3.0,)
COUNT, QUICK_COUNT = 300, 60
PARTS = ("cost", "beside", "simulated", "live")
COST, QUICK_COST = (15, 200), (3, 5)
"""Number of repeats, and of calls in each repeat, for a full and a quick run."""
_FILE = Path("deployments/local-fake.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a call failed, otherwise 0 regardless of the figures."""
    options = parse_arguments(arguments)
    data_dir = data_directory(options.data, required=options.only == "beside")
    seeds = tuple(options.seeds or (QUICK_SEEDS if options.quick else SEEDS))
    about = print_machine(("ray",))
    print(
        f"Seeds {', '.join(map(str, seeds))}; figures are the median (least to greatest), ratios"
        " those of the same seed."
    )
    parts = (options.only,) if options.only else PARTS
    costs = measure_cost(*(QUICK_COST if options.quick else COST)) if "cost" in parts else {}
    if costs:
        print(f"\n{cost_table(costs)}\n", flush=True)
    if "beside" in parts and data_dir is not None:
        print(f"\n{session_rules_table(read_timelines(data_dir))}\n", flush=True)
    loads = simulate(options, seeds, data_dir) if "simulated" in parts else []
    plays = None
    if "live" in parts:
        try:
            plays = play(QUICK if options.quick else FULL, seeds, data_dir)
        except (JustitiaError, ConnectionError) as error:
            print(f"scripts/bench_recognition: {error}", file=sys.stderr)
            return 1
    results = {"machine": about, "seeds": seeds, "quick": options.quick, "cost_us": costs}
    write_json(options.json, {**results, **document(loads, plays)})
    return 0


def simulate(
    options: argparse.Namespace, seeds: tuple[int, ...], data_dir: Path | None
) -> list[SimulatedLoad]:
    """Simulate every mix at every density, print the tables and return the figures."""
    say = progress_printer()
    found = []
    for mix in options.mixes or MIXES:
        for density in QUICK_DENSITIES if options.quick else DENSITIES:
            chosen = ways((ORACLE,)) if options.quick else ways()
            count = QUICK_COUNT if options.quick else COUNT
            load = simulate_load(mix, density, chosen, seeds, count, data_dir, say)
            print(f"\n{simulated_tables(load)}\n", flush=True)
            found.append(load)
    return found


def play(size: LiveSize, seeds: tuple[int, ...], data_dir: Path | None) -> LivePlays:
    """Start the arms, measure, and stop the arms.

    Raises:
        JustitiaError: If an arm does not come up, or a call fails.
    """
    with BenchArms(_FILE, ARMS, REPLICAS, FAKE) as cluster:
        return measure(cluster.running, size, seeds, data_dir)


def measure(
    running: RunningArms, size: LiveSize, seeds: tuple[int, ...], data_dir: Path | None
) -> LivePlays:
    """Run the loads on running arms, print the tables, and return the figures."""
    load_before = os.getloadavg()
    plays = asyncio.run(play_arms(running, size, seeds, data_dir, progress_printer()))
    load_after = os.getloadavg()
    print(
        f"\n{sum(size.mix.values())} applications a play, {len(seeds)} plays of each arm in"
        f" changing order, everything {SPEED:g} times as fast as on the paper's engine.\n"
        f"Machine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after.\n\n"
        f"{live_tables(plays)}\n"
    )
    return plays


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_recognition", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, smaller loads")
    parser.add_argument("--only", choices=PARTS, help="measure only this part (default: all)")
    parser.add_argument(
        "--mixes",
        choices=tuple(MIXES),
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(MIXES)} (default: all)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="seeds of the loads")
    parser.add_argument("--data", type=Path, help="inputs and recorded runs (or JUSTITIA_DATA)")
    parser.add_argument("--json", type=Path, help="file for all results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"scripts/bench_recognition: {error}", file=sys.stderr)
        sys.exit(2)
