"""After the death of a scheduler, answered inferences are counted once and do not run again."""

from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, EndsStored, Refuse
from justitia_ray.core.entities import Outcome
from justitia_ray.core.usage import UsageTotals
from tests.core_driver import CoreDriver, aborted, granted

_ARRIVAL = ev.ApplicationArrived("a", "class", "tenant", 1, 1000, "i0", keeps_ends=True)
_AGAIN = replace(_ARRIVAL, resubmitted=True)


def _submission(request_id: str, **fields: Any) -> ev.InferenceSubmitted:
    item = ev.InferenceSubmitted(request_id, "a", request_id, "i0", 10, 10, 10, is_counted=False)
    return replace(item, **fields)


def _ended_submission(
    request_id: str, lease_id: str, outcome: Outcome = Outcome.FINISHED
) -> ev.InferenceSubmitted:
    return _submission(request_id, lease_id=lease_id, outcome=outcome, resubmitted=True)


@pytest.fixture
def old_scheduler() -> CoreDriver:
    """Return a core with inferences x and y of application a on replica r0, at epoch 1."""
    driver = CoreDriver(SchedulerCore(lease_prefix="1-"))
    driver.handle(_ARRIVAL)
    for name in ("x", "y"):
        driver.handle(_submission(name))
    driver.pull(seats=3)
    driver.pull(progress={"1-1": 2, "1-2": 4}, seats=3)
    return driver


def _next_scheduler(old: CoreDriver, *, saved: bool = True) -> CoreDriver:
    """Return the next scheduler, with the saved state of the old one or without any."""
    driver = CoreDriver(old.core, old.now + 1.0)
    core = SchedulerCore(lease_prefix="2-")
    if saved:
        usage = {
            day: {name: totals.record() for name, totals in of.items()}
            for day, of in old.core.state.usage.totals.items()
        }
        core.state.usage.restore(usage)
        driver.hand_over(core, ["r0"])
        return driver
    core.recover(["r0"], driver.now)
    driver.core = core
    return driver


def _tenant_usage(driver: CoreDriver) -> UsageTotals:
    return driver.core.state.usage.of("tenant", driver.now)


def _usage_counts(driver: CoreDriver) -> tuple[int, int, int, int]:
    usage = _tenant_usage(driver)
    return usage.applications, usage.inferences, usage.prompt_tokens, usage.output_tokens


def _store_state(driver: CoreDriver) -> list[Action]:
    driver.core.take_changed()
    return driver.handle(ev.StateStored())


@pytest.mark.parametrize("report_first", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_inference_answered_during_a_scheduler_outage_is_counted_once(
    old_scheduler: CoreDriver, report_first: bool, saved: bool
) -> None:
    new = _next_scheduler(old_scheduler, saved=saved)
    if report_first:
        new.pull("r0", {"1-1": 3}, {"1-2": 10})
    for _ in range(2):
        for event in (
            _AGAIN,
            _submission("x", lease_id="1-1", resubmitted=True),
            _ended_submission("y", "1-2"),
        ):
            new.handle(event)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})

    assert (1, 1, 10, 10) == _usage_counts(new)
    assert {"x"} == set(new.core.state.inferences)
    assert 10 == new.application().output_tokens


def test_service_of_an_inference_answered_during_an_outage_counts_once(
    old_scheduler: CoreDriver,
) -> None:
    new = _next_scheduler(old_scheduler)
    before = _tenant_usage(new).kv_token_time
    undisturbed = CoreDriver(old_scheduler.core, old_scheduler.now)
    for event in (
        _AGAIN,
        _submission("x", lease_id="1-1", resubmitted=True),
        _ended_submission("y", "1-2"),
    ):
        new.handle(event)
    new.pull("r0", {}, {"1-1": 10, "1-2": 10})
    undisturbed.pull("r0", {}, {"1-1": 10, "1-2": 10})

    assert before < _tenant_usage(new).kv_token_time == _tenant_usage(undisturbed).kv_token_time


def test_inference_stored_as_ended_is_not_counted_after_a_restart(
    old_scheduler: CoreDriver,
) -> None:
    """A confirmation may be lost, so replica and ingress report the end again."""
    old_scheduler.pull("r0", {"1-1": 3}, {"1-2": 10})
    new = _next_scheduler(old_scheduler)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    new.handle(_ended_submission("y", "1-2"))

    assert (1, 1, 10, 10) == _usage_counts(old_scheduler) == _usage_counts(new)


def test_ended_inference_that_was_not_saved_is_counted_after_a_restart(
    old_scheduler: CoreDriver,
) -> None:
    """The scheduler died after it confirmed the end and before it saved it."""
    new = _next_scheduler(old_scheduler)
    old_scheduler.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    new.handle(_ended_submission("y", "1-2"))
    new.pull("r0", {"1-1": 3}, [ev.LeaseFinished("1-2", 10, 10, Outcome.FINISHED, booked=True)])

    assert (1, 1, 10, 10) == _usage_counts(new)


def test_inference_answered_during_an_outage_never_runs_again(old_scheduler: CoreDriver) -> None:
    """An ended inference whose replica is gone is counted without its output."""
    new = _next_scheduler(old_scheduler)
    new.handle(_AGAIN)
    new.handle(_ended_submission("y", "1-2"))
    actions = [*new.pull("r9"), *new.wait(3.0), *new.pull("r9")]

    assert [] == granted(actions)
    assert (1, 1, 10, 0) == _usage_counts(new)


def test_inference_cancelled_during_an_outage_is_stopped_and_counted(
    old_scheduler: CoreDriver,
) -> None:
    """A caller may leave while there is no scheduler."""
    new = _next_scheduler(old_scheduler)
    new.handle(_AGAIN)
    new.handle(_ended_submission("y", "1-2", Outcome.CANCELLED))

    assert ["1-2"] == aborted(new.pull("r0", {"1-1": 3, "1-2": 6}))
    new.last_word("1-2", output=6)
    assert (1, 1, 10, 6) == _usage_counts(new)


def test_application_cancelled_during_an_outage_counts_its_ended_inferences(
    old_scheduler: CoreDriver,
) -> None:
    """The call to cancel the application may arrive before its ingress reports."""
    new = _next_scheduler(old_scheduler)
    new.handle(ev.ApplicationCancelled("a"))
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    refused = new.handle(_submission("x", lease_id="1-1", resubmitted=True))
    new.handle(_ended_submission("y", "1-2"))
    over = new.handle(ev.Resubmitted("i0")) + new.last_word("1-1", output=3)

    assert ["x"] == [one.request_id for one in refused if isinstance(one, Refuse)]
    assert [Outcome.CANCELLED] == [e.outcome for e in over if isinstance(e, EndApplication)]
    assert (1, 2, 20, 13) == _usage_counts(new)


def test_closed_application_waits_for_reports_of_all_its_ingresses(
    old_scheduler: CoreDriver,
) -> None:
    """One ingress closes an application of which another ingress still has an inference."""
    old_scheduler.handle(replace(_ARRIVAL, ingress_id="i1"))
    new = _next_scheduler(old_scheduler)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    for event in (
        _AGAIN,
        _ended_submission("y", "1-2"),
        ev.ApplicationClosed("a"),
        ev.Resubmitted("i0"),
    ):
        new.handle(event)
    is_live = "a" in new.core.state.applications
    for event in (
        replace(_AGAIN, ingress_id="i1"),
        _submission("x", ingress_id="i1", lease_id="1-1", resubmitted=True),
        ev.Resubmitted("i1"),
    ):
        new.handle(event)
    new.pull("r0", {}, {"1-1": 10})

    assert is_live
    assert "a" not in new.core.state.applications
    assert (1, 2, 20, 20) == _usage_counts(new)


def test_closed_application_stops_waiting_for_an_ingress_after_its_timeout(
    old_scheduler: CoreDriver,
) -> None:
    """An ingress may have died with the scheduler."""
    new = _next_scheduler(old_scheduler)
    new.handle(replace(_AGAIN, ingress_id="i1"))
    new.handle(ev.ApplicationClosed("a"))

    assert "a" in new.core.state.applications
    new.wait(31.0)
    assert "a" not in new.core.state.applications


def test_application_that_ended_before_a_restart_is_counted_once(old_scheduler: CoreDriver) -> None:
    old_scheduler.pull("r0", {}, {"1-1": 10, "1-2": 10})
    old_scheduler.handle(ev.ApplicationClosed("a"))
    new = _next_scheduler(old_scheduler)
    for event in (
        _AGAIN,
        _ended_submission("y", "1-2"),
        ev.ApplicationClosed("a"),
        ev.Resubmitted("i0"),
    ):
        new.handle(event)

    assert (1, 2, 20, 20) == _usage_counts(new)
    new.handle(_AGAIN)
    assert 2 == _tenant_usage(new).applications


def test_ended_inference_stays_stored_until_its_ingress_reads_the_confirmation(
    old_scheduler: CoreDriver,
) -> None:
    """The record of an ended application stays until its ingress has read the confirmation."""
    old_scheduler.pull("r0", {"1-1": 3}, {"1-2": 10})
    told = [action for action in _store_state(old_scheduler) if isinstance(action, EndsStored)]
    kept = old_scheduler.record()["applications"]["a"]["ends"]["inferences"]
    old_scheduler.handle(ev.EndsAcknowledged(told[0]))

    assert [EndsStored("i0", ("y",))] == told
    assert {"y": "i0"} == kept
    assert "ends" not in old_scheduler.record()["applications"]["a"]


def test_ingress_of_an_earlier_version_gets_no_confirmations_of_ended_inferences(
    old_scheduler: CoreDriver,
) -> None:
    """An old ingress does not support the message, so only the replica's report counts."""
    old_scheduler.open("b", ingress_id="i9")
    old_scheduler.submit("z", "b", ingress_id="i9")
    old_scheduler.pull("r0", {"1-1": 3, "1-2": 4, "1-3": 0}, seats=3)
    old_scheduler.pull("r0", {"1-1": 3, "1-2": 4}, {"1-3": 10}, seats=3)
    old_scheduler.handle(ev.ApplicationClosed("b"))

    assert [] == [a for a in _store_state(old_scheduler) if isinstance(a, EndsStored)]
