"""The core's interface for a driver without lost messages: reports, places, forecasts, lags."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.lag.meter import LagMeter
from tests.core_driver import PATIENT, CoreDriver, ended, granted


@pytest.fixture
def core_with_answered_pull() -> CoreDriver:
    """Return a core with an application `a` and a replica `r0` whose pull is answered."""
    driver = CoreDriver(SchedulerCore("fcfs", timeouts=PATIENT))
    driver.pull("r0", kv=100)
    driver.handle(ev.PullAnswered("r0"))
    driver.open()
    return driver


def _report_and_ask(core: CoreDriver, most: int | None = None, reserved: int = 0) -> list[str]:
    asks = ev.ReplicaReported("r0", asks=True, most_prompt_tokens=most, reserved_kv_tokens=reserved)
    found = granted(core.handle(asks))
    core.handle(ev.PullAnswered("r0"))
    return found


def test_only_a_report_that_asks_for_work_gets_grants(core_with_answered_pull: CoreDriver) -> None:
    """A simulated replica takes new inferences only when it asks for them."""
    core_with_answered_pull.submit("x")

    assert [] == core_with_answered_pull.handle(ev.ReplicaReported("r0"))
    assert ["x"] == granted(core_with_answered_pull.handle(ev.ReplicaReported("r0", asks=True)))
    assert ["y"] == granted(core_with_answered_pull.submit("y")), "it asks until it is answered"
    core_with_answered_pull.handle(ev.PullAnswered("r0"))
    assert [] == granted(core_with_answered_pull.submit("z"))


def test_replica_counts_as_asking_from_its_pull_until_the_answer(
    core_with_answered_pull: CoreDriver,
) -> None:
    """The core iterates over asking replicas only, so that 64 replicas cost as much as one."""
    asking = core_with_answered_pull.core.state.asking

    assert [] == list(asking)
    core_with_answered_pull.handle(ev.ReplicaReported("r0", asks=True))
    core_with_answered_pull.pull("r1")
    assert ["r0", "r1"] == list(asking)
    core_with_answered_pull.handle(ev.ReplicaLost("r0"))
    core_with_answered_pull.handle(ev.PullAnswered("r1"))
    assert [] == list(asking)


def test_lease_omitted_from_a_report_continues(core_with_answered_pull: CoreDriver) -> None:
    """Unlike a pull, a report contains one lease or none."""
    for name in "xy":
        core_with_answered_pull.submit(name)
    _report_and_ask(core_with_answered_pull)
    x, y = core_with_answered_pull.lease_of("x"), core_with_answered_pull.lease_of("y")
    core_with_answered_pull.handle(
        ev.ReplicaReported("r0", (ev.LeaseProgress(x, 10, 4, running=True),))
    )
    last = ev.LeaseFinished(y, 10, 10, Outcome.FINISHED)
    core_with_answered_pull.handle(ev.ReplicaReported("r0", finished=(last,)))

    assert ["x"] == list(core_with_answered_pull.core.state.inferences)
    assert (x, 4) == (
        core_with_answered_pull.lease_of("x"),
        core_with_answered_pull.inference("x").output_tokens,
    )
    assert 10 * 4 + 10 + 10 * 10 + 55 == core_with_answered_pull.application().kv_token_time


def test_application_is_withdrawn_only_if_still_idle_at_the_end_of_an_instant(
    core_with_answered_pull: CoreDriver,
) -> None:
    """An inference submitted at the same instant leaves no tool gap."""
    core_with_answered_pull.submit("x", output=2)
    _report_and_ask(core_with_answered_pull)
    last = ev.LeaseFinished(core_with_answered_pull.lease_of("x"), 10, 2, Outcome.FINISHED)
    core_with_answered_pull.handle(ev.ReplicaReported("r0", finished=(last,)))

    before = (
        core_with_answered_pull.account().withdrawn,
        bool(core_with_answered_pull.core.applications.settled_since_report),
    )
    core_with_answered_pull.handle(ev.ReplicaReported("r0", withdraws=True))
    after = (
        core_with_answered_pull.account().withdrawn,
        bool(core_with_answered_pull.core.applications.settled_since_report),
    )

    assert (False, True) == before
    assert (True, False) == after


def test_grants_stay_within_the_prompt_token_budget_of_a_report(
    core_with_answered_pull: CoreDriver,
) -> None:
    for name, prompt in (("x", 6), ("y", 6), ("z", 1)):
        core_with_answered_pull.submit(name, prompt=prompt, output=2)

    assert [] == _report_and_ask(core_with_answered_pull, most=5), (
        "nor does anything go before the first"
    )
    assert ["x", "y"] == _report_and_ask(core_with_answered_pull, most=12)
    assert ["z"] == _report_and_ask(core_with_answered_pull, most=12)


def test_reserved_kv_memory_is_not_free(core_with_answered_pull: CoreDriver) -> None:
    for name in "xy":
        core_with_answered_pull.submit(name)

    assert ["x"] == _report_and_ask(core_with_answered_pull, reserved=61)
    assert ["y"] == _report_and_ask(core_with_answered_pull, reserved=60)


def test_report_of_an_unknown_replica_is_an_error_of_the_driver(
    core_with_answered_pull: CoreDriver,
) -> None:
    """Only a pull reports the capacity of a replica."""
    with pytest.raises(KeyError):
        core_with_answered_pull.handle(ev.ReplicaReported("r9"))


def test_queue_place_of_an_inference_does_not_change_when_it_starts(
    core_with_answered_pull: CoreDriver,
) -> None:
    """Inferences are swapped out in reverse queue order, and back in queue order."""
    core_with_answered_pull.open("b")
    for name, application in (("x", "a"), ("y", "b"), ("z", "a")):
        core_with_answered_pull.submit(name, application)
    waiting = [core_with_answered_pull.core.place(name) for name in "xyz"]
    _report_and_ask(core_with_answered_pull)

    assert (
        sorted(waiting) == waiting == [core_with_answered_pull.core.place(name) for name in "xyz"]
    )
    with pytest.raises(KeyError):
        core_with_answered_pull.core.place("w")


@pytest.mark.parametrize(("admission", "expected"), [("peak", 1), ("prompt", 2)])
def test_core_counts_the_iterations_until_an_inference_fits(admission: str, expected: int) -> None:
    core = CoreDriver(SchedulerCore("fcfs", admission=admission, timeouts=PATIENT))
    core.pull("r0", kv=8 if admission == "peak" else 6)
    core.open()
    core.submit("x", prompt=3, output=2)
    core.submit("y", prompt=2, output=2)

    assert ["y"] == core.waiting()
    assert expected == core.core.iterations_until_fit("y", "r0")
    with pytest.raises(KeyError):
        core.core.iterations_until_fit("y", "r9")


def test_reserved_kv_memory_delays_an_inference() -> None:
    core = CoreDriver(SchedulerCore("fcfs", admission="peak", timeouts=PATIENT))
    core.pull("r0", kv=8)
    core.open()
    core.submit("x", prompt=3, output=2)
    core.submit("y", prompt=2, output=2)

    assert [2, 1] == [core.core.iterations_until_fit("y", "r0", reserved) for reserved in (1, 0)]


def test_inference_that_fits_waits_for_zero_iterations(core_with_answered_pull: CoreDriver) -> None:
    core_with_answered_pull.submit("x")

    assert 0 == core_with_answered_pull.core.iterations_until_fit("x", "r0")


def test_lag_meter_uses_the_virtual_time_of_its_own_clock() -> None:
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
