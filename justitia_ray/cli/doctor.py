"""`justitia doctor`: find faults of a running service, and advise what to do."""

import argparse
import asyncio
import json
import math
import os
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from justitia_ray.cli.running_service import DEFAULT_URL, connect
from justitia_ray.config import AppConfig
from justitia_ray.doctor.report import find, is_wrong, report_dict, report_text
from justitia_ray.doctor.rule import Snapshot
from justitia_ray.doctor.visit import visit
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.inspection import Inspection
from justitia_ray.protocol.proxies import proxy_hint
from justitia_ray.store.scheduler_store import SchedulerStore

_LEAST_INTERVAL_S = 1.0
"""Minimum seconds between two snapshots of the scheduler's report, which changes once a second."""


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="find the faults of a running service",
        description=(
            "Compare the leases, tags and applications of scheduler, replicas, ingress and Ray"
            " Serve (GET /v1/examination), twice, and print each fault with its remedy. With"
            " --config also those in Redis. Nothing is changed. Exit status 0: no fault; 1: at"
            " least one; 2: the service cannot be reached, or an option is wrong."
        ),
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"URL of the service (default {DEFAULT_URL})"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="Serve configuration file of the service: inspect its Redis too; for an embedded Redis"
        " only on the scheduler's node",
    )
    parser.add_argument("--model", help="model to inspect, if several are served (default: all)")
    parser.add_argument(
        "--json", action="store_true", help="print findings and inspections as JSON"
    )
    parser.add_argument(
        "--interval-s",
        type=float,
        default=2.0,
        help="seconds between the two inspections, at least 1 (default 2)",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=30.0,
        help="seconds for which the service may be silent (default 30)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Inspect a service and print the findings; return 1 if something is wrong.

    Raises:
        ConfigError: If an option or the file is wrong.
    """
    if not _LEAST_INTERVAL_S <= options.interval_s < math.inf:
        raise ConfigError(
            f"--interval-s is {options.interval_s:g}: {_LEAST_INTERVAL_S:g} or more is allowed"
        )
    configs = None
    if options.config is not None:
        from justitia_ray.serve.ops.config_file import read_applications

        configs = [config for a in read_applications(options.config) for config in a.configs]
    try:
        visited = asyncio.run(_look_at_each(options, configs))
    except (ConnectionError, ResponseError) as error:
        print(f"justitia doctor: {_error_text(error, options.url)}", file=sys.stderr)
        return 2
    found = [(first, second, find(first, second)) for first, second in visited]
    if options.json:
        told = {looks[1].seen.model: report_dict(*looks) for looks in found}
        several = {"wrong": any(of_one["wrong"] for of_one in told.values()), "models": told}
        print(json.dumps(several if len(told) > 1 else report_dict(*found[0]), indent=2))
    else:
        print("\n\n".join(report_text(second, findings) for _, second, findings in found))
    return 1 if any(is_wrong(findings) for *_, findings in found) else 0


async def _look_at_each(
    options: argparse.Namespace, configs: list[AppConfig] | None
) -> list[tuple[Snapshot, Snapshot]]:
    async with aclosing(connect(options)) as http:
        open_store = partial(_open_store, options.config, configs)
        return await visit(http, open_store, options.interval_s, options.model)


def _error_text(error: Exception, url: str) -> str:
    if not isinstance(error, ResponseError):
        return str(error)
    # An error without this service's error code may come from a proxy.
    hint = "" if error.code else proxy_hint(url, os.environ)
    if error.status == 404 and error.code is None:
        return f"no application that can be examined is served there ({error}){hint}"
    return f"{error}{hint}"


def _open_store(
    path: Path | None, configs: list[AppConfig] | None, seen: Inspection
) -> SchedulerStore | None:
    """Open the store of the application in `--config`; return None without store or `--config`.

    Raises:
        ConfigError: If the file has no such application.
    """
    if configs is None:
        return None
    from justitia_ray.serve.stores import scheduler_store

    for config in configs:
        if (config.name, config.model.name) == (seen.name, seen.model):
            store = scheduler_store(config)
            return store if isinstance(store, SchedulerStore) else None
    there = ", ".join(config.store_name for config in configs)
    raise ConfigError(
        f"--config: {path} has {there}, and {seen.name}/{seen.model} is served at this URL"
    )
