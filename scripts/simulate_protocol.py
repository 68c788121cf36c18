"""Search for a seed whose simulation breaks a rule, or replay one seed and print its trace."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench.output import print_machine, write_json
from tests.harness.simulation.plan import draw_plan
from tests.harness.simulation.run import SearchResult, SimulationRun, run_plan, search, shrink


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.replay is not None:
        return replay_seed(options)
    return run_search(options)


def run_search(options: argparse.Namespace) -> int:
    """Run many simulations; print each failure and the number of injected faults."""
    about = print_machine(("ray",))
    result, told = SearchResult(), 0
    for result in search(options.seed, options.count, options.jobs):
        for finding in result.findings[told:]:
            print(f"seed {finding.seed}: {finding.check}: {finding.detail}", flush=True)
        told = len(result.findings)
    print(
        f"{result.simulations} simulations from seed {options.seed} in {result.took_s:.0f} s, "
        f"{result.simulations_per_minute:.0f} a minute: {result.inferences} inferences,"
        f" {result.grants} leases, {result.virtual_s / 3600:.1f} virtual hours;"
        f" {len(result.findings)} failed"
    )
    for kind, count in sorted(result.struck.items()):
        print(f"  {kind:<28} {count}")
    write_json(
        options.json,
        {
            "machine": about,
            "seed": options.seed,
            "jobs": options.jobs,
            **asdict(result),
            "struck": dict(result.struck),  # `asdict` would turn a Counter into a Counter of pairs.
            "per_minute": round(result.simulations_per_minute, 1),
        },
    )
    return 1 if result.findings else 0


def replay_seed(options: argparse.Namespace) -> int:
    plan = draw_plan(options.replay)
    if options.shrink:
        plan = shrink(plan).plan
    simulated = run_plan(plan, traced=options.verbose)
    print_simulation(simulated)
    return 1 if simulated.failures else 0


def print_simulation(simulated: SimulationRun) -> None:
    """Print the plan, the events and the failures of a simulation."""
    plan = simulated.plan
    print(
        f"seed {plan.seed}: {plan.ingresses} ingresses, {plan.replicas} replicas of "
        f"{plan.kv_tokens} tokens, policy {plan.policy}, {len(plan.applications)} applications, "
        f"{plan.inferences} inferences"
    )
    for fault in plan.faults:
        print(f"  fault {asdict(fault)}")
    if simulated.trace:
        print(simulated.trace)
    for failure in simulated.failures:
        print(f"FAILED {failure}")
    print(f"{simulated.virtual_s:.1f} virtual seconds, {simulated.grants} leases")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/simulate_protocol", description=__doc__)
    parser.add_argument("--count", type=positive, default=2_000, help="simulations (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first (default 0)")
    parser.add_argument("--jobs", type=positive, default=2, help="processes (default 2)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run only this seed")
    parser.add_argument("--verbose", action="store_true", help="print the trace of a replay")
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="remove from a replay all steps that its failure does not need",
    )
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
