"""`justitia replay`: play a workload file against a live service."""

import argparse
import asyncio
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from justitia_ray.cli.running_service import DEFAULT_URL
from justitia_ray.client.load import LoadProgress
from justitia_ray.errors import ConfigError
from justitia_ray.sim.replay import Replay, replay_workload
from justitia_ray.sim.result_files import check_writable, draw_figures, write_results
from justitia_ray.sim.workload import read_workload


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="play a workload file against a live service",
        description=(
            "Open each application of a workload file at its instant, submit each inference when"
            " its predecessors have finished (prompts of the given number of tokens, outputs of"
            " exactly the given length), and write the result files of `justitia simulate`, under"
            " the policy of the service. Exit status 1 if an application failed."
        ),
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of the service (default {DEFAULT_URL})"
    )
    parser.add_argument("--workload", type=Path, required=True, help="workload file, JSON lines")
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    parser.add_argument("--model", help="model to request (default: the only one served)")
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help="divisor of the workload's instants and delays (default 1)",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        help="seconds after which an inference has failed (default: no limit)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replay a workload on a running service; return 1 if a call failed.

    Raises:
        ConfigError: If an option or the file is wrong, or does not fit the service.
        ConnectionError: If the service cannot be reached or is not ready.
        ResponseError: If another program than this service answers.
    """
    for name in ("speed", "timeout_s"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} must be a number above 0, got {value:g}")
    applications = read_workload(options.workload)
    check_writable(options.out)
    done = asyncio.run(
        replay_workload(
            options.url,
            applications,
            model=options.model,
            speed=options.speed,
            timeout_s=options.timeout_s,
            on_progress=_update_progress,
            on_warning=_print_warning,
        )
    )
    results = {done.policy: done.run}
    write_results(options.out, results, _summary(options, done))
    if note := draw_figures(options.out, results):
        _print_warning(note)
    finished = len(applications) - done.failed_applications
    print(f"{finished} of {len(applications)} applications finished; results in {options.out}")
    if not done.failures:
        return 0
    first = done.failures[0]
    where = f"application {first.application_id!r}"
    if first.inference_id is not None:
        where += f", inference {first.inference_id!r}"
    _print_warning(
        f"{done.failed_applications} applications failed; the first failure: {where}: {first.error}"
    )
    return 1


def _summary(options: argparse.Namespace, done: Replay) -> dict[str, Any]:
    return {
        "command": "replay",
        "seed": None,
        "configuration": {
            "url": options.url,
            "workload": str(options.workload),
            "model": done.service["model"],
            "speed": options.speed,
            "timeout_s": options.timeout_s,
        },
        "service": done.service,
        "failures": [asdict(failure) for failure in done.failures],
    }


def _update_progress(progress: LoadProgress) -> None:
    if sys.stderr.isatty():
        line_end = "\n" if progress.ended == progress.total else ""
        line = f"\r{progress.ended:,} of {progress.total:,} applications"
        print(line, end=line_end, file=sys.stderr, flush=True)


def _print_warning(line: str) -> None:
    print(f"justitia replay: {line}", file=sys.stderr)
