"""`justitia share`: fair shares and usage in the tree of tenants, like Slurm's `sshare`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.cli.running_service import Json, add_connection, show_answer
from justitia_ray.cli.text_table import Columns, column_table, format_cell
from justitia_ray.client.inspection import ask_each_model
from justitia_ray.client.transport import HttpTransport
from justitia_ray.protocol.status import ModelStatus, NodeShare, read_answer

_MOST_QUOTAS = 2


def share_text(seen: Json) -> str:
    """Return the document of `justitia share --json` as text: a table for each model."""
    return "\n\n".join(
        _model_text(name, read_answer(ModelStatus, part, "status"))
        for name, part in seen["models"].items()
    )


def _model_text(name: str, status: ModelStatus) -> str:
    title = f"model {name}: shares of its replicas alone; quotas are over all models"
    if not status.shares:
        return f"{title}\nnothing is live"
    columns = _share_columns(status.quotas)
    return f"{title}\n\n{column_table(columns, status.shares, numbers_from='weight')}"


def _share_columns(quotas: Mapping[str, Sequence[Json]]) -> Columns[NodeShare]:
    return {
        "node": _indented_name,
        "weight": lambda one: format_cell(one.weight, ",g"),
        "fair": lambda one: format_cell(one.fair_share, ".1%"),
        "used": lambda one: format_cell(one.used, ".1%"),
        "borrowed": lambda one: format_cell(one.borrowed or None, ".1%"),
        "quota left": lambda one: _remaining_quotas(quotas.get(one.node, ())),
        "waits": lambda one: f"{one.waiting:,}",
        "runs": lambda one: f"{one.running:,}",
    }


def _indented_name(one: NodeShare) -> str:
    above, _, last = one.node.rpartition("/")
    return f"{'  ' * one.node.count('/')}{last}" if above else one.node


def _remaining_quotas(quotas: Sequence[Json]) -> str:
    left = (f"{quota['remaining']:,.0f} {quota['unit']}" for quota in quotas[:_MOST_QUOTAS])
    return ", ".join(left) or "–"


def add_subcommand(commands: Any) -> None:
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
    return show_answer("share", options, _request_shares, share_text)


async def _request_shares(http: HttpTransport, options: argparse.Namespace) -> Json:
    answers = await ask_each_model(http, "/v1/status", options.model, applications=0)
    parts = ("shares", "quotas")
    return {
        "models": {
            name: {part: told.service[part] for part in parts if part in told.service}
            for name, told in answers.items()
        }
    }
