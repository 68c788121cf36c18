"""`justitia top`: print the first applications in order, why they wait, and their times."""

import argparse
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.cli.running_service import (
    DEFAULT_URL,
    Json,
    add_connection,
    check_applications,
    show_answer,
)
from justitia_ray.cli.text_table import Columns, column_table, format_cell, shortened
from justitia_ray.cli.why import duration_text, position_text, spread_text
from justitia_ray.client.client import JustitiaClient
from justitia_ray.client.transport import HttpTransport
from justitia_ray.protocol.inspection import MAX_LISTED_APPLICATIONS
from justitia_ray.protocol.status import Counts, ListedApplication, Listing, read_answer

_COLUMNS: Columns[ListedApplication] = {
    "application": lambda one: shortened(split_key(one.application_id)[1], 28),
    "tenant": lambda one: shortened(one.tenant, 20),
    "class": lambda one: shortened(one.application_class, 14),
    "state": lambda one: one.state,
    "reason": lambda one: _reason_text(one),
    "before it": lambda one: position_text(one.outlook),
    "waits": lambda one: f"{one.waiting:,}",
    "runs": lambda one: f"{one.running:,}",
    "cached": lambda one: _cached_share(one),
    "starts in": lambda one: spread_text(one.outlook.expected_start_s),
    "ends in": lambda one: spread_text(one.outlook.expected_finish_s),
}


def add_subcommand(commands: Any) -> None:
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
    check_applications(options.applications)
    return show_answer("top", options, _request_listing, top_text)


async def _request_listing(http: HttpTransport, options: argparse.Namespace) -> Json:
    return await JustitiaClient(http).list_applications(options.applications, options.model)


def top_text(seen: Json) -> str:
    """Return the listing of `justitia top` as text: a line of counts and a table for each model."""
    return "\n\n".join(
        _model_text(name, read_answer(Listing, told, "listing"))
        for name, told in seen["models"].items()
    )


def _model_text(name: str, told: Listing) -> str:
    lines = [f"model {name}: {_counts_text(told.own)}"]
    if told.others.applications:
        lines.append(f"others: {_counts_text(told.others)}")
    if told.applications:
        lines += ["", column_table(_COLUMNS, told.applications, numbers_from="before it")]
    return "\n".join(lines)


def _counts_text(counts: Counts) -> str:
    return (
        f"{counts.applications:,} applications, {counts.waiting:,} inferences waiting,"
        f" {counts.running:,} running"
    )


def _reason_text(one: ListedApplication) -> str:
    """Return why an application waits, as text."""
    full_s, missing = one.outlook.context_full_s, one.outlook.missing_kv_tokens
    text = one.outlook.reason + ("" if full_s is None else f", full for {duration_text(full_s)}")
    return text + ("" if missing is None else f", {missing:,} tokens short")


def _cached_share(one: ListedApplication) -> str:
    """Return the share of an application's prompt tokens that came from the prefix cache."""
    share = one.cached_prompt_tokens / one.prompt_tokens if one.prompt_tokens else None
    return format_cell(share, ".0%")
