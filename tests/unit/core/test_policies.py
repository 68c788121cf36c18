"""Keys and engine priorities of the shipped policies, and the checks of their options."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.fair_share import ServedShare
from justitia_ray.core.policies import POLICIES, PolicyOptions, find_policy, parse_options
from justitia_ray.core.policies.base import Key
from justitia_ray.core.policies.justitia import rank_preserving_integer
from justitia_ray.core.unsettled_share import NominalShare
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver, granted
from tests.exact import exact

_TAGS = st.floats(min_value=-0.0, allow_nan=False)


@settings(derandomize=True, database=None, max_examples=300)
@given(_TAGS, _TAGS)
def test_priority_has_the_rank_of_the_tag(one: float, other: float) -> None:
    """The engine compares integers; its order must be ours, ties included."""
    first, second = rank_preserving_integer(one), rank_preserving_integer(other)

    assert (one < other, one == other) == (first < second, first == second)
    assert 0 <= first < 2**63


def test_priority_of_neighbouring_tags_differs() -> None:
    """Rounding to whole token·iterations would make ties of near tags."""
    assert rank_preserving_integer(1e6) < rank_preserving_integer(1e6 + 1e-9)
    assert rank_preserving_integer(exact(1, 2)) == rank_preserving_integer(0.5)


@pytest.mark.parametrize("value", [-1.0, -1e-300, float("nan")])
def test_priority_of_no_tag_is_refused(value: float) -> None:
    """The bits of a negative float fall as it rises."""
    with pytest.raises(ValueError, match="a tag must be >= 0"):
        rank_preserving_integer(value)


def _key(driver: CoreDriver, name: str) -> Key:
    return driver.core.order.policy.key(name, driver.application(name))


def test_justitia_orders_by_tag_and_then_by_arrival() -> None:
    """Ties go to the application that was first seen, whatever it submitted when."""
    driver = CoreDriver()
    for name, cost in (("a", 10), ("b", 10), ("c", 5)):
        driver.open(name, cost)
    for name in "cba":
        driver.submit(f"{name}1", name)
    tags = {name: _key(driver, name)[0] for name in "abc"}

    assert tags["c"] < tags["a"] == tags["b"]
    assert _key(driver, "a") < _key(driver, "b")
    policy, inference = driver.core.order.policy, driver.inference("c1")
    priority = policy.engine_priority(driver.application("c"), inference, 77)
    assert rank_preserving_integer(tags["c"]) == priority


def test_fcfs_orders_by_submission_and_then_by_sequence() -> None:
    """The application does not matter; the engine serves in the order of the grants."""
    driver = CoreDriver(SchedulerCore("fcfs"))
    driver.open("a")
    driver.open("b")
    driver.submit("b1", "b")
    driver.submit("a1", "a")
    policy = driver.core.order.policy

    assert _key(driver, "b") < _key(driver, "a")
    assert 77 == policy.engine_priority(driver.application("a"), driver.inference("a1"), 77)


@pytest.mark.parametrize("policy", POLICIES)
def test_options_default_to_the_served_clock(policy: str) -> None:
    """With the nominal clock small applications queue behind a large one that cannot use M."""
    options = parse_options(policy, {})

    assert ("served", "application", 0, 1.0) == (
        options.clock,
        options.fairness,
        options.backfill,
        options.kv_share_cap,
    )
    assert type(SchedulerCore(policy).order.fair_share) is ServedShare


def test_nominal_clock_is_built_from_its_options() -> None:
    """An int of seconds is a number too."""
    values = {"clock": "nominal", "nominal_iteration_s": 1}

    options = parse_options("justitia", values)

    assert PolicyOptions("nominal", 1.0) == options
    assert float is type(options.nominal_iteration_s)
    share = SchedulerCore("justitia", values).order.fair_share
    assert isinstance(share, NominalShare)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("lifo", {}, "policy: 'lifo' is not one of justitia, fcfs"),
        ("json:loads", {}, "nor the import path of a subclass of Policy"),
        ("nowhere:Policy", {}, "policy: 'nowhere:Policy' is not one of"),
        ("justitia", {"cost": "mean"}, "policy_options.cost: 'mean' is not one of kv_token_time"),
        ("justitia", {"cost": 1}, "policy_options.cost: 1 is not the name of a cost function"),
        ("justitia", {"cost": "compute", "clock": "nominal"}, "has no nominal rate"),
        ("justitia", {"fairness": "tenant", "clock": "nominal"}, "needs clock: served"),
        ("fcfs", {"backfill": -1}, "backfill: -1 must be a whole number of at least 0 or unlim"),
        ("fcfs", {"backfill": True}, "backfill: True must be a whole number"),
        ("rpm", {"requests_per_minute": "unlimited"}, "'unlimited' must be a whole .* least 1$"),
        ("fcfs", {"kv_share_cap": 0.4}, "0.4 must be finite and at least 0.5 and at most 1"),
        ("fcfs", {"clok": "served"}, "policy_options: 'clok' is not one of clock"),
        (
            "fcfs",
            {"clock": "wall"},
            "policy_options.clock: 'wall' is not one of served, nominal, unsettled",
        ),
        ("fcfs", {"nominal_iteration_s": "1"}, "nominal_iteration_s: '1' is not a number"),
        ("fcfs", {"nominal_iteration_s": True}, "nominal_iteration_s: True is not a number"),
        ("fcfs", {"nominal_iteration_s": 0}, "nominal_iteration_s: 0 must be finite and above 0"),
        ("fcfs", {"nominal_iteration_s": float("inf")}, "inf must be finite"),
        ("fcfs", {"nominal_iteration_s": 10**400}, "0 must be finite"),
        ("fcfs", {"nominal_iteration_s": float("nan")}, "nan must be finite"),
    ],
)
def test_wrong_option_is_named_with_what_is_allowed(
    policy: str, options: dict[str, object], message: str
) -> None:
    """A typo in the configuration must not silently mean the default."""
    with pytest.raises(ConfigError, match=message):
        parse_options(policy, options)


def test_kinds_of_accounts_are_told_apart() -> None:
    """Records of one kind must not be taken for those of another; the default stays as it was."""
    kinds = [
        PolicyOptions(clock=clock, fairness=fairness, accounts_cost=cost).accounts_kind
        for clock, fairness, cost in (
            ("served", "application", "kv_token_time"),
            ("nominal", "application", "kv_token_time"),
            ("served", "tenant", "kv_token_time"),
            ("served", "application", "compute"),
            ("served", "tenant", "compute"),
        )
    ]

    assert ["served", "nominal"] == kinds[:2]
    assert len(kinds) == len(set(kinds))


def test_options_of_the_same_clock_are_recognised() -> None:
    """Only a clock that moves otherwise is started anew when options change."""
    served, nominal = PolicyOptions(), PolicyOptions("nominal", 0.03)

    assert served.same_accounts(PolicyOptions("served", 1.0))
    assert not served.same_accounts(nominal)
    assert not nominal.same_accounts(PolicyOptions("nominal", 1.0))
    assert nominal.same_accounts(PolicyOptions("nominal", 0.03))


_CLIENT_POLICIES = [name for name in POLICIES if "unit" in parse_options(name, {}).own]


@pytest.mark.parametrize("policy", POLICIES)
def test_application_may_end_before_anything_of_it_is_granted(policy: str) -> None:
    """A caller gives up, or never submits: no policy may have counted on a grant before."""
    driver = CoreDriver(SchedulerCore(policy))
    driver.open("silent")
    driver.open("a")
    driver.submit("a1", "a")
    driver.handle(ev.InferenceCancelled("a1"))
    for name in ("silent", "a"):
        driver.handle(ev.ApplicationClosed(name))

    assert {} == driver.core.state.applications


@pytest.mark.parametrize("policy", POLICIES)
def test_inference_granted_under_another_policy_may_end_under_this_one(policy: str) -> None:
    """The policy hears of it for the first time; its application may have others waiting, or not.

    Its client is not known either, unless something of it waits.
    """
    driver = CoreDriver(SchedulerCore("app-fcfs"))
    for name in "ab":
        driver.open(name)
        driver.submit(f"{name}1", name)
    driver.pull(seats=2)
    driver.submit("a2", "a")
    driver.handle(ev.PolicyChanged(policy))
    ends = {driver.lease_of(name): 3 for name in ("a1", "b1")}

    assert ["a2"] == granted(driver.pull(finished=ends, seats=1))
    assert {"a2"} == driver.core.state.inferences.keys()


@pytest.mark.parametrize("policy", _CLIENT_POLICIES)
def test_state_in_the_middle_is_taken_over_as_it_was(policy: str) -> None:
    """Before anything has been submitted, while it waits, while it runs: no field is lost."""
    driver = CoreDriver(SchedulerCore(policy))
    steps: list[Callable[[], object]] = [
        lambda: driver.open("a"),
        lambda: [driver.submit(name, "a") for name in ("a1", "a2")],
        lambda: driver.pull(seats=1),
        lambda: driver.pull(progress={"1": 3}, seats=2),
        lambda: driver.pull(finished={"1": 4}, seats=1),
    ]
    for step in steps:
        step()
        state = json.loads(json.dumps(driver.core.order.policy.state()))
        other = find_policy(policy)(driver.core.order.policy.context)
        other.restore(state)

        assert state["counted"] == json.loads(json.dumps(other.state()))["counted"]
