"""`justitia share`: fair shares and usage in the tree of tenants, like Slurm's `sshare`."""

import argparse
import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from justitia_ray.cli.running_service import add_connection, connect, show
from justitia_ray.cli.text_table import cell, text_table
from justitia_ray.client.inspection import ask_each_model

Json = Mapping[str, Any]

_HEADS = ["node", "weight", "fair", "used", "borrowed", "quota left", "waits", "runs"]
_MOST_QUOTAS = 2


def share_text(seen: Json) -> str:
    """Return the document of `justitia share --json` as text: a table for each model."""
    return "\n\n".join(_model(name, part) for name, part in seen["models"].items())


def _model(name: str, part: Json) -> str:
    title = f"model {name}: shares of its replicas alone; quotas are over all models"
    nodes = part.get("shares") or []
    if not nodes:
        return f"{title}\nnothing is live"
    rows = [_HEADS, *(_row(node, part.get("quotas") or {}) for node in nodes)]
    return f"{title}\n\n{text_table(rows, numbers_from=1)}"


def _row(node: Json, quotas: Json) -> list[str]:
    path = node["node"]
    above, _, last = path.rpartition("/")
    indent = "  " * path.count("/")
    left = [
        f"{quota['remaining']:,.0f} {quota['unit']}"
        for quota in quotas.get(path, ())[:_MOST_QUOTAS]
    ]
    return [
        f"{indent}{last}" if above else path,
        cell(node["weight"], ",g"),
        cell(node["fair_share"], ".1%"),
        cell(node["used"], ".1%"),
        cell(node["borrowed"] or None, ".1%"),
        ", ".join(left) or "–",
        cell(node["waiting"], ","),
        cell(node["running"], ","),
    ]


def add_to(commands: Any) -> None:
    """Add the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "share",
        help="show the tree of tenants: weights, fair shares, use, quotas, waiting inferences",
        description=(
            "Show each node of the tree of tenants with live applications: its weight, its present"
            " fair share of the model, the part of the KV memory that it uses and the borrowed part"
            " of that, its quotas, and its waiting and running inferences (GET /v1/status)."
        ),
    )
    add_connection(parser)
    parser.add_argument("--model", help="model to show, if several are served (default: all)")
    parser.add_argument("--json", action="store_true", help="print the tree as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Request the status and print the shares, once or until interrupted.

    Raises:
        ConfigError: If an option is wrong.
        ResponseError: If the service answered with an error.
        ConnectionError: If it did not answer.
    """
    show("share", lambda: _shares(options), options.watch, in_place=not options.json)
    return 0


def _shares(options: argparse.Namespace) -> str:
    seen = asyncio.run(_look(options))
    return json.dumps(seen, indent=2) if options.json else share_text(seen)


async def _look(options: argparse.Namespace) -> dict[str, Any]:
    async with aclosing(connect(options)) as http:
        answers = await ask_each_model(http, "/v1/status", options.model, applications=0)
    parts = ("shares", "quotas")
    return {
        "models": {
            name: {part: told.service[part] for part in parts if part in told.service}
            for name, told in answers.items()
        }
    }
