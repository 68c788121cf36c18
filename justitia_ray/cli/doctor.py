"""`justitia doctor`: what is wrong with a running service, and what to do."""

import argparse
import asyncio
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

from justitia_ray.cli.extras import serve_module
from justitia_ray.cli.status import DEFAULT_URL
from justitia_ray.client.transport import HttpTransport
from justitia_ray.config import AppConfig
from justitia_ray.doctor.report import as_dict, readable
from justitia_ray.doctor.rules import find, is_wrong
from justitia_ray.doctor.visit import Visit, visit
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.examination import Examination
from justitia_ray.store.scheduler_store import SchedulerStore

_LEAST_INTERVAL_S = 1.0
"""The scheduler makes one examination a second at most."""


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "doctor",
        help="find out what is wrong with a running service",
        description=(
            "Compare what scheduler, replicas, ingress and Ray Serve say of leases, tags and"
            " applications (GET /v1/examination), twice, and say what is wrong and what to do."
            " With --config also what is in Redis. Nothing is changed. Exit status 0: nothing"
            " wrong; 1: something is; 2: the service cannot be reached, or an option is wrong."
        ),
    )
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"where the application is served; {DEFAULT_URL}"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="its Serve configuration file: look at its Redis too; for an embedded Redis on the"
        " scheduler's node",
    )
    parser.add_argument("--model", help="only this one, where several are served; all")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--interval-s",
        type=float,
        default=2.0,
        help="time between the two looks, in seconds, 1 at least; 2",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=30.0,
        help="how long the service may be silent, in seconds; 30",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Examine the service, print what was found and return 1 if something is wrong.

    Raises:
        ConfigError: If an option or the file is wrong.
    """
    if not _LEAST_INTERVAL_S <= options.interval_s < math.inf:
        raise ConfigError(
            f"--interval-s is {options.interval_s:g}: {_LEAST_INTERVAL_S:g} or more is allowed"
        )
    configs = None if options.config is None else _configs_in(options.config)
    try:
        seen = asyncio.run(_visit(options, configs))
    except (ConnectionError, ResponseError) as error:
        print(f"justitia doctor: {_told(error)}", file=sys.stderr)
        return 2
    found = [(of_one, find(of_one.first, of_one.second)) for of_one in seen]
    if options.json:
        told = {of_one.second.seen.model: as_dict(of_one, findings) for of_one, findings in found}
        several = {"wrong": any(of_one["wrong"] for of_one in told.values()), "models": told}
        print(json.dumps(several if len(told) > 1 else as_dict(*found[0]), indent=2))
    else:
        print("\n\n".join(readable(of_one, findings) for of_one, findings in found))
    return 1 if any(is_wrong(findings) for _, findings in found) else 0


async def _visit(options: argparse.Namespace, configs: list[AppConfig] | None) -> tuple[Visit, ...]:
    transport = HttpTransport(
        options.url, connect_timeout_s=options.timeout_s, read_timeout_s=options.timeout_s
    )
    try:
        return await visit(
            transport,
            partial(_open_store, options.config, configs),
            options.interval_s,
            options.model,
        )
    finally:
        await transport.aclose()


def _told(error: Exception) -> str:
    if isinstance(error, ResponseError) and error.status == 404 and error.code is None:
        return f"no application that can be examined is served there ({error})"
    return str(error)


def _configs_in(path: Path) -> list[AppConfig]:
    checked = serve_module("config_file").check_file(path)
    if checked.errors:
        raise ConfigError(f"{path}: {checked.errors[0]}")
    return [config for application in checked.applications for config in application.configs]


def _open_store(
    path: Path | None, configs: list[AppConfig] | None, seen: Examination
) -> SchedulerStore | None:
    """Return the store of the application that was seen; None if it has none, or none was asked.

    Raises:
        ConfigError: If the file has no such application.
    """
    if configs is None:
        return None
    for config in configs:
        if (config.name, config.model.name) == (seen.name, seen.model):
            store = serve_module("stores").scheduler_store(config)
            return store if isinstance(store, SchedulerStore) else None
    there = ", ".join(config.store_name for config in configs)
    raise ConfigError(
        f"--config: {path} has {there}, and {seen.name}/{seen.model} is served at this URL"
    )
