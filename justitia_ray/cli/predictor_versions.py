"""`justitia predictor list` and `rollback`: the versions of each class's model."""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from justitia_ray.cli.status import DEFAULT_URL
from justitia_ray.client.answers import json_object
from justitia_ray.client.paths import of_model
from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.overview import described
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.text_table import text_table

_TIMEOUT_S = 30.0


def add_to(subcommands: Any) -> None:
    """Add `list` and `rollback` to the subparsers of `justitia predictor`."""
    listing = subcommands.add_parser(
        "list",
        help="show the classes and the versions of their models",
        description=(
            "Show each class, which version of its model serves, and how each was trained. `error`"
            " is the mean relative error on the latest samples, which the model was not trained on;"
            " `before` that of what served until then."
        ),
    )
    _add_target(listing)
    listing.add_argument("--json", action="store_true", help="print the answer as JSON")
    listing.set_defaults(run=run_list)
    rollback = subcommands.add_parser(
        "rollback",
        help="let an earlier version of a class's model serve",
        description=(
            "Let an earlier version of a class's model serve: the one before the active one, or"
            " --to. It stays until --release: no training replaces it before. After --release it"
            " serves on until a training beats it."
        ),
    )
    rollback.add_argument("application_class", metavar="CLASS")
    rollback.add_argument(
        "--to", type=int, metavar="VERSION", help="which one; 0 is the mean of the class"
    )
    rollback.add_argument("--release", action="store_true", help="let trainings replace it again")
    _add_target(rollback)
    rollback.set_defaults(run=run_rollback)


def run_list(options: argparse.Namespace) -> int:
    """Print the versions.

    Raises:
        ConfigError: If there is no such directory.
        StoreError: If an index in it is damaged.
        ResponseError, ConnectionError: If the service did not answer.
    """
    _check_target(options)
    if options.models is None:
        answer = _call(options.url, "GET", of_model("/v1/predictor", options.model))
        if "classes" not in answer:
            there = ", ".join(answer.get("models", {}))
            raise ConfigError(f"--model is required: one of {there} is allowed")
        classes = answer["classes"]
    else:
        directory = ModelDirectory(options.models)
        classes = {name: described(directory.index(name)) for name in directory.classes()}
    print(json.dumps({"classes": classes}, indent=2) if options.json else readable(classes))
    return 0


def run_rollback(options: argparse.Namespace) -> int:
    """Roll back and say what serves now.

    Raises:
        ConfigError: If the options contradict each other, or there is no such class or version.
        ResponseError, ConnectionError: If the service refused or did not answer.
    """
    name = options.application_class
    _check_target(options)
    if options.release and options.to is not None:
        raise ConfigError("--to and --release cannot be given together")
    if options.to is not None and options.to < 0:
        raise ConfigError(f"--to must be an integer >= 0, got {options.to}")
    if options.models is None:
        body = {"version": options.to, "release": options.release}
        path = of_model(f"/v1/predictor/{quote(name, safe='')}/rollback", options.model)
        of_class = _call(options.url, "POST", path, body)
    else:
        of_class = described(_roll_back(ModelDirectory(options.models), options))
    held = "until it is released" if of_class["pinned"] else "until a training beats it"
    version = of_class["active"]
    serves = f"version {version}" if version else "no model, its mean,"
    print(f"class {name}: {serves} serves {held}")
    return 0


def readable(classes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table for a terminal: a line for each version, and for each class without one."""
    head = ["class", "samples", "version", "", "kind", "trained on", "error", "before", "why"]
    rows = [[*head, "when (UTC)"]]
    for name, known in classes.items():
        about = [name, _cell(known.get("samples"))]
        if not known["versions"]:
            rows.append([*about, "–", "class mean", *[""] * 6])
        for version in reversed(known["versions"]):
            state = ""
            if version["version"] == known["active"]:
                state = "serves, pinned" if known["pinned"] else "serves"
                if known.get("serving", known["active"]) != known["active"]:
                    state = f"damaged: {known['serving'] or 'class mean'} serves"
            rows.append([*about, str(version["version"]), state, *_training(version)])
            about = ["", ""]
        if known["versions"] and not known["active"]:
            rows.append(["", "", "0", "serves, pinned" if known["pinned"] else "serves", *[""] * 6])
    return text_table(rows)


def _add_target(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--models", type=Path, metavar="DIR", help="of `justitia predictor train`")
    target.add_argument("--url", default=DEFAULT_URL, help=f"of a running service; {DEFAULT_URL}")
    parser.add_argument("--model", help="with --url: which of several models served there")


def _check_target(options: argparse.Namespace) -> None:
    if options.models is not None and options.model is not None:
        raise ConfigError("--model goes with --url, not with --models")


def _roll_back(directory: ModelDirectory, options: argparse.Namespace) -> VersionIndex:
    name = options.application_class
    if name not in directory.classes():
        raise ConfigError(
            f"{directory.path}: has no models of class {name!r}, but of"
            f" {', '.join(directory.classes()) or 'none'}"
        )
    try:
        if options.release:
            directory.release(name)
        elif options.to is None:
            directory.roll_back(name)
        else:
            directory.activate(name, options.to)
    except RequestError as error:
        raise ConfigError(f"class {name}: {error}") from error
    return directory.index(name)


def _call(url: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    async def ask() -> dict[str, Any]:
        transport = HttpTransport(url, connect_timeout_s=_TIMEOUT_S, read_timeout_s=_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        content = b"" if body is None else json.dumps(body).encode()
        try:
            return json_object(await transport.request(method, path, headers, content))
        finally:
            await transport.aclose()

    return asyncio.run(ask())


def _training(record: Mapping[str, Any]) -> Sequence[str]:
    at = record.get("trained_at")
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) if isinstance(at, int | float) else "–"
    return [
        _cell(record.get("kind")),
        _cell(record.get("samples")),
        _share(record.get("error")),
        _share(record.get("rival_error")),
        _cell(record.get("reason")),
        when,
    ]


def _cell(value: object) -> str:
    return "–" if value is None else str(value)


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "–"
