"""Keys and engine priorities of the shipped policies, and validation of their options."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import justitia_ray
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.fair_share import NominalShare, ServedShare
from justitia_ray.core.policies import (
    LAB_POLICIES,
    POLICIES,
    Durable,
    PolicyOptions,
    find_policy,
    parse_options,
    policy_path,
)
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.justitia import JustitiaPolicy, rank_preserving_integer
from justitia_ray.core.policies.options import COMMON
from justitia_ray.core.queue import Key
from justitia_ray.cost import COSTS, find_cost
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver, granted
from tests.exact import exact
from tests.unit.core.policies.policy_driver import PolicyDriver
from tests.user_policy import decode_seconds

ALL = [*POLICIES, *LAB_POLICIES.values()]
_TAGS = st.floats(min_value=-0.0, allow_nan=False)


@settings(derandomize=True, database=None, max_examples=300)
@given(_TAGS, _TAGS)
def test_engine_priorities_follow_the_order_of_finish_tags(one: float, other: float) -> None:
    """The engine compares integers, whose order must equal that of the tags, ties included."""
    first, second = rank_preserving_integer(one), rank_preserving_integer(other)

    assert (one < other, one == other) == (first < second, first == second)
    assert 0 <= first < 2**63


def test_close_finish_tags_have_different_engine_priorities() -> None:
    """Rounded to whole token·iterations, close tags would tie."""
    assert rank_preserving_integer(1e6) < rank_preserving_integer(1e6 + 1e-9)
    assert rank_preserving_integer(exact(1, 2)) == rank_preserving_integer(0.5)


@pytest.mark.parametrize("value", [-1.0, -1e-300, float("nan")])
def test_negative_finish_tag_has_no_engine_priority(value: float) -> None:
    """Bit patterns of negative floats are in reverse order."""
    with pytest.raises(ValueError, match="a tag must be >= 0"):
        rank_preserving_integer(value)


def _policy_key(driver: CoreDriver, name: str) -> Key:
    return driver.core.ledger.policy.key(name, driver.application(name))


def test_justitia_orders_applications_by_finish_tag_and_arrival() -> None:
    driver = CoreDriver()
    for name, cost in (("a", 10), ("b", 10), ("c", 5)):
        driver.open(name, cost)
    for name in "cba":
        driver.submit(f"{name}1", name)
    tags = {name: _policy_key(driver, name)[0] for name in "abc"}

    assert tags["c"] < tags["a"] == tags["b"]
    assert _policy_key(driver, "a") < _policy_key(driver, "b")


@pytest.mark.parametrize(
    ("policy", "priority"),
    [
        ("justitia", rank_preserving_integer(10.5)),  # the tag of the application
        ("srjf", rank_preserving_integer(10.5)),  # remaining predicted cost of the application
        ("sjf", 7),  # the predicted output tokens
        ("app-fcfs", 1),  # sequence number of the application's arrival
        ("fcfs", 77),  # the number of the grant
    ],
)
def test_grants_carry_the_queue_order_as_engine_priority(policy: str, priority: int) -> None:
    """An engine whose KV memory is full preempts the last in this order, not the last grant."""
    driver = CoreDriver(SchedulerCore(policy))
    driver.open("a", 10.5)
    driver.submit("a1", output=7)
    order = driver.core.ledger.policy

    assert priority == order.engine_priority(driver.application(), driver.inference("a1"), 77)


@pytest.mark.parametrize(("guard_iterations", "order"), [(0, ["a1", "b1"]), (10, ["b1", "a1"])])
def test_inference_that_overtook_under_the_guard_is_preempted_last(
    guard_iterations: float, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its tag alone, the engine would preempt an urgent inference first."""
    monkeypatch.setattr(ForetoldVtc, "urgent", lambda shadow, now, waits: ["b"])
    monkeypatch.setattr(ForetoldVtc, "deadline", lambda shadow, name, now: now + 7)
    driver = CoreDriver(SchedulerCore("justitia", {"guard_iterations": guard_iterations}))
    for name, cost in (("a", 155), ("b", 1550)):
        driver.open(name, cost)
        driver.submit(f"{name}1", name)
    assert order == granted(driver.pull())

    assert order == sorted(order, key=driver.core.place)
    leases = driver.core.state.leases
    priorities = [leases[driver.lease_of(name)].priority for name in order]
    assert priorities == sorted(priorities)
    assert (priorities[0] < 0) == bool(guard_iterations)


def test_fcfs_orders_inferences_by_submission_and_sequence_number() -> None:
    driver = CoreDriver(SchedulerCore("fcfs"))
    driver.open("a")
    driver.open("b")
    driver.submit("b1", "b")
    driver.submit("a1", "a")

    assert _policy_key(driver, "b") < _policy_key(driver, "a")


@pytest.mark.parametrize("policy", ALL)
def test_justitia_uses_the_served_clock_by_default(policy: str) -> None:
    """With the nominal clock, small applications wait behind large ones that use little memory."""
    options = parse_options(policy, {})

    assert ("served", "application", 0) == (
        options.clock,
        options.fairness,
        options.backfill,
    )
    assert type(SchedulerCore(policy).ledger.fair_share) is ServedShare


def test_nominal_clock_is_built_from_its_options() -> None:
    values = {"clock": "nominal", "nominal_iteration_s": 1}

    options = parse_options("justitia", values)

    assert PolicyOptions("nominal", 1.0, own=options.own) == options
    assert float is type(options.nominal_iteration_s)
    share = SchedulerCore("justitia", values).ledger.fair_share
    assert isinstance(share, NominalShare)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("lifo", {}, "policy: 'lifo' is not one of justitia, fcfs"),
        ("json:loads", {}, "nor the import path of a subclass of Policy"),
        ("nowhere:Policy", {}, "policy: 'nowhere:Policy' is not one of"),
        ("..x:Policy", {}, "policy: '..x:Policy' is not one of"),
        ("justitia", {"cost": "mean"}, "policy_options.cost: 'mean' is not one of kv_token_time"),
        ("justitia", {"cost": 1}, "policy_options.cost: 1 is not the name of a cost function"),
        (
            policy_path("mlfq"),
            {"cost": "tests.user_policy:nothing"},
            "options.cost: .* nor the import path",
        ),
        (
            policy_path("mlfq"),
            {"cost": "tests.nowhere:f"},
            "policy_options.cost: .* nor the import path",
        ),
        (
            policy_path("mlfq"),
            {"cost": "decode_seconds"},
            "policy_options.cost: .* nor the import path",
        ),
        ("justitia", {"cost": "compute", "clock": "nominal"}, "has no nominal rate"),
        ("justitia", {"fairness": "tenant", "clock": "nominal"}, "needs clock: served"),
        ("justitia", {"fairness": "tenant", "clock": "unsettled"}, "'tenant' needs clock: served"),
        ("fcfs", {"backfill": -1}, "backfill: -1 must be a whole number of at least 0 or unlim"),
        ("fcfs", {"backfill": True}, "backfill: True must be a whole number"),
        (
            policy_path("rpm"),
            {"requests_per_minute": "unlimited"},
            "'unlimited' must be a whole .* least 1$",
        ),
        ("rpm", {"requests_per_minute": 0}, "0 must be a whole number of at least 1"),
        (
            policy_path("drr"),
            {"quantum": 0},
            "policy_options.quantum: 0 must be finite and at least",
        ),
        (
            policy_path("mlfq"),
            {"quantum": 0},
            "policy_options.quantum: 0 must be finite and at least",
        ),
        (
            policy_path("mlfq"),
            {"quantum": 1e-7},
            "policy_options.quantum: 1e-07 must be finite and at least",
        ),
        ("mlfq", {"quantum": "10"}, "policy_options.quantum: '10' is not a number"),
        ("vtc", {"unit": "user"}, "'user' is not one of application, tenant"),
        (policy_path("vtc-noisy"), {"seed": -1}, "seed: -1 must be a whole number of at least 0"),
        ("vtc", {"seed": 1}, "'seed' is not one of"),
        ("fcfs", {"kv_share_cap": 0.4}, "leave out kv_share_cap: this release has no such"),
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
def test_invalid_option_is_named_with_the_allowed_values(
    policy: str, options: dict[str, object], message: str
) -> None:
    """A typing error in the configuration must not silently select the default."""
    with pytest.raises(ConfigError, match=message):
        parse_options(policy_path(policy), options)


@pytest.mark.parametrize(("name", "path"), LAB_POLICIES.items())
def test_error_of_a_policy_moved_to_the_lab_names_its_import_path(name: str, path: str) -> None:
    """A configuration of an earlier release may still name the policy."""
    with pytest.raises(
        ConfigError, match=f"^policy: '{name}' is a baseline of the lab: .* {path}$"
    ):
        parse_options(name, {})
    assert SchedulerCore(path).ledger.policy.options == parse_options(path, {})


def test_stored_records_with_another_clock_fairness_or_cost_are_distinguished() -> None:
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


def test_policy_options_that_keep_the_clock_are_recognised() -> None:
    """Only a clock that moves differently is restarted when options change."""
    served, nominal = PolicyOptions(), PolicyOptions("nominal", 0.03)

    assert served.same_accounts(PolicyOptions("served", 1.0))
    assert not served.same_accounts(nominal)
    assert not nominal.same_accounts(PolicyOptions("nominal", 1.0))
    assert nominal.same_accounts(PolicyOptions("nominal", 0.03))


_CLIENT_POLICIES = [name for name in ALL if "unit" in parse_options(name, {}).own]


@pytest.mark.parametrize("policy", ALL)
def test_application_may_end_before_its_first_grant(policy: str) -> None:
    """A caller may give up before any grant, so a policy must not rely on one."""
    driver = CoreDriver(SchedulerCore(policy))
    driver.open("silent")
    driver.open("a")
    driver.submit("a1", "a")
    driver.handle(ev.InferenceCancelled("a1"))
    for name in ("silent", "a"):
        driver.handle(ev.ApplicationClosed(name))

    assert {} == driver.core.state.applications


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_accepts_the_end_of_an_inference_granted_under_another(policy: str) -> None:
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
def test_state_of_every_policy_is_restored_unchanged_at_any_time(policy: str) -> None:
    """No field is lost before a submission, while it waits or while it runs."""
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
        state = driver.record()["clock"]["counted"]
        other = find_policy(policy)(driver.core.ledger.policy.context)
        assert isinstance(other, Durable)
        other.restore(state)

        assert state["counted"] == json.loads(json.dumps(other.state()))["counted"]


POLICY = "tests.user_policy:BudgetPolicy"
COST = "tests.user_policy:decode_seconds"
PAGE = (Path(justitia_ray.__file__).parent / "core" / "policies" / "README.md").read_text()
_POINTS = ("Source", "Unit of fairness", "Charges", "Guarantees", "Departs from the source")
LAB_PAGE = (Path(justitia_ray.__file__).parent / "lab" / "policies" / "README.md").read_text()
OWN_OPTIONS = sorted({option.name for name in POLICIES for option in find_policy(name).OPTIONS})
LAB_OPTIONS = sorted(
    {option.name for path in LAB_POLICIES.values() for option in find_policy(path).OPTIONS}
)


def test_policy_is_found_by_its_import_path() -> None:
    """A custom order must not require a change of this package."""
    driver = PolicyDriver(POLICY, {"budget": 0.5})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["a2"] == driver.step(make={"a1": 10}, finish=["a1"])
    assert ["b1"] == driver.step(make={"a2": 7}, finish=["a2"])
    driver.submit("a3")
    assert ["b2"] == driver.step(make={"b1": 1}, finish=["b1"])
    assert ["a3"] == driver.step(make={"b2": 1}, finish=["b2"])


def test_custom_policy_keeps_its_state_over_a_scheduler_restart() -> None:
    """The methods `state` and `restore` are called as for any other policy."""
    driver = PolicyDriver(POLICY, {"budget": 0.5})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")
    driver.step()
    driver.step(make={"a1": 17})
    driver.restart()

    assert driver.state() == {"spent": {"a": pytest.approx(17 * 0.03)}}
    assert ["b1"] == driver.step(finish=["a1"])


def test_documented_custom_policy_forgets_ended_applications() -> None:
    """The documented example must not leak memory."""
    driver = PolicyDriver(POLICY)
    driver.open_and_submit("a", "a1")
    driver.step()
    driver.step(make={"a1": 1})
    driver.handle(ev.ApplicationCancelled("a"))
    driver.last_word(driver.holds["a1"], output=1)

    assert {"spent": {}} == driver.state()


def test_running_scheduler_changes_to_a_custom_policy() -> None:
    driver = PolicyDriver("fcfs")
    driver.open_and_submit("b")
    driver.open_and_submit("a", "a1")
    driver.submit("b1", "b")
    driver.handle(ev.PolicyChanged(POLICY, (("budget", 1),)))

    assert ["b1", "a1"] == driver.drain()


class FailingPolicy(JustitiaPolicy):
    """Policy whose constructor raises an error."""

    def __init__(self, context: PolicyContext) -> None:
        raise RuntimeError("no file of weights")


@pytest.mark.parametrize("options", [(), (("fairness", "tenant"),)], ids=["stay", "begin anew"])
def test_change_to_a_policy_whose_constructor_fails_keeps_the_old_policy(
    options: tuple[tuple[str, Any], ...],
) -> None:
    """A partial change would leave the accounts of the old policy with the new policy."""
    driver = PolicyDriver("justitia")
    driver.open_and_submit("b", "b1")
    driver.open_and_submit("a", "a1")
    ledger = driver.core.ledger
    before = ledger.policy_name, ledger.options, ledger.fair_share
    with pytest.raises(RuntimeError, match="no file of weights"):
        driver.handle(ev.PolicyChanged(f"{__name__}:FailingPolicy", options))

    assert before == (ledger.policy_name, ledger.options, ledger.fair_share)
    assert type(ledger.policy) is JustitiaPolicy
    assert ["b1", "a1"] == driver.drain()


def test_custom_policy_has_separate_and_common_options() -> None:
    """Options of a custom policy are validated, with an error that lists the valid ones."""
    options = PolicyDriver(POLICY, {"backfill": 3}).core.ledger.options

    assert (3, COST, 10.0) == (options.backfill, options.cost, options.own["budget"])
    with pytest.raises(ConfigError, match=r"policy_options.budget: 0 must be finite and above 0"):
        PolicyDriver(POLICY, {"budget": 0})
    with pytest.raises(ConfigError, match=r"'limit' is not one of .*backfill, budget"):
        PolicyDriver(POLICY, {"limit": 1})


def test_cost_function_is_found_by_its_import_path() -> None:
    assert find_cost(COST) is decode_seconds
    driver = PolicyDriver("mlfq", {"cost": COST, "quantum": 1})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")

    assert ["a1"] == driver.step()
    assert ["b1"] == driver.step(make={"a1": 40}, finish=["a1"])


def test_justitia_charges_by_a_custom_cost_function() -> None:
    """Virtual time then has the unit of the cost function, here seconds."""
    driver = PolicyDriver("justitia", {"cost": COST})
    driver.handle(ev.ApplicationArrived("a", "class", "t", 1, 100, "i0", predicted_cost=3.0))
    driver.submit("a1")
    driver.step()
    driver.step(make={"a1": 10})

    assert 0.3 == pytest.approx(driver.core.ledger.fair_share.clock.virtual_time)
    assert 3.0 == pytest.approx(driver.core.tag("a"))


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"clock": "nominal"}, "clock: 'nominal' is not one of served, with which .* works"),
        ({"order": "shortest"}, "order: 'shortest' is not one of finish, sgps"),
        ({"clock": "unsettled"}, "clock: 'unsettled' is not one of served, with which .* works"),
        ({"guard_iterations": -1}, "guard_iterations: -1 must be finite and at least 0"),
    ],
)
def test_invalid_option_of_the_guarded_policy_is_refused_by_name(
    options: dict[str, object], needed: str
) -> None:
    with pytest.raises(ConfigError, match=f"^policy_options.{needed}$"):
        parse_options("justitia-guarded", options)


@pytest.mark.parametrize(
    "name", [*POLICIES, *(option.name for option in COMMON), *OWN_OPTIONS, *COSTS]
)
def test_policies_page_names_every_policy_option_and_cost_function(name: str) -> None:
    """A policy, option or cost that is not on the page cannot be found."""
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(
    "name", [*LAB_POLICIES, *LAB_OPTIONS, *(p.rsplit(".", 1)[1] for p in LAB_POLICIES.values())]
)
def test_lab_page_names_every_lab_policy_and_option(name: str) -> None:
    """A configuration names a policy of the lab by the import path on that page."""
    assert f"`{name}`" in LAB_PAGE


@pytest.mark.parametrize("policy", [*POLICIES, *LAB_POLICIES])
def test_policies_page_has_the_same_headings_for_every_policy(policy: str) -> None:
    """Equal headings make policies comparable."""
    sections = re.split(r"^### ", f"{PAGE}\n{LAB_PAGE}", flags=re.MULTILINE)
    (section,) = (text for text in sections if f"`{policy}`" in text.splitlines()[0])

    for point in _POINTS:
        assert re.search(rf"^- \*\*{point}(\.\*\*|\*\*:?) \S.{{4}}", section, re.MULTILINE), point


def test_policy_example_on_the_page_equals_the_tested_code() -> None:
    """Code on a page breaks unnoticed unless a test runs it."""
    source = (Path(__file__).parents[2] / "user_policy.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

    assert len(blocks) == 2
    for block in blocks:
        assert block in source


def test_policy_example_keeps_the_invariants_of_the_core(core: CoreDriver) -> None:
    """Keys must be unique and agree with the queue after every event."""
    core.handle(ev.PolicyChanged(POLICY))
    for name in "abc":
        core.open(name)
        core.submit(f"{name}1", name)
    policy = core.core.ledger.policy

    assert 3 == len({policy.key(name, core.application(name)) for name in "abc"})


def test_error_of_a_failing_policy_module_names_the_policy_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_policy.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'failing_policy:Own' cannot be imported: ZeroDivision"):
        find_policy("failing_policy:Own")
