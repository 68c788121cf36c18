"""Search for a seed whose history breaks a rule, or play one seed again and tell its story."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from justitia_ray import __version__
from justitia_ray.bench.machine import machine
from justitia_ray.serve.histories.history import History, play
from justitia_ray.serve.histories.plan import draw_plan
from justitia_ray.serve.histories.search import Tally, search
from justitia_ray.serve.histories.shrink import shrink


def main() -> int:
    """Search, or replay; return 1 if a rule was broken."""
    options = parse_arguments()
    if options.replay is not None:
        return replay(options)
    return look(options)


def look(options: argparse.Namespace) -> int:
    """Play many histories, print each that fails, and what struck."""
    about = machine(("ray",))
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    tally, told = Tally(), 0
    for tally in search(options.seed, options.count, options.jobs):
        for finding in tally.findings[told:]:
            print(f"seed {finding.seed}: {finding.check}: {finding.detail}", flush=True)
        told = len(tally.findings)
    print(
        f"{tally.histories} histories from seed {options.seed} in {tally.took_s:.0f} s, "
        f"{tally.a_minute:.0f} a minute: {tally.inferences} inferences, {tally.grants} leases, "
        f"{tally.virtual_s / 3600:.1f} virtual hours; {len(tally.findings)} failed"
    )
    for kind, count in sorted(tally.struck.items()):
        print(f"  {kind:<28} {count}")
    if options.json is not None:
        result = {
            "version": __version__,
            "machine": about,
            "seed": options.seed,
            "jobs": options.jobs,
            **asdict(tally),
            "a_minute": round(tally.a_minute, 1),
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 1 if tally.findings else 0


def replay(options: argparse.Namespace) -> int:
    """Play one history again, and tell of it."""
    plan = draw_plan(options.replay)
    if options.shrink:
        plan = shrink(plan).plan
    history = play(plan, told=options.verbose)
    show(history)
    return 1 if history.failures else 0


def show(history: History) -> None:
    """Print what was planned, what happened and what was wrong."""
    plan = history.plan
    print(
        f"seed {plan.seed}: {plan.ingresses} ingresses, {plan.replicas} replicas of "
        f"{plan.kv_tokens} tokens, policy {plan.policy}, {len(plan.applications)} applications, "
        f"{plan.inferences} inferences"
    )
    for fault in plan.faults:
        print(f"  fault {asdict(fault)}")
    if history.story:
        print(history.story)
    for failure in history.failures:
        print(f"FAILED {failure}")
    print(f"{history.virtual_s:.1f} virtual seconds, {history.grants} leases")


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/histories", description=__doc__)
    parser.add_argument("--count", type=positive, default=2_000, help="histories; 2000")
    parser.add_argument("--seed", type=int, default=0, help="of the first; 0")
    parser.add_argument("--jobs", type=positive, default=2, help="processes; 2")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play this one only")
    parser.add_argument("--verbose", action="store_true", help="tell the story of a replay")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out of a replay what it need not have to fail"
    )
    return parser.parse_args()


def positive(text: str) -> int:
    """Return a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
