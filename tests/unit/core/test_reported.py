"""The core's interface for a driver without lost messages: reports, places, forecasts, lags."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.lag.meter import LagMeter
from tests.core_driver import PATIENT, CoreDriver, ended, granted


@pytest.fixture
def core() -> CoreDriver:
    """Return a driver with an application `a` and a replica `r0` whose pull is answered."""
    driver = CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r0", kv=100)
    driver.handle(ev.PullAnswered("r0"))
    driver.open()
    return driver


def _report_asking(core: CoreDriver, most: int | None = None, reserved: int = 0) -> list[str]:
    asks = ev.ReplicaReported("r0", asks=True, most_prompt_tokens=most, reserved_kv_tokens=reserved)
    found = granted(core.handle(asks))
    core.handle(ev.PullAnswered("r0"))
    return found


def test_report_gets_grants_only_if_it_asks(core: CoreDriver) -> None:
    """A simulated replica between two boundaries must not get new arrivals."""
    core.submit("x")

    assert [] == core.handle(ev.ReplicaReported("r0"))
    assert ["x"] == granted(core.handle(ev.ReplicaReported("r0", asks=True)))
    assert ["y"] == granted(core.submit("y")), "it asks until it is answered"
    core.handle(ev.PullAnswered("r0"))
    assert [] == granted(core.submit("z"))


def test_replica_asks_from_its_pull_to_the_answer_or_its_loss(core: CoreDriver) -> None:
    """The core only iterates over those that ask: 64 replicas cost as much as one."""
    asking = core.core.state.asking

    assert [] == list(asking)
    core.handle(ev.ReplicaReported("r0", asks=True))
    core.pull("r1")
    assert ["r0", "r1"] == list(asking)
    core.handle(ev.ReplicaLost("r0"))
    core.handle(ev.PullAnswered("r1"))
    assert [] == list(asking)


def test_lease_omitted_from_a_report_continues(core: CoreDriver) -> None:
    """A pull that omits a lease has lost it; a report contains one lease or none."""
    for name in "xy":
        core.submit(name)
    _report_asking(core)
    x, y = core.lease_of("x"), core.lease_of("y")
    core.handle(ev.ReplicaReported("r0", (ev.LeaseProgress(x, 10, 4, running=True),)))
    last = ev.LeaseFinished(y, 10, 10, Outcome.FINISHED)
    core.handle(ev.ReplicaReported("r0", finished=(last,)))

    assert ["x"] == list(core.core.state.inferences)
    assert (x, 4) == (core.lease_of("x"), core.inference("x").output_tokens)
    assert 10 * 4 + 10 + 10 * 10 + 55 == core.application().kv_token_time


def test_idle_application_is_withdrawn_when_a_report_says_so(core: CoreDriver) -> None:
    """Rule 4, after the successors of this instant are submitted: they are no tool gap."""
    core.submit("x", output=2)
    _report_asking(core)
    last = ev.LeaseFinished(core.lease_of("x"), 10, 2, Outcome.FINISHED)
    core.handle(ev.ReplicaReported("r0", finished=(last,)))

    before = core.account().withdrawn, bool(core.core.applications.settled_since_report)
    core.handle(ev.ReplicaReported("r0", withdraws=True))
    after = core.account().withdrawn, bool(core.core.applications.settled_since_report)

    assert (False, True) == before
    assert (True, False) == after


def test_report_is_granted_at_most_its_prompt_token_budget(core: CoreDriver) -> None:
    """Of 12, 6 + 6 + 1 with a budget of 12: two; the next is for the next prefill."""
    for name, prompt in (("x", 6), ("y", 6), ("z", 1)):
        core.submit(name, prompt=prompt, output=2)

    assert [] == _report_asking(core, most=5), "nor does anything go before the first"
    assert ["x", "y"] == _report_asking(core, most=12)
    assert ["z"] == _report_asking(core, most=12)


def test_reserved_kv_is_not_free(core: CoreDriver) -> None:
    """M = 100: 10 + 10 beside 10 + 10 fit into 40, and not into 39."""
    for name in "xy":
        core.submit(name)

    assert ["x"] == _report_asking(core, reserved=61)
    assert ["y"] == _report_asking(core, reserved=60)


def test_report_of_an_unknown_replica_is_the_drivers_mistake(core: CoreDriver) -> None:
    """Only a pull reports its capacity."""
    with pytest.raises(KeyError):
        core.handle(ev.ReplicaReported("r9"))


def test_place_is_the_same_whether_an_inference_waits_or_runs(core: CoreDriver) -> None:
    """Swapping out and back uses the same order: last out, first back."""
    core.open("b")
    for name, application in (("x", "a"), ("y", "b"), ("z", "a")):
        core.submit(name, application)
    waiting = [core.core.place(name) for name in "xyz"]
    _report_asking(core)

    assert sorted(waiting) == waiting == [core.core.place(name) for name in "xyz"]
    with pytest.raises(KeyError):
        core.core.place("w")


@pytest.mark.parametrize(("admission", "expected"), [("peak", 1), ("prompt", 2)])
def test_iterations_until_an_inference_fits(admission: str, expected: int) -> None:
    """M = 8, or 7: x (3 + 2) runs to 2. y (2 + 2): from 1 on it holds 3 beside 5 just before 2.

    By the prompt, M = 6: 3 + 2 + 1 + 1 = 7 does not fit before x has ended.
    """
    core = CoreDriver(SchedulerCore("fcfs", admission=admission, timeouts=PATIENT))
    core.pull("r0", kv=8 if admission == "peak" else 6)
    core.open()
    core.submit("x", prompt=3, output=2)
    core.submit("y", prompt=2, output=2)

    assert ["y"] == core.waiting()
    assert expected == core.core.iterations_until_fit("y", "r0")
    with pytest.raises(KeyError):
        core.core.iterations_until_fit("y", "r9")


def test_reserved_room_is_not_available() -> None:
    """M = 8 less 1 that a replica keeps free: x (3 + 2) has to end before y (2 + 2) starts."""
    core = CoreDriver(SchedulerCore("fcfs", admission="peak", timeouts=PATIENT))
    core.pull("r0", kv=8)
    core.open()
    core.submit("x", prompt=3, output=2)
    core.submit("y", prompt=2, output=2)

    assert [2, 1] == [core.core.iterations_until_fit("y", "r0", reserved) for reserved in (1, 0)]


def test_inference_that_fits_now_needs_zero_iterations(core: CoreDriver) -> None:
    """A replica whose pull is answered may still have room."""
    core.submit("x")

    assert 0 == core.core.iterations_until_fit("x", "r0")


def test_lag_meter_uses_v_and_tags_of_its_own_clock() -> None:
    """The accounts have 1,000, the truth is 155: the ends under GPS use the truth."""
    core = CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT, meter=LagMeter))
    core.handle(ev.ApplicationArrived("a", "c", "t", 1.0, 1000, "i", None, 155))
    meter = core.core.lags

    assert (0, 155, 1000) == (meter.virtual_time, meter.tag("a"), core.core.tag("a"))
    core.submit("x")
    core.pull("r0", kv=100)
    lease = core.lease_of("x")
    core.handle(ev.ReplicaReported("r0", (ev.LeaseProgress(lease, 10, 4, running=True),)))
    assert 50 == meter.virtual_time
    core.handle(ev.ApplicationClosed("a"))
    last = ev.LeaseFinished(lease, 10, 10, Outcome.FINISHED)
    assert [("a", "finished")] == ended(core.handle(ev.ReplicaReported("r0", finished=(last,))))
    assert 155 == meter.virtual_time
