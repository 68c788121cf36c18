"""`justitia usage`: print tenants' usage of each model per day, as a table or as JSON."""

import argparse
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from justitia_ray.cli.running_service import add_connection, show_answer
from justitia_ray.cli.text_table import format_cell, text_table
from justitia_ray.client.calls import json_object
from justitia_ray.client.transport import HttpTransport

_COLUMNS = (
    "applications",
    "inferences",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
    "kv_token_time",
    "prefill_token_time",
)
_HEADS = ("day", "tenant", "model", *_COLUMNS)


def usage_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows of `GET /v1/usage` as a table."""
    lines = [
        (
            row["day"],
            row["tenant"],
            row["model"],
            *(format_cell(row.get(name), ",.0f") for name in _COLUMNS),
        )
        for row in rows
    ]
    return text_table([_HEADS, *lines], numbers_from=3)


def add_subcommand(commands: Any) -> None:
    parser = commands.add_parser(
        "usage",
        help="show the usage of tenants by model and day",
        description="Show the usage of tenants by model and day of UTC (GET /v1/usage).",
    )
    add_connection(parser, watches=False)
    parser.add_argument(
        "--tenant", help="tenant to show, with those below it (default: all visible)"
    )
    parser.add_argument(
        "--from", dest="since", metavar="DAY", help="first day, 2026-01-31 (default: --to)"
    )
    parser.add_argument("--to", dest="until", metavar="DAY", help="last day (default: today)")
    parser.add_argument("--model", help="model to show, if several are served (default: all)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return show_answer("usage", options, _request_usage, usage_text)


async def _request_usage(http: HttpTransport, options: argparse.Namespace) -> list[dict[str, Any]]:
    asked = {
        "tenant": options.tenant,
        "from": options.since,
        "to": options.until,
        "model": options.model,
    }
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    answer = await http.request("GET", f"/v1/usage?{query}", {})
    rows: list[dict[str, Any]] = json_object(answer)["data"]
    return rows
