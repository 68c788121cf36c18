"""`justitia why`: print why an application waits, what would help, and when it starts and ends."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from justitia_ray.cli.running_service import add_connection, connect, show
from justitia_ray.cli.text_table import cell
from justitia_ray.client.client import JustitiaClient
from justitia_ray.units import ApplicationId

Json = Mapping[str, Any]


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "why",
        help="show why an application waits, and when it starts",
        description=(
            "Show why an application of yours waits, what would help, how many are before it, and"
            " when it is expected to start and to end (GET /v1/applications/ID)."
        ),
    )
    parser.add_argument("application", metavar="ID", help="the application's id")
    add_connection(parser)
    parser.add_argument("--tenant", help="tenant of the application, if the credential has several")
    parser.add_argument("--json", action="store_true", help="print the service's answer as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Request an application's outlook and print it, once or until interrupted.

    Raises:
        ConfigError: If an option is wrong.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """

    def text() -> str:
        seen = asyncio.run(_look(options, options.application))
        return json.dumps(seen, indent=2) if options.json else why_text(seen)

    show("why", text, options.watch, in_place=not options.json)
    return 0


async def _look(options: argparse.Namespace, application_id: ApplicationId) -> dict[str, Any]:
    async with aclosing(connect(options)) as http:
        return await JustitiaClient(http).find_application(application_id, options.tenant)


def why_text(seen: Json) -> str:
    """Return the view of an application as text; of several models, one after the other."""
    models = seen.get("models")
    if not models:
        return _part(seen)
    return "\n\n".join(f"{'model':<14}{name}\n{_part(view)}" for name, view in models.items())


def _part(view: Json) -> str:
    outlook = view.get("outlook")
    told = [
        ("application", view["application_id"]),
        ("class", view["application_class"]),
        ("state", f"{view['state']}; {view['waiting']:,} waiting, {view['running']:,} running"),
    ]
    if outlook is not None:
        told += _outlook(outlook)
    return "\n".join(f"{name:<14}{value}" for name, value in told)


def _outlook(outlook: Json) -> list[tuple[str, str]]:
    told = [("reason", outlook["reason"]), ("would help", outlook["what_would_help"])]
    if outlook.get("quota_comes_back_s") is not None:
        told.append(("quota back", f"in {seconds(outlook['quota_comes_back_s'])}"))
    if outlook["position"] is not None:
        ahead = cell(outlook["ahead_kv_token_time"], ",.0f")
        told.append(("before it", f"{position(outlook)} applications, {ahead} token·iterations"))
    for name, field in (("starts in", "expected_start_s"), ("ends in", "expected_finish_s")):
        if outlook[field] is not None:
            median = seconds(outlook[field]["p50"])
            told.append((name, f"{median} by half; {spread(outlook[field])} in 8 of 10 cases"))
    if outlook["guaranteed_by_s"] is not None:
        told.append(("guaranteed by", f"{seconds(outlook['guaranteed_by_s'])}, at this speed"))
    return told


def position(outlook: Json) -> str:
    """Return the number of applications before one, with a plus if there may be more."""
    if outlook["position"] is None:
        return "–"
    return f"{outlook['position']:,}{'+' if outlook['position_is_least'] else ''}"


def spread(quantiles: Json | None) -> str:
    """Return p10 and p90 of a time from now."""
    if quantiles is None:
        return "–"
    return f"{seconds(quantiles['p10'])} to {seconds(quantiles['p90'])}"


def seconds(value: float) -> str:
    """Return a rounded time with its unit: 0.4 s, 37 s, 12 min, 3.5 h."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
