"""`justitia top`: the first applications in order, why they wait, and when they start and end."""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.cli.running_service import (
    DEFAULT_URL,
    add_connection,
    check_applications,
    connect,
    show,
)
from justitia_ray.cli.text_table import cell, text_table
from justitia_ray.cli.why import position, spread
from justitia_ray.client.client import JustitiaClient
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS

Json = Mapping[str, Any]

_HEADS = (
    *("application", "tenant", "class", "state", "reason"),
    *("before it", "waits", "runs", "cached", "starts in", "ends in"),
)
_NUMBERS_FROM = 5


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "top",
        help="show the first applications in order, why they wait and when they start",
        description=(
            "Show the first applications in order: yours, and counts of all others; operators see"
            f" all applications (GET /v1/applications). By default at {DEFAULT_URL}."
        ),
    )
    add_connection(parser)
    parser.add_argument("--model", help="model to show, if several are served (default: all)")
    parser.add_argument(
        "--applications",
        type=int,
        default=20,
        metavar="N",
        help=f"applications to show, at most {MAX_LISTED_APPLICATIONS:,} (default 20)",
    )
    parser.add_argument("--json", action="store_true", help="print the service's answer as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Request the listing and print it, once or until interrupted.

    Raises:
        ConfigError: If an option is wrong.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """
    check_applications(options.applications)

    def text() -> str:
        seen = asyncio.run(_look(options))
        return json.dumps(seen, indent=2) if options.json else top_text(seen)

    show("top", text, options.watch, in_place=not options.json)
    return 0


async def _look(options: argparse.Namespace) -> dict[str, Any]:
    async with aclosing(connect(options)) as http:
        return await JustitiaClient(http).list_applications(options.applications, options.model)


def top_text(seen: Json) -> str:
    """Return the listing of each model as a table after a line of counts."""
    return "\n\n".join(_model(name, told) for name, told in seen["models"].items())


def _model(name: str, told: Json) -> str:
    lines = [f"model {name}: {_counts(told['own'])}"]
    if told["others"]["applications"]:
        lines.append(f"others: {_counts(told['others'])}")
    rows: list[Sequence[str]] = [_HEADS, *(_row(view) for view in told["applications"])]
    if len(rows) > 1:
        lines += ["", text_table(rows, numbers_from=_NUMBERS_FROM)]
    return "\n".join(lines)


def _counts(counts: Json) -> str:
    return (
        f"{counts['applications']:,} applications, {counts['waiting']:,} inferences waiting,"
        f" {counts['running']:,} running"
    )


def _row(view: Json) -> Sequence[str]:
    outlook = view["outlook"]
    return (
        _short(split_key(view["application_id"])[1], 28),
        _short(view["tenant"], 20),
        _short(view["application_class"], 14),
        view["state"],
        outlook["reason"],
        position(outlook),
        f"{view['waiting']:,}",
        f"{view['running']:,}",
        _cached(view),
        spread(outlook["expected_start_s"]),
        spread(outlook["expected_finish_s"]),
    )


def _cached(view: Json) -> str:
    """Return the cached share of the prompt tokens of an application's ended inferences."""
    tokens = view.get("prompt_tokens")
    return cell(view["cached_prompt_tokens"] / tokens if tokens else None, ".0%")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
