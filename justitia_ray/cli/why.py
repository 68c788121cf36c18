"""`justitia why`: print why an application waits, what would help, and when it starts and ends."""

import argparse
from typing import Any

from justitia_ray.cli.running_service import Json, add_connection, show_answer
from justitia_ray.cli.text_table import format_cell
from justitia_ray.client.client import JustitiaClient
from justitia_ray.client.transport import HttpTransport
from justitia_ray.core.calibration import Quantiles
from justitia_ray.core.outlook import Outlook
from justitia_ray.protocol.status import FoundApplication, FullOutlook, read_answer


def add_subcommand(commands: Any) -> None:
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
    """Print when an application will start and what it waits for, once or until interrupted."""
    return show_answer("why", options, _request_outlook, why_text)


async def _request_outlook(http: HttpTransport, options: argparse.Namespace) -> Json:
    return await JustitiaClient(http).find_application(options.application, options.tenant)


def why_text(seen: Json) -> str:
    """Return as text why an application waits, with a section for each model."""
    found = read_answer(FoundApplication, seen, "application")
    if not found.models:
        return _application_text(found)
    return "\n\n".join(
        f"{'model':<14}{name}\n{_application_text(one)}" for name, one in found.models.items()
    )


def _application_text(one: FoundApplication) -> str:
    told = [
        ("application", one.application_id),
        ("class", one.application_class),
        ("state", f"{one.state}; {one.waiting:,} waiting, {one.running:,} running"),
    ]
    if one.outlook is not None:
        told += _outlook_facts(one.outlook)
    return "\n".join(f"{name:<14}{value}" for name, value in told)


def _outlook_facts(outlook: FullOutlook) -> list[tuple[str, str]]:
    told = [("reason", outlook.reason), ("would help", outlook.what_would_help)]
    if outlook.quota_comes_back_s is not None:
        told.append(("quota back", f"in {duration_text(outlook.quota_comes_back_s)}"))
    if outlook.position is not None:
        ahead = format_cell(outlook.ahead_kv_token_time, ",.0f")
        told.append(
            ("before it", f"{position_text(outlook)} applications, {ahead} token·iterations")
        )
    times = (("starts in", outlook.expected_start_s), ("ends in", outlook.expected_finish_s))
    for name, expected in times:
        if expected is not None:
            median = duration_text(expected.p50)
            told.append((name, f"{median} by half; {spread_text(expected)} in 8 of 10 cases"))
    if outlook.guaranteed_by_s is not None:
        told.append(("guaranteed by", f"{duration_text(outlook.guaranteed_by_s)}, at this speed"))
    return told


def position_text(outlook: Outlook) -> str:
    """Return the number of applications ahead, with `+` if there may be more."""
    if outlook.position is None:
        return "–"
    return f"{outlook.position:,}{'+' if outlook.position_is_least else ''}"


def spread_text(quantiles: Quantiles | None) -> str:
    """Return the 10th and 90th percentile of a predicted waiting time, as text."""
    return (
        "–"
        if quantiles is None
        else f"{duration_text(quantiles.p10)} to {duration_text(quantiles.p90)}"
    )


def duration_text(value: float) -> str:
    """Return a time in seconds as rounded text with its unit: 0.4 s, 37 s, 12 min, 3.5 h."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
