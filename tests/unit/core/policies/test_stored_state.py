"""Stored counts of policies: those of ended applications are dropped, damaged ones refused."""

from typing import Any

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.policies import Durable
from tests.unit.core.policies.policy_driver import PolicyDriver

_PLACE = {"index": 1, "balance": 0, "round": 0, "at_turn": False, "waits": True}
_COUNTER = {"value": 0, "first_seen": 1, "weight": 1, "opened": 1}


def _vtc_counters(last_left: str | None = None, **damage: Any) -> dict[str, Any]:
    """Return VTC's state, with a damaged record of client a."""
    counters = {"a": _COUNTER | damage}
    return {"counters": counters, "last_left": last_left, "level_left": 0}


def _counters_of_ended_application(policy: str, unit: str) -> dict[str, Any]:
    """Return a policy's counters of an ended application that generated 3 tokens."""
    driver = PolicyDriver(policy, {"unit": unit})
    driver.open_and_submit("a", "a1", "a2", tenant="t")
    driver.step()
    driver.step(make={"a1": 3}, finish=["a1"])
    driver.handle(ev.ApplicationCancelled("a"))
    driver.last_word(driver.holds["a2"])
    counted: dict[str, Any] = driver.state()["counted"]
    return counted


@pytest.mark.parametrize(
    ("policy", "of_application", "of_tenant"),
    [
        ("rpm", {"used": {}, "inferences": {}}, {"used": {"t": [0, 2]}, "inferences": {}}),
        (
            "mlfq",
            {"attained": {}, "charged": {}},
            {"attained": {"t": 10 * 3 + 6}, "charged": {}},
        ),
        (
            "plas",
            {"first_seen": {}, "finished": {}, "fixed": {}},
            {"first_seen": {"t": 1}, "finished": {"t": 10 * 3 + 6}, "fixed": {}},
        ),
    ],
)
def test_restart_keeps_counters_of_tenants_and_drops_ended_applications(
    policy: str, of_application: dict[str, Any], of_tenant: dict[str, Any]
) -> None:
    """A tenant may return, and needs its counter then."""
    assert of_application == _counters_of_ended_application(policy, "application")
    assert of_tenant == _counters_of_ended_application(policy, "tenant")


def test_restart_keeps_the_turn_and_deficit_of_a_tenant() -> None:
    application, tenant = (
        _counters_of_ended_application("drr", "application"),
        _counters_of_ended_application("drr", "tenant"),
    )

    assert ({}, {}, {}) == (application["ring"], application["charged"], tenant["charged"])
    assert 256 - 2 * 10 - 2 * 3 == tenant["ring"]["t"]["balance"]


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [
        ("rpm", "used", [1]),
        ("rpm", "used", {"a": 1}),
        ("rpm", "used", {"a": [1]}),
        ("rpm", "used", {"a": [0, -1]}),
        ("rpm", "inferences", {"a": {"a1": 0.5}}),
        ("rpm", "inferences", {"a": [1]}),
        ("mlfq", "attained", [1]),
        ("mlfq", "attained", {"a": "1"}),
        ("mlfq", "attained", {"a": float("nan")}),
        ("mlfq", "charged", {"a": 1}),
        ("mlfq", "charged", {"a": {"a1": None}}),
        ("plas", "first_seen", {"a": 0.5}),
        ("plas", "finished", {"a": float("inf")}),
        ("plas", "finished", None),
        ("plas", "fixed", {"a": 1}),
        ("plas", "fixed", {"a": {"a1": True}}),
        ("drr", "pointer", [0]),
        ("drr", "pointer", [0, -1]),
        ("drr", "charged", [1]),
        ("drr", "ring", {"a": 1}),
        ("drr", "ring", {"a": {}}),
        ("drr", "ring", {"a": _PLACE | {"index": -1}}),
        ("drr", "ring", {"a": _PLACE | {"balance": None}}),
        ("drr", "ring", {"a": _PLACE | {"round": 0.5}}),
        ("drr", "ring", {"a": _PLACE | {"at_turn": 1}}),
        ("drr", "ring", {"a": _PLACE | {"waits": 0}}),
        ("vtc", "bills", []),
        ("vtc", "bills", {"a": 1}),
        ("vtc", "bills", {"a": {"a1": 1}}),
        ("vtc", "bills", {"a": {"a1": [1, 2, 3]}}),
        ("vtc", "bills", {"a": {"a1": ["10", 0, 0, 1]}}),
        ("vtc", "bills", {"a": {"a1": [10, 0.5, 0, 1]}}),
        ("vtc", "bills", {"a": {"a1": [10, 0, -1, 1]}}),
        ("vtc", "bills", {"a": {"a1": [10, 0, 0, 0]}}),
        ("vtc", "clients", None),
        ("vtc", "clients", _vtc_counters() | {"counters": []}),
        ("vtc", "clients", _vtc_counters() | {"counters": {"a": None}}),
        ("vtc", "clients", _vtc_counters() | {"level_left": "0"}),
        ("vtc", "clients", _vtc_counters(value=True)),
        ("vtc", "clients", _vtc_counters(value=float("inf"))),
        ("vtc", "clients", _vtc_counters(first_seen=True)),
        ("vtc", "clients", _vtc_counters(weight=-1)),
        ("vtc", "waiting", None),
        ("vtc-predict", "outputs", None),
        ("vtc-predict", "outputs", []),
        ("vtc-predict", "outputs", {"a": 1}),
        ("vtc-predict", "outputs", {"a": [1]}),
        ("vtc-predict", "outputs", {"a": [[1]]}),
        ("vtc-predict", "outputs", {"a": [[-1, 1]]}),
    ],
)
def test_damaged_stored_counters_of_a_policy_are_refused(
    policy: str, field: str, value: object
) -> None:
    """A scheduler that does not start is better than silently wrong counts."""
    restored = PolicyDriver(policy).core.ledger.policy
    assert isinstance(restored, Durable)
    restored.restore(good := restored.state())
    good["counted"][field] = value

    with pytest.raises((KeyError, TypeError, ValueError)):
        restored.restore(good)


@pytest.mark.parametrize(
    ("policy", "field", "value", "message"),
    [
        ("drr", "ring", {"a": _PLACE | {"waits": "no"}}, "ring: a: waits is 'no': true or false"),
        ("vtc", "clients", _vtc_counters(last_left="z"), "last_left: 'z' has no counter"),
        ("vtc", "waiting", ["z"], "waiting: 'z' has no"),
        ("vtc-predict", "outputs", {"a": [[5, 0]]}, r"\[5, 0\] has no sequence"),
    ],
)
def test_error_of_a_damaged_counter_names_its_client(
    policy: str, field: str, value: object, message: str
) -> None:
    restored = PolicyDriver(policy).core.ledger.policy
    assert isinstance(restored, Durable)
    state = restored.state()
    state["counted"][field] = value

    with pytest.raises(ValueError, match=message):
        restored.restore(state)
