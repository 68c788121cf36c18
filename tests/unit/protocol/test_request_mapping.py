"""Model names and reasoning efforts of other services, mapped by a model's operator."""

import json
from typing import Any

import pytest

from justitia_ray.protocol.request_mapping import RequestMapping, best_alias, listed_aliases

_ALIASES = ("gpt-4o", "claude-*", "claude-haiku-*")
_MAPPING = RequestMapping(("m", "adapter"), _ALIASES, {"minimal": "low", "max": "high"})


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-mini", None),
        ("claude-haiku-4-5", "claude-haiku-*"),
        ("claude-sonnet-4-5", "claude-*"),
        ("Claude-sonnet", None),
        ("claude-*", "claude-*"),
    ],
)
def test_most_specific_model_alias_wins(name: str, alias: str | None) -> None:
    assert alias == best_alias(name, _ALIASES)


def test_alias_star_matches_every_model_name() -> None:
    assert "*" == best_alias("anything", ("*", "gpt-*"))


def test_alias_patterns_are_not_in_the_model_list() -> None:
    """Clients pick names from the model list and send them literally."""
    assert ("gpt-4o",) == listed_aliases(_ALIASES)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"model": "gpt-4o"}, {"model": "m"}),
        (
            {"model": "gpt-4o", "reasoning_effort": "max"},
            {"model": "m", "reasoning_effort": "high"},
        ),
        ({"model": "m", "reasoning": {"effort": "minimal", "summary": "auto"}}, None),
        ({"output_config": {"effort": "max"}}, {"output_config": {"effort": "high"}}),
    ],
)
def test_model_alias_mapping_rewrites_the_request(
    sent: dict[str, Any], read: dict[str, Any] | None
) -> None:
    fields = json.loads(json.dumps(sent))
    body = _MAPPING.map_request(fields, json.dumps(sent).encode())

    expected = read or {"model": "m", "reasoning": {"effort": "low", "summary": "auto"}}
    assert expected == fields == json.loads(body)


@pytest.mark.parametrize(
    "sent",
    [
        {"model": "m"},
        {"model": "adapter", "reasoning_effort": "low"},
        {"model": "unknown"},
        {"model": 3},
        {"reasoning": "max", "output_config": ["max"], "reasoning_effort": {}},
    ],
)
def test_request_that_needs_no_mapping_keeps_its_bytes(sent: dict[str, Any]) -> None:
    body = json.dumps(sent, indent=3).encode()

    assert body is _MAPPING.map_request(dict(sent), body)
