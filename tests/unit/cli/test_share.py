"""`justitia share`: the tenant tree as a table."""

import json
from typing import Any

import pytest

from justitia_ray.cli.main import main
from justitia_ray.cli.share import share_text
from tests.unit.cli.noting_service import recording_service


def _share_of_node(path: str, **other: Any) -> dict[str, Any]:
    about = {"weight": 1.0, "fair_share": 0.5, "used": 0.25, "borrowed": 0.0}
    return {"node": path, "guaranteed": 0.0, "waiting": 0, "running": 0, **about, **other}


SHARES = [
    _share_of_node(
        "acme", weight=3.0, fair_share=0.75, used=0.8, borrowed=0.05, waiting=1_200, running=9
    ),
    _share_of_node("acme/search", running=9),
    _share_of_node("beta", weight=None, fair_share=None),
]


def test_tenant_tree_is_printed_as_a_table() -> None:
    quotas = {"acme": [{"remaining": 1_500.0, "unit": "tokens"}]}
    text = share_text({"models": {"m": {"shares": SHARES, "quotas": quotas}}})

    assert text.splitlines() == [
        "model m: shares of its replicas alone; quotas are over all models",
        "",
        "node      weight   fair   used  borrowed    quota left  waits  runs",
        "acme           3  75.0%  80.0%      5.0%  1,500 tokens  1,200     9",
        "  search       1  50.0%  25.0%         –             –      0     9",
        "beta           –      –  25.0%         –             –      0     0",
    ]


def test_model_without_live_applications_is_reported() -> None:
    """The model's scheduler may still be starting, or be of an earlier version."""
    assert share_text({"models": {"m": {}}}).endswith("nothing is live")


def test_share_command_requests_the_status_and_prints_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = {"model": "m", "ready": True, "shares": SHARES}
    with recording_service((200, answer)) as url:
        status = main(["share", "--url", url, "--json"])

    assert status == 0
    assert json.loads(capsys.readouterr().out) == {"models": {"m": {"shares": SHARES}}}
