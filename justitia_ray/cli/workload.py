"""`justitia workload`: write a workload file, from a suite or from a user's trace."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SUITES, SuiteOptions, build_suite
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.sim.suites.options import ARRIVALS
from justitia_ray.sim.trace_import import import_trace
from justitia_ray.sim.workload import WorkloadApplication, write_workload


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "workload",
        help="write a workload file, from a suite or from your own trace",
        description=(
            "Write a workload file: JSON lines, one application a line, for `justitia simulate` and"
            " `justitia replay`. The same arguments give the same bytes."
        ),
        epilog="suites:\n" + "\n".join(f"  {name:<26}{s.about}" for name, s in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--suite", metavar="NAME", help="one of the suites below")
    source.add_argument(
        "--from",
        dest="trace",
        type=Path,
        metavar="FILE",
        help=(
            "your own trace: CSV with arrival_s,input_tokens,output_tokens and perhaps client,"
            " application_id, application_class; or OpenTelemetry GenAI spans as JSON lines"
        ),
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="file to write; NAME.gz is compressed"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="recorded runs, inputs and arrivals (or JUSTITIA_DATA); default: synthetic runs",
    )
    parser.add_argument("--count", type=int, metavar="N", help="number of applications")
    parser.add_argument(
        "--window-s",
        type=float,
        metavar="S",
        help="seconds within which all applications arrive; changes only the arrivals",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    parser.add_argument(
        "--arrivals",
        metavar="KIND",
        help=f"{', '.join(ARRIVALS)}; nine-class: mooncake with --data, poisson without",
    )
    parser.add_argument(
        "--mix",
        help="nine-class: `paper`, `recorded` (CG for SC), or whole numbers as in KBQAV=60,MRS=1",
    )
    parser.add_argument("--tenants", type=int, metavar="N", help="nine-class: tenants (default 1)")
    parser.add_argument(
        "--sc-samples", type=int, metavar="N", help="nine-class: samples of a vote (default 40)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write a workload file for the simulator, and print a summary line.

    Raises:
        ConfigError: If an option or a file is wrong.
    """
    suite_options = SuiteOptions(
        count=options.count,
        window_s=options.window_s,
        seed=options.seed,
        data_dir=_data_dir(options),
        arrivals=options.arrivals,
        mix=options.mix,
        tenants=options.tenants,
        sc_samples=options.sc_samples,
    )
    left_out = ""
    if options.trace is None:
        applications = build_suite(options.suite, suite_options)
    else:
        applications, without_output = import_trace(options.trace, suite_options)
        if without_output:
            left_out = f"; left out {without_output:,} requests without output"
    write_workload(options.out, applications)
    print(f"{options.out}: {_workload_summary(applications)}{left_out}")
    return 0


def _data_dir(options: argparse.Namespace) -> Path | None:
    """Return the data directory from `--data` or JUSTITIA_DATA; None if neither is set."""
    if options.trace is not None:
        if options.data is not None:
            raise ConfigError("--data goes with --suite, not with --from")
        return None
    return data_directory(options.data, required=False)


def _workload_summary(applications: Sequence[WorkloadApplication]) -> str:
    inferences = [i for application in applications for i in application.inferences]
    arrivals = [application.arrived_at_s for application in applications]
    return (
        f"{len(applications):,} applications, {len(inferences):,} inferences,"
        f" {sum(i.prompt_tokens for i in inferences):,} prompt and"
        f" {sum(i.output_tokens for i in inferences):,} output tokens, arriving from"
        f" {min(arrivals):,.1f} s to {max(arrivals):,.1f} s"
    )
