"""Measure the cost of a scheduling decision, by policy and number of applications."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from justitia_ray.core.policies import LAB_POLICIES, POLICIES, parse_options, policy_path
from justitia_ray.core.prefixes import MAXIMUM_PREFIXES
from justitia_ray.errors import ConfigError
from justitia_ray.lab.core_load import WAITING_EACH
from scripts.bench.core import (
    CLOCKS,
    Plan,
    default_plan,
    measure_core,
    measure_linear,
    measure_memory,
)
from scripts.bench.core_report import WHAT, comparison, document, memory_table, table, verdicts
from scripts.bench.output import print_machine, progress_printer, write_json

JUDGED = "justitia"
MOST_APPLICATIONS = 1_000_000
MEMORY_OF_OTHERS = 1_000
"""Number of live applications at which memory is measured if the policy has no memory target."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    plan = default_plan(options.sizes, options.repeats, quick=options.quick, clock=options.clock)
    about = print_machine()
    print(describe(plan, options.seed), flush=True)
    started, say = time.monotonic(), progress_printer()

    load_before = os.getloadavg()
    cells, pauses = measure_core(
        plan,
        options.policy,
        options.option,
        options.seed,
        say,
        options.leaves,
        options.beginnings,
    )
    say("the linear scan")
    scans = measure_linear(plan, options.seed)
    say("memory")
    memory = [
        measure_memory(
            plan,
            policy,
            options.option,
            plan.memory_applications if policy == JUDGED else MEMORY_OF_OTHERS,
            options.seed,
        )
        for policy in options.policy
    ]
    load_after = os.getloadavg()
    everything = [*cells, *scans]
    judged = verdicts(cells, memory)
    print(
        f"\nMachine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after."
        f" {time.monotonic() - started:.0f} s in all.\n\n"
        f"Microseconds a decision\n\n{table(everything)}\n{comparison(everything)}\n\n"
        f"{memory_table(memory)}\n"
    )
    for size, found in pauses.items():
        print(f"Garbage collection on, {size:,} applications: {found}.")
    print()
    for verdict in judged:
        print(verdict)
    results = {
        "machine": about,
        "seed": options.seed,
        "plan": asdict(plan),
        "options": options.option,
        "leaves": options.leaves,
        "beginnings": options.beginnings,
        "load_average": [load_before, load_after],
        "garbage_collections": {size: asdict(found) for size, found in pauses.items()},
        **document(everything, memory, judged),
    }
    write_json(options.json, results)
    return 0


def describe(plan: Plan, seed: int) -> str:
    """Return a description of the measurement and of its figures."""
    return (
        f"{WAITING_EACH} waiting inferences each. Seed {seed}, {plan.repeats} repeat(s) of"
        f" {plan.steps} pulls, {plan.steps * plan.completions} completions and what follows;"
        f" warm-up {plan.warm_up_steps} pulls, not counted.\n"
        f"An event's time ({plan.clock} clock) is that of handle() and next_deadline(), over the"
        " decisions it brought.\n"
        "Mean over decisions; p50 and p99 over events; median of the repeats (least to greatest)."
        " Slope: of the p50, on log axes.\n"
        + "\n".join(f"  {kind}: {what}" for kind, what in WHAT.items())
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/bench_core", description=__doc__)
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="repeatable; default: every policy"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of these policies",
    )
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="live applications")
    parser.add_argument(
        "--quick", action="store_true", help="up to 10,000 applications, one repeat"
    )
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="windows of each policy (default 3)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the load (default 1)"
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: count only the time of this thread, on a busy machine (default: wall)",
    )
    parser.add_argument(
        "--leaves",
        type=int,
        metavar="N",
        help="tenants at depth four of a tree, for fairness=tenant (a hundred at the top)",
    )
    parser.add_argument(
        "--beginnings",
        type=int,
        choices=range(MAXIMUM_PREFIXES + 1),
        metavar="N",
        help="replicas with a prefix cache; beginnings that each prompt names, 0 to"
        f" {MAXIMUM_PREFIXES} (default: no prefix cache)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all results")
    options = parser.parse_args(arguments)
    options.policy = list(dict.fromkeys(options.policy or (*POLICIES, *LAB_POLICIES)))
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1 is needed")
    if options.leaves is not None and options.leaves < 1:
        parser.error(f"--leaves {options.leaves}: at least 1 is needed")
    for size in options.sizes or ():
        if not 1 <= size <= MOST_APPLICATIONS:
            parser.error(f"--sizes {size}: from 1 to {MOST_APPLICATIONS:,} are possible")
    try:
        options.option = dict(map(_parse_option, options.option))
        for policy in options.policy:
            parse_options(policy_path(policy), options.option)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    return options


def _parse_option(text: str) -> tuple[str, object]:
    """Return a policy option and its value, converted to a number where possible."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--option {text!r}: NAME=VALUE is needed")
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value


if __name__ == "__main__":
    sys.exit(main())
