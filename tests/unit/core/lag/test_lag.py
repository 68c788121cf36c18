"""Lags by hand: an application behind another, its bound, and what is known after a change."""

from collections.abc import Iterator
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Lag
from justitia_ray.core.invariants import check
from justitia_ray.core.lag.bound import ApplicationBound, DelayBound
from justitia_ray.core.lag.meter import LagMeter
from justitia_ray.core.tenants import TIERS, KvShare, TenantNode, TenantTree, Tier
from tests.core_driver import PATIENT, CoreDriver

_GIANT = 931
"""KV token-time of a large call with 39 prompt and 19 output tokens: 39·19 + 19·20/2."""
_MOUSE = 2
"""KV token-time of a small call with 1 prompt and 1 output token."""


@pytest.fixture
def patient_core() -> Iterator[CoreDriver]:
    """Yield a core whose replicas may be silent for a long time."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT, meter=LagMeter))
    yield driver
    check(driver.core)


def _lag_of_end(actions: list[Action]) -> Lag | None:
    (ended,) = (action for action in actions if isinstance(action, EndApplication))
    return ended.lag


def _pull_one_seat(driver: CoreDriver, replica_id: str = "r0", **reports: Any) -> list[Action]:
    """Let a replica with one seat, and room for the large call, report and ask for work."""
    return driver.pull(replica_id, kv=58, seats=1, **reports)


def _start_giant(driver: CoreDriver) -> None:
    """Run a large call for one iteration; then a small one arrives that does not fit."""
    driver.open("giant", _GIANT)
    driver.submit("g", "giant", prompt=39, output=19)
    _pull_one_seat(driver)
    driver.handle(ev.ApplicationClosed("giant"))
    driver.now += 1
    _pull_one_seat(driver, progress={"1": 1})
    driver.open("mouse", _MOUSE)
    driver.submit("m", "mouse", prompt=1, output=1)
    driver.handle(ev.ApplicationClosed("mouse"))


def _finish_giant_then_mouse(driver: CoreDriver) -> list[Action]:
    """End the large call in two reports, 9 s apart, and then run the small one."""
    driver.now += 9
    _pull_one_seat(driver, progress={"1": 10})
    driver.now += 9
    _pull_one_seat(driver, finished={"1": 19})
    driver.now += 1
    return _pull_one_seat(driver, finished={"2": 1})


def test_lag_is_the_service_from_the_gps_finish_to_the_last_start(patient_core: CoreDriver) -> None:
    _start_giant(patient_core)
    lag = _lag_of_end(_finish_giant_then_mouse(patient_core))

    assert lag is not None
    assert (891, 18.0, 931 + 405) == (lag.kv_token_time, lag.seconds, lag.bound_kv_token_time)
    assert lag.bound_s == pytest.approx(18 + (931 + 405 - 891) * 19 / 893)


def test_lag_of_a_live_application_grows_while_it_waits(patient_core: CoreDriver) -> None:
    _start_giant(patient_core)
    before = patient_core.core.lag("mouse")
    patient_core.now += 9
    _pull_one_seat(patient_core, progress={"1": 10})
    after = patient_core.core.lag("mouse")
    started = patient_core.core.lag("giant")

    assert before == Lag(0, 0.0, 931, None)
    assert after is not None
    assert (405, 9.0, 1336) == (after.kv_token_time, after.seconds, after.bound_kv_token_time)
    assert started is not None
    assert (-445, -10.0) == (started.kv_token_time, started.seconds)


def test_application_that_never_started_has_no_lag(patient_core: CoreDriver) -> None:
    """There is no last start to measure from."""
    patient_core.open("a", 100)

    assert patient_core.core.lag("a") is None
    assert _lag_of_end(patient_core.handle(ev.ApplicationCancelled("a"))) is None
    with pytest.raises(KeyError):
        patient_core.core.lag("a")


def test_requeued_inference_does_not_count_as_work_in_flight(patient_core: CoreDriver) -> None:
    _start_giant(patient_core)
    patient_core.handle(ev.ReplicaLost("r0"))
    lag = patient_core.core.lag("giant")
    _pull_one_seat(patient_core, "r1")
    patient_core.now += 1
    mouse = _lag_of_end(_pull_one_seat(patient_core, "r1", finished={"2": 1}))

    assert lag is not None
    assert (0, 931 + 40) == (lag.kv_token_time, lag.bound_kv_token_time)
    assert mouse == Lag(-2, -1.0, 931, 465.5)


def test_weight_change_restarts_the_lag(patient_core: CoreDriver) -> None:
    """Service before the weight change does not count against the bound."""
    _start_giant(patient_core)
    patient_core.handle(ev.WeightChanged("mouse", 2))
    lag = _lag_of_end(_finish_giant_then_mouse(patient_core))

    assert lag is not None
    assert (891, 1336) == (lag.kv_token_time, lag.bound_kv_token_time)


def test_known_output_lengths_bound_the_work_in_flight(patient_core: CoreDriver) -> None:
    """A simulator knows the true length of an inference, a service only its maximum."""
    patient_core.open("a", _GIANT)
    for name, length in (("x", 19), ("y", None)):
        patient_core.handle(
            ev.InferenceSubmitted(
                name, "a", name, "i0", 39, 19, 100, true_output_tokens=length
            )
        )  # fmt: skip
    _pull_one_seat(patient_core)
    patient_core.handle(ev.InferenceCancelled("x"))
    patient_core.open("b", _MOUSE)
    patient_core.submit("m", "b", prompt=1, output=1)
    lag = patient_core.core.lag("b")

    assert lag is not None
    assert lag.bound_kv_token_time == 39 * 100 + 100 * 101 // 2


def test_application_in_a_tool_gap_is_withdrawn_once(patient_core: CoreDriver) -> None:
    patient_core.open("a", 310)
    patient_core.submit("x", "a")
    _pull_one_seat(patient_core)
    patient_core.now += 1
    _pull_one_seat(patient_core, finished={"1": 10})
    lag = _lag_of_end(patient_core.handle(ev.ApplicationClosed("a")))

    assert patient_core.core.ledger.fair_share.clock.virtual_time == 155
    assert lag == Lag(0, 0.0, 155, 1.0)


@pytest.mark.parametrize("policy", ["fcfs", "justitia"])
def test_waiting_applications_lose_their_lag_bound_at_a_policy_change(
    patient_core: CoreDriver, policy: str
) -> None:
    _start_giant(patient_core)
    patient_core.handle(ev.PolicyChanged("fcfs"))
    patient_core.handle(ev.PolicyChanged(policy))
    lag = _lag_of_end(_finish_giant_then_mouse(patient_core))
    patient_core.open("next", _MOUSE)
    patient_core.submit("n", "next", prompt=1, output=1)
    patient_core.handle(ev.ApplicationClosed("next"))
    after = _lag_of_end(_pull_one_seat(patient_core, finished={"3": 1}))

    assert lag is not None
    assert (891, None, None) == (lag.kv_token_time, lag.bound_kv_token_time, lag.bound_s)
    assert after is not None
    assert (after.bound_kv_token_time is not None) == (policy == "justitia")


_OTHER_ACCOUNTS: list[dict[str, Any]] = [
    {"clock": "nominal"},
    {"cost": "compute"},
    {"fairness": "tenant"},
]


@pytest.mark.parametrize("options", _OTHER_ACCOUNTS)
def test_lag_meter_keeps_its_accounts_after_a_policy_change(
    patient_core: CoreDriver, options: dict[str, Any]
) -> None:
    _start_giant(patient_core)
    patient_core.handle(ev.PolicyChanged("justitia", tuple(options.items())))
    patient_core.handle(ev.WeightChanged("mouse", 2))
    lag = _lag_of_end(_finish_giant_then_mouse(patient_core))

    assert lag is not None
    assert (891, 18.0, None) == (lag.kv_token_time, lag.seconds, lag.bound_kv_token_time)


@pytest.mark.parametrize("options", _OTHER_ACCOUNTS)
def test_lag_meter_replaces_its_accounts_when_no_application_is_live(
    patient_core: CoreDriver, options: dict[str, Any]
) -> None:
    patient_core.handle(ev.PolicyChanged("justitia", tuple(options.items())))
    _start_giant(patient_core)
    apart = _lag_of_end(_finish_giant_then_mouse(patient_core))
    patient_core.handle(ev.PolicyChanged("justitia"))
    patient_core.open("next", _MOUSE)
    patient_core.submit("n", "next", prompt=1, output=1)
    patient_core.handle(ev.ApplicationClosed("next"))
    after = _lag_of_end(_pull_one_seat(patient_core, finished={"3": 1}))

    assert apart is not None
    assert apart.bound_kv_token_time is None
    assert after is not None
    assert (0, _MOUSE) == (after.kv_token_time, after.bound_kv_token_time)


def test_lag_meter_separates_its_accounts_at_the_first_known_true_cost(
    patient_core: CoreDriver,
) -> None:
    patient_core.open("giant", _GIANT)
    patient_core.submit("g", "giant", prompt=39, output=19)
    _pull_one_seat(patient_core)
    patient_core.handle(ev.ApplicationClosed("giant"))
    patient_core.now += 1
    _pull_one_seat(patient_core, progress={"1": 1})
    patient_core.handle(
        ev.ApplicationArrived("mouse", "class", "tenant", 1, 500, "i0", true_kv_token_time=_MOUSE)
    )
    patient_core.submit("m", "mouse", prompt=1, output=1)
    patient_core.handle(ev.ApplicationClosed("mouse"))
    lag = _lag_of_end(_finish_giant_then_mouse(patient_core))

    assert lag == Lag(891, 18.0, None, None)


def test_tool_call_withdraws_the_charge_from_the_accounts_of_the_lag_meter() -> None:
    driver = CoreDriver(
        SchedulerCore("fcfs", {"clock": "nominal"}, timeouts=PATIENT, meter=LagMeter)
    )
    driver.open("a", 310)
    driver.submit("x", "a")
    driver.pull()
    driver.now += 1
    driver.pull(finished={"1": 10})
    driver.now += 5
    driver.submit("y", "a")
    driver.handle(ev.ApplicationClosed("a"))
    driver.now += 1
    lag = _lag_of_end(driver.pull(finished={"2": 10}))

    assert lag == Lag(0, 0.0, None, None)


def _restart_scheduler(driver: CoreDriver, options: dict[str, Any]) -> CoreDriver:
    second = CoreDriver(driver.core, driver.now)
    core = SchedulerCore("justitia", options, timeouts=PATIENT, lease_prefix="2-", meter=LagMeter)
    second.hand_over(core, ["r0"])
    return second


@pytest.mark.parametrize("options", [{}, {"clock": "nominal"}])
def test_late_application_has_an_unknown_lag_after_a_restart(options: dict[str, Any]) -> None:
    """A new scheduler does not know when virtual time reached a tag before the restart."""
    driver = CoreDriver(SchedulerCore("justitia", options, timeouts=PATIENT, meter=LagMeter))
    _start_giant(driver)
    driver.now += 9
    _pull_one_seat(driver, progress={"1": 10})
    second = _restart_scheduler(driver, options)
    second.submit("g", "giant", prompt=39, output=19, resubmitted=True, lease_id="1", age_s=10)
    second.submit("m", "mouse", prompt=1, output=1, resubmitted=True, age_s=9)
    _pull_one_seat(second, progress={"1": 10})
    second.now += 9
    actions = _pull_one_seat(second, finished={"1": 19})
    mouse = _lag_of_end(_pull_one_seat(second, finished={"2-2": 1, "2-1": 1}))

    assert _lag_of_end(actions) is None
    assert mouse is None if not options else mouse is not None


def test_restarted_scheduler_measures_no_lag_of_an_idle_application(
    patient_core: CoreDriver,
) -> None:
    patient_core.open("a", 100)
    patient_core.handle(
        ev.ApplicationArrived("b", "class", "tenant", 1, 100, "i0", true_kv_token_time=9)
    )
    second = _restart_scheduler(patient_core, {})

    assert second.core.lag("a") is None
    assert _lag_of_end(second.handle(ev.ApplicationClosed("a"))) is None


def test_each_turn_of_an_agent_has_a_separate_lag_bound(patient_core: CoreDriver) -> None:
    patient_core.open("agent", 310)
    for turn in ("1", "2"):
        patient_core.submit(turn, "agent")
        _pull_one_seat(patient_core)
        patient_core.now += 1
        _pull_one_seat(patient_core, finished={turn: 10})
    lag = _lag_of_end(patient_core.handle(ev.ApplicationClosed("agent")))

    assert lag is not None
    assert (0, 155 + 155) == (lag.kv_token_time, lag.bound_kv_token_time)


def _record_start(bound: DelayBound, own_bound: ApplicationBound, key: int, work: int) -> None:
    bound.update(own_bound, (key, 0))
    bound.in_flight += work
    bound.record_start((key, 0), nothing_waits=False)


def test_lag_bound_is_the_work_in_flight_when_a_larger_tag_last_started() -> None:
    bound, own_bound = DelayBound(), ApplicationBound()
    _record_start(bound, ApplicationBound(), 9, work=10)
    _record_start(bound, ApplicationBound(), 3, work=20)
    _record_start(bound, own_bound, 5, work=40)
    _record_start(bound, own_bound, 5, work=80)

    assert own_bound.bound == 10


def test_each_start_of_a_larger_tag_adds_to_the_lag_bound() -> None:
    bound, own_bound = DelayBound(), ApplicationBound()
    _record_start(bound, ApplicationBound(), 9, work=10)
    _record_start(bound, own_bound, 5, work=20)
    _record_start(bound, ApplicationBound(), 8, work=40)
    _record_start(bound, own_bound, 5, work=80)

    assert own_bound.bound == 10 + 70


def test_lag_bound_includes_exceptions_since_the_last_start() -> None:
    bound, own_bound = DelayBound(), ApplicationBound()
    bound.exceptions += 1000
    _record_start(bound, ApplicationBound(), 9, work=10)
    bound.exceptions += 5
    _record_start(bound, own_bound, 5, work=20)

    assert own_bound.bound == 10 + 5


@pytest.mark.parametrize(
    ("tiers", "tree"),
    [
        ({**TIERS, "flex": Tier(1.0, KvShare(most=0.3))}, TenantTree()),
        (TIERS, TenantTree({"acme": TenantNode(kv_share=KvShare(most=0.3))})),
    ],
    ids=["tier", "node"],
)
def test_lag_bound_excuses_starts_while_the_share_of_a_tenant_is_used_up(
    tiers: dict[str, Tier], tree: TenantTree
) -> None:
    core = SchedulerCore(timeouts=PATIENT, tiers=tiers, tenants=tree, meter=LagMeter)
    driver = CoreDriver(core)
    for name, tenant, tier in (
        ("holder", "acme", "flex"),
        ("waits", "acme", "flex"),
        ("passes", "other", "default"),
    ):
        cost = 1e6 if name == "passes" else 300
        driver.handle(ev.ApplicationArrived(name, "c", tenant, 1.0, cost, "i0", tier=tier))
    driver.submit("h", "holder", prompt=10, output=20)
    driver.pull(kv=100)
    driver.submit("w", "waits", prompt=10, output=10)
    for number in range(20):
        driver.submit(f"p{number}", "passes", prompt=40, output=20)
    lease = driver.lease_of("p0")
    for number in range(1, 20):
        driver.pull(kv=100, progress={"1": 1}, finished={lease: 20})
        lease = driver.lease_of(f"p{number}")
    driver.handle(ev.ApplicationClosed("waits"))
    driver.pull(kv=100, progress={lease: 1}, finished={"1": 20})
    lag = _lag_of_end(driver.pull(kv=100, progress={lease: 1}, finished={driver.lease_of("w"): 10}))

    assert lag is not None
    assert lag.bound_kv_token_time is not None
    assert 3_000 < lag.kv_token_time <= lag.bound_kv_token_time
