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


def _inference(request_id: str, **fields: Any) -> ev.InferenceSubmitted:
    item = ev.InferenceSubmitted(request_id, "a", request_id, "i0", 10, 10, 10, is_counted=False)
    return replace(item, **fields)


def _over(
    request_id: str, lease_id: str, outcome: Outcome = Outcome.FINISHED
) -> ev.InferenceSubmitted:
    return _inference(request_id, lease_id=lease_id, outcome=outcome, resubmitted=True)


@pytest.fixture
def old() -> CoreDriver:
    """Return a scheduler with x and y of application a on r0, at epoch 1."""
    driver = CoreDriver(SchedulerCore(lease_prefix="1-"))
    driver.handle(_ARRIVAL)
    for name in ("x", "y"):
        driver.handle(_inference(name))
    driver.pull(seats=3)
    driver.pull(progress={"1-1": 2, "1-2": 4}, seats=3)
    return driver


def _successor(old: CoreDriver, *, saved: bool = True) -> CoreDriver:
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


def _usage(driver: CoreDriver) -> UsageTotals:
    return driver.core.state.usage.of("tenant", driver.now)


def _counts(driver: CoreDriver) -> tuple[int, int, int, int]:
    usage = _usage(driver)
    return usage.applications, usage.inferences, usage.prompt_tokens, usage.output_tokens


def _stored(driver: CoreDriver) -> list[Action]:
    driver.core.take_changed()
    return driver.handle(ev.StateStored())


@pytest.mark.parametrize("report_first", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_inference_that_was_answered_meanwhile_is_counted_once(
    old: CoreDriver, report_first: bool, saved: bool
) -> None:
    """An ingress reports the end and a replica the service, in any order and repeatedly."""
    new = _successor(old, saved=saved)
    if report_first:
        new.pull("r0", {"1-1": 3}, {"1-2": 10})
    for _ in range(2):
        for event in (_AGAIN, _inference("x", lease_id="1-1", resubmitted=True), _over("y", "1-2")):
            new.handle(event)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})

    assert (1, 1, 10, 10) == _counts(new)
    assert {"x"} == set(new.core.state.inferences)
    assert 10 == new.application().output_tokens  # the amount with which its claim is settled


def test_service_of_an_answered_inference_is_booked_once(old: CoreDriver) -> None:
    """The old scheduler had booked a part of it."""
    new = _successor(old)
    before = _usage(new).kv_token_time
    undisturbed = CoreDriver(old.core, old.now)
    for event in (_AGAIN, _inference("x", lease_id="1-1", resubmitted=True), _over("y", "1-2")):
        new.handle(event)
    new.pull("r0", {}, {"1-1": 10, "1-2": 10})
    undisturbed.pull("r0", {}, {"1-1": 10, "1-2": 10})

    assert before < _usage(new).kv_token_time == _usage(undisturbed).kv_token_time


def test_inference_that_was_counted_and_stored_is_not_counted_again(old: CoreDriver) -> None:
    """The confirmation has reached neither the replica nor the ingress."""
    old.pull("r0", {"1-1": 3}, {"1-2": 10})
    new = _successor(old)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    new.handle(_over("y", "1-2"))

    assert (1, 1, 10, 10) == _counts(old) == _counts(new)


def test_end_that_was_confirmed_and_not_stored_is_counted(old: CoreDriver) -> None:
    """The replica had a confirmation, but the scheduler died before it saved the end."""
    new = _successor(old)
    old.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    new.handle(_over("y", "1-2"))
    new.pull("r0", {"1-1": 3}, [ev.LeaseFinished("1-2", 10, 10, Outcome.FINISHED, booked=True)])

    assert (1, 1, 10, 10) == _counts(new)


def test_answered_inference_never_runs_again(old: CoreDriver) -> None:
    """An ended inference whose replica is gone is counted without its output."""
    new = _successor(old)
    new.handle(_AGAIN)
    new.handle(_over("y", "1-2"))
    actions = [*new.pull("r9"), *new.wait(3.0), *new.pull("r9")]

    assert [] == granted(actions)
    assert (1, 1, 10, 0) == _counts(new)


def test_cancelled_inference_that_still_runs_is_stopped_and_counted(old: CoreDriver) -> None:
    """A caller may leave while there is no leader."""
    new = _successor(old)
    new.handle(_AGAIN)
    new.handle(_over("y", "1-2", Outcome.CANCELLED))

    assert ["1-2"] == aborted(new.pull("r0", {"1-1": 3, "1-2": 6}))
    new.last_word("1-2", output=6)
    assert (1, 1, 10, 6) == _counts(new)


def test_application_is_cancelled_once_its_ends_are_counted(old: CoreDriver) -> None:
    """The call to cancel it may arrive before its ingress reports."""
    new = _successor(old)
    new.handle(ev.ApplicationCancelled("a"))
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    new.handle(_AGAIN)
    refused = new.handle(_inference("x", lease_id="1-1", resubmitted=True))
    new.handle(_over("y", "1-2"))
    over = new.handle(ev.Resubmitted("i0")) + new.last_word("1-1", output=3)

    assert ["x"] == [one.request_id for one in refused if isinstance(one, Refuse)]
    assert [Outcome.CANCELLED] == [e.outcome for e in over if isinstance(e, EndApplication)]
    assert (1, 2, 20, 13) == _counts(new)


def test_closed_application_waits_for_every_ingress_that_had_it(old: CoreDriver) -> None:
    """One ingress closes an application of which another still has an inference."""
    old.handle(replace(_ARRIVAL, ingress_id="i1"))
    new = _successor(old)
    new.pull("r0", {"1-1": 3}, {"1-2": 10})
    for event in (_AGAIN, _over("y", "1-2"), ev.ApplicationClosed("a"), ev.Resubmitted("i0")):
        new.handle(event)
    is_live = "a" in new.core.state.applications
    for event in (
        replace(_AGAIN, ingress_id="i1"),
        _inference("x", ingress_id="i1", lease_id="1-1", resubmitted=True),
        ev.Resubmitted("i1"),
    ):
        new.handle(event)
    new.pull("r0", {}, {"1-1": 10})

    assert is_live
    assert "a" not in new.core.state.applications
    assert (1, 2, 20, 20) == _counts(new)


def test_closed_application_waits_no_longer_than_for_a_lost_ingress(old: CoreDriver) -> None:
    """An ingress may have died with the scheduler."""
    new = _successor(old)
    new.handle(replace(_AGAIN, ingress_id="i1"))
    new.handle(ev.ApplicationClosed("a"))

    assert "a" in new.core.state.applications
    new.wait(31.0)
    assert "a" not in new.core.state.applications


def test_application_that_was_over_is_counted_once(old: CoreDriver) -> None:
    """An ingress may have missed an end; the name may be used again later."""
    old.pull("r0", {}, {"1-1": 10, "1-2": 10})
    old.handle(ev.ApplicationClosed("a"))
    new = _successor(old)
    for event in (_AGAIN, _over("y", "1-2"), ev.ApplicationClosed("a"), ev.Resubmitted("i0")):
        new.handle(event)

    assert (1, 2, 20, 20) == _counts(new)
    new.handle(_AGAIN)
    assert 2 == _usage(new).applications


def test_stored_ends_are_confirmed_until_they_are_read(old: CoreDriver) -> None:
    """The record of an ended application stays until then."""
    old.pull("r0", {"1-1": 3}, {"1-2": 10})
    told = [action for action in _stored(old) if isinstance(action, EndsStored)]
    kept = old.record()["applications"]["a"]["ends"]["inferences"]
    old.handle(ev.EndsAcknowledged(told[0]))

    assert [EndsStored("i0", ("y",))] == told
    assert {"y": "i0"} == kept
    assert "ends" not in old.record()["applications"]["a"]


def test_ingress_of_an_earlier_version_gets_no_confirmations(old: CoreDriver) -> None:
    """An old ingress does not support the message; only the replica's report counts."""
    old.open("b", ingress_id="i9")
    old.submit("z", "b", ingress_id="i9")
    old.pull("r0", {"1-1": 3, "1-2": 4, "1-3": 0}, seats=3)
    old.pull("r0", {"1-1": 3, "1-2": 4}, {"1-3": 10}, seats=3)
    old.handle(ev.ApplicationClosed("b"))

    assert [] == [a for a in _stored(old) if isinstance(a, EndsStored)]
