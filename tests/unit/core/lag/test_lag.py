"""Lags by hand: an application behind another, its bound, and what is known after a change."""

from collections.abc import Iterator
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Lag
from justitia_ray.core.invariants import check
from justitia_ray.core.lag.bound import Claim, DelayBound
from justitia_ray.core.lag.meter import LagMeter
from tests.core_driver import PATIENT, CoreDriver

_GIANT = 931
"""39 of prompt and 19 of output: 39·19 + 19·20/2. The first token is 40, the second 41, …"""
_MOUSE = 2
"""1 of prompt, 1 of output."""


@pytest.fixture
def core() -> Iterator[CoreDriver]:
    """Yield a driver whose replicas may be silent for long."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT, meter=LagMeter))
    yield driver
    check(driver.core)


def _lag(actions: list[Action]) -> Lag | None:
    (ended,) = (action for action in actions if isinstance(action, EndApplication))
    return ended.lag


def _pull(driver: CoreDriver, replica_id: str = "r0", **reports: Any) -> list[Action]:
    """Let a replica with room for the giant, and one seat, report and ask for work."""
    return driver.pull(replica_id, kv=58, seats=1, **reports)


def _giant_runs(driver: CoreDriver) -> None:
    """Let a giant run for an iteration; then a mouse comes and does not fit."""
    driver.open("giant", _GIANT)
    driver.submit("g", "giant", prompt=39, output=19)
    _pull(driver)
    driver.handle(ev.ApplicationClosed("giant"))
    driver.now += 1
    _pull(driver, progress={"1": 1})
    driver.open("mouse", _MOUSE)
    driver.submit("m", "mouse", prompt=1, output=1)
    driver.handle(ev.ApplicationClosed("mouse"))


def _mouse_ends(driver: CoreDriver) -> list[Action]:
    """End the large application in two reports, 9 s apart, then run the small one."""
    driver.now += 9
    _pull(driver, progress={"1": 10})
    driver.now += 9
    _pull(driver, finished={"1": 19})
    driver.now += 1
    return _pull(driver, finished={"2": 1})


def test_lag_is_the_service_between_gps_and_the_last_start(core: CoreDriver) -> None:
    """V is 40 when the mouse comes, and passes its tag, 42, in the next report.

    It starts when all of the giant is served: S = 931, 18 s after S = 40. The bound is the giant,
    in flight when nothing waited, and the report of 9 tokens: Σ 41…49 = 405. The rate since the
    mouse came is 893 in 19 s.
    """
    _giant_runs(core)
    lag = _lag(_mouse_ends(core))

    assert lag is not None
    assert (891, 18.0, 931 + 405) == (lag.kv_token_time, lag.seconds, lag.bound_kv_token_time)
    assert lag.bound_s == pytest.approx(18 + (931 + 405 - 891) * 19 / 893)


def test_lag_of_a_live_application_grows_while_it_waits(core: CoreDriver) -> None:
    """Who looks at a waiting application sees what it would be if it started now."""
    _giant_runs(core)
    before = core.core.lag("mouse")
    core.now += 9
    _pull(core, progress={"1": 10})
    after = core.core.lag("mouse")
    started = core.core.lag("giant")

    assert before == Lag(0, 0.0, 931, None)
    assert after is not None
    assert (405, 9.0, 1336) == (after.kv_token_time, after.seconds, after.bound_kv_token_time)
    assert started is not None
    assert (-445, -10.0) == (started.kv_token_time, started.seconds)


def test_application_that_never_started_has_no_lag(core: CoreDriver) -> None:
    """There is no last start to measure from."""
    core.open("a", 100)

    assert core.core.lag("a") is None
    assert _lag(core.handle(ev.ApplicationCancelled("a"))) is None
    with pytest.raises(KeyError):
        core.core.lag("a")


def test_requeued_inference_is_in_flight_no_more(core: CoreDriver) -> None:
    """It waits like any other; what was served while nothing of it waited is its own affair.

    The giant's bound: 931 in flight when nothing waited, and the 40 served since its first start.
    """
    _giant_runs(core)
    core.handle(ev.ReplicaLost("r0"))
    lag = core.core.lag("giant")
    _pull(core, "r1")
    core.now += 1
    mouse = _lag(_pull(core, "r1", finished={"2": 1}))

    assert lag is not None
    assert (0, 931 + 40) == (lag.kv_token_time, lag.bound_kv_token_time)
    assert mouse == Lag(-2, -1.0, 931, 465.5)  # V is not there yet when it ends, at S = 42


def test_weight_change_makes_it_due_anew(core: CoreDriver) -> None:
    """Its tag is taken from V on, so nothing from before counts against the bound."""
    _giant_runs(core)
    core.handle(ev.WeightChanged("mouse", 2))
    lag = _lag(_mouse_ends(core))

    assert lag is not None
    assert (891, 1336) == (lag.kv_token_time, lag.bound_kv_token_time)


def test_known_length_bounds_what_is_in_flight(core: CoreDriver) -> None:
    """A simulator passes the true length of an inference; a service only its maximum."""
    core.open("a", _GIANT)
    for name, length in (("x", 19), ("y", None)):
        core.handle(
            ev.InferenceSubmitted(
                name, "a", name, "i0", 39, 19, 100, true_output_tokens=length
            )
        )  # fmt: skip
    _pull(core)
    core.handle(ev.InferenceCancelled("x"))
    core.open("b", _MOUSE)
    core.submit("m", "b", prompt=1, output=1)
    lag = core.core.lag("b")

    assert lag is not None
    assert lag.bound_kv_token_time == 39 * 100 + 100 * 101 // 2


def test_application_in_a_tool_gap_has_no_credit_to_lose(core: CoreDriver) -> None:
    """It was withdrawn, and is withdrawn when it ends: the second time nothing is given back."""
    core.open("a", 310)
    core.submit("x", "a")
    _pull(core)
    core.now += 1
    _pull(core, finished={"1": 10})
    lag = _lag(core.handle(ev.ApplicationClosed("a")))

    assert core.core.ledger.fair_share.clock.virtual_time == 155
    assert lag == Lag(0, 0.0, 155, 1.0)


@pytest.mark.parametrize("policy", ["fcfs", "justitia"])
def test_change_of_policy_ends_the_promise_to_who_waits(core: CoreDriver, policy: str) -> None:
    """They were in another order until now; whoever comes to an empty queue is promised again."""
    _giant_runs(core)
    core.handle(ev.PolicyChanged("fcfs"))
    core.handle(ev.PolicyChanged(policy))
    lag = _lag(_mouse_ends(core))
    core.open("next", _MOUSE)
    core.submit("n", "next", prompt=1, output=1)
    core.handle(ev.ApplicationClosed("next"))
    after = _lag(_pull(core, finished={"3": 1}))

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
def test_other_accounts_leave_the_yardstick_as_it_was(
    core: CoreDriver, options: dict[str, Any]
) -> None:
    """The accounts so far go on apart from those of the new order, with nothing forgotten."""
    _giant_runs(core)
    core.handle(ev.PolicyChanged("justitia", tuple(options.items())))
    core.handle(ev.WeightChanged("mouse", 2))
    lag = _lag(_mouse_ends(core))

    assert lag is not None
    assert (891, 18.0, None) == (lag.kv_token_time, lag.seconds, lag.bound_kv_token_time)


@pytest.mark.parametrize("options", _OTHER_ACCOUNTS)
def test_promise_is_back_when_nothing_is_live(core: CoreDriver, options: dict[str, Any]) -> None:
    """The yardstick is the scheduler's accounts again: an operator's trial of a clock is over."""
    core.handle(ev.PolicyChanged("justitia", tuple(options.items())))
    _giant_runs(core)
    apart = _lag(_mouse_ends(core))
    core.handle(ev.PolicyChanged("justitia"))
    core.open("next", _MOUSE)
    core.submit("n", "next", prompt=1, output=1)
    core.handle(ev.ApplicationClosed("next"))
    after = _lag(_pull(core, finished={"3": 1}))

    assert apart is not None
    assert apart.bound_kv_token_time is None
    assert after is not None
    assert (0, _MOUSE) == (after.kv_token_time, after.bound_kv_token_time)


def test_truth_parts_the_yardstick_from_the_accounts(core: CoreDriver) -> None:
    """From the first application whose true cost is another than predicted, in mid-run."""
    core.open("giant", _GIANT)
    core.submit("g", "giant", prompt=39, output=19)
    _pull(core)
    core.handle(ev.ApplicationClosed("giant"))
    core.now += 1
    _pull(core, progress={"1": 1})
    core.handle(
        ev.ApplicationArrived("mouse", "class", "tenant", 1, 500, "i0", true_kv_token_time=_MOUSE)
    )
    core.submit("m", "mouse", prompt=1, output=1)
    core.handle(ev.ApplicationClosed("mouse"))
    lag = _lag(_mouse_ends(core))

    assert lag == Lag(891, 18.0, None, None)


def test_gap_is_withdrawn_from_the_yardstick_too() -> None:
    """An application with true costs known has its tool gaps like any other."""
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
    lag = _lag(driver.pull(finished={"2": 10}))

    assert lag == Lag(0, 0.0, None, None)


def _restarted(driver: CoreDriver, options: dict[str, Any]) -> CoreDriver:
    second = CoreDriver(driver.core, driver.now)
    core = SchedulerCore("justitia", options, timeouts=PATIENT, lease_prefix="2-", meter=LagMeter)
    second.hand_over(core, ["r0"])
    return second


@pytest.mark.parametrize("options", [{}, {"clock": "nominal"}])
def test_restart_forgets_when_v_reached_a_tag(options: dict[str, Any]) -> None:
    """An application that was late already has no lag that is known; the others have."""
    driver = CoreDriver(SchedulerCore("justitia", options, timeouts=PATIENT, meter=LagMeter))
    _giant_runs(driver)
    driver.now += 9
    _pull(driver, progress={"1": 10})
    second = _restarted(driver, options)
    second.submit("g", "giant", prompt=39, output=19, resubmitted=True, lease_id="1", age_s=10)
    second.submit("m", "mouse", prompt=1, output=1, resubmitted=True, age_s=9)
    _pull(second, progress={"1": 10})
    second.now += 9
    actions = _pull(second, finished={"1": 19})
    mouse = _lag(_pull(second, finished={"2-2": 1, "2-1": 1}))

    assert _lag(actions) is None
    assert mouse is None if not options else mouse is not None


def test_idle_application_is_known_after_a_restart(core: CoreDriver) -> None:
    """It may end before anything of it is heard: nothing is measured, and nothing fails."""
    core.open("a", 100)
    core.handle(ev.ApplicationArrived("b", "class", "tenant", 1, 100, "i0", true_kv_token_time=9))
    second = _restarted(core, {})

    assert second.core.lag("a") is None
    assert _lag(second.handle(ev.ApplicationClosed("a"))) is None


def test_each_turn_of_an_agent_has_a_bound_of_its_own(core: CoreDriver) -> None:
    """After a tool gap it is due anew: what was in flight before its last turn is past.

    The bound is the first turn's 155, in flight when nothing waited, and the report of the second.
    """
    core.open("agent", 310)
    for turn in ("1", "2"):
        core.submit(turn, "agent")
        _pull(core)
        core.now += 1
        _pull(core, finished={turn: 10})
    lag = _lag(core.handle(ev.ApplicationClosed("agent")))

    assert lag is not None
    assert (0, 155 + 155) == (lag.kv_token_time, lag.bound_kv_token_time)


def _start(bound: DelayBound, claim: Claim, key: int, work: int) -> None:
    bound.promise(claim, (key, 0))
    bound.in_flight += work
    bound.record_start((key, 0), nothing_waits=False)


def test_bound_is_the_work_in_flight_at_the_last_start_of_a_larger_tag() -> None:
    """Not its own earlier start, nor that of a smaller tag: something of it may have waited."""
    bound, claim = DelayBound(), Claim()
    _start(bound, Claim(), 9, work=10)
    _start(bound, Claim(), 3, work=20)
    _start(bound, claim, 5, work=40)
    _start(bound, claim, 5, work=80)

    assert claim.bound == 10


def test_bound_adds_up_over_starts_of_larger_tags_between_its_own() -> None:
    """What it submitted after GPS was done with it waits behind each of them: 10, then 70."""
    bound, claim = DelayBound(), Claim()
    _start(bound, Claim(), 9, work=10)
    _start(bound, claim, 5, work=20)
    _start(bound, Claim(), 8, work=40)
    _start(bound, claim, 5, work=80)

    assert claim.bound == 10 + 70


def test_exceptions_since_that_start_are_added() -> None:
    """Those from before are in what was in flight then, or done."""
    bound, claim = DelayBound(), Claim()
    bound.exceptions += 1000
    _start(bound, Claim(), 9, work=10)
    bound.exceptions += 5
    _start(bound, claim, 5, work=20)

    assert claim.bound == 10 + 5
