"""Ended inferences that an ingress reports to each new scheduler until they are stored."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from justitia_ray.core.actions import EndsStored, ForgetApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceSubmitted,
)
from justitia_ray.serve.ingress import scheduler_session, unstored_ends
from justitia_ray.serve.ingress.unstored_ends import UnstoredEnds
from tests.eventually import eventually
from tests.unit.serve.ingress.test_queue_client import Rig, end_of, grant_of
from tests.unit.serve.scheduler.services import arrival_of, submission_of


async def _start_client(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.0)
    rig.client.session.ingress_id = "i"
    rig.client.start()
    await rig.wait_for_epoch(1)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Queue client with its first scheduler."""
    rig = Rig()
    await _start_client(rig, monkeypatch)
    yield rig
    await rig.client.stop()


async def _items_at_successor(rig: Rig) -> list[object]:
    rig.scheduler.replace_scheduler()
    await eventually(lambda: rig.scheduler.has_all, "all is submitted again")
    return list(rig.scheduler.items)


def _ends_in(items: list[object]) -> list[tuple[str, str | None, Outcome | None, bool | None]]:
    return [
        (item.request_id, item.lease_id, item.outcome, item.is_counted)
        for item in items
        if isinstance(item, InferenceSubmitted)
    ]


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.CANCELLED])
async def test_new_scheduler_receives_ended_inferences_that_are_not_stored(
    rig: Rig, outcome: Outcome
) -> None:
    """An ended inference follows its application and precedes all other items."""
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of())
    await rig.client.next_grant(ticket)
    if outcome is Outcome.FINISHED:
        rig.pending.note_answered(ticket)
    rig.client.cancel_inference(ticket)
    items = await _items_at_successor(rig)

    assert replace(arrival_of(), resubmitted=True) == items[0]
    assert [("q", "1-1", outcome, False)] == _ends_in(items)


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_unstored_inferences_of_an_ended_application_reopen_and_close_it(
    rig: Rig, is_elsewhere: bool
) -> None:
    """The last scheduler may not have stored the end of the application."""
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of())
    await rig.client.next_grant(ticket)
    rig.pending.note_answered(ticket)
    rig.scheduler.post_messages(ForgetApplication("a", "i") if is_elsewhere else end_of())
    await rig.wait_until_forgotten()
    items = await _items_at_successor(rig)
    rig.scheduler.post_messages(end_of(), grant_of("none"))
    await eventually(lambda: rig.client.session._cursor.ack == 2, "it is read")

    assert replace(arrival_of(), resubmitted=True) == items[0]
    assert [("q", "1-1", Outcome.FINISHED, False)] == _ends_in(items)
    assert 1 == items.count(ApplicationClosed("a"))
    assert (0 if is_elsewhere else 1) == len(rig.ended)


async def test_stored_ended_inferences_are_not_reported_again(rig: Rig) -> None:
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of())
    await rig.client.next_grant(ticket)
    rig.pending.note_answered(ticket)
    rig.scheduler.post_messages(end_of(), EndsStored("i", ("q",), ("a",)))
    await rig.wait_until_forgotten()
    await eventually(lambda: not rig.pending.unstored.has_application("a"), "it is dropped")
    items = await _items_at_successor(rig)

    assert [] == [one for one in items if isinstance(one, ApplicationArrived | InferenceSubmitted)]


async def test_ended_inference_is_remembered_while_the_caller_reads_its_answer(rig: Rig) -> None:
    """The engine reports the end to the scheduler before the caller has read the answer."""
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of(), EndsStored("i", ("q",)))
    await rig.client.next_grant(ticket)
    items = await _items_at_successor(rig)
    rig.pending.note_answered(ticket)

    assert [("q", "1-1", None, True)] == _ends_in(items)
    assert not rig.pending.unstored.has_inference("q")


async def test_ended_inference_is_not_reported_again_once_it_is_stored(rig: Rig) -> None:
    """The scheduler would count the repetition of an inference whose record it has dropped."""
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of())
    await rig.client.next_grant(ticket)
    rig.pending.note_answered(ticket)
    rig.scheduler.post_messages(end_of())
    await rig.wait_until_forgotten()
    told = rig.pending.all_submissions([], resubmitted=True)
    rig.pending.note_stored(EndsStored("i", ("q",), ("a",)))

    assert 3 == len(told)
    assert [ApplicationClosed("a")] == rig.pending.current(told)


def test_ended_inferences_are_forgotten_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unstored_ends, "_MOST", 2)
    ends = UnstoredEnds()
    for at, name in enumerate(("q0", "q1", "q2")):
        ends.add_inference(submission_of(name), "1-1", Outcome.FINISHED, float(at))
    kept = [item.request_id for item in ends.inferences()]
    ends.drop_old(61.5)

    assert ["q1", "q2"] == kept
    assert ["q2"] == [item.request_id for item in ends.inferences()]


async def test_expired_ingress_does_not_report_ended_inferences_again(
    rig: Rig,
) -> None:
    """The scheduler has already counted the inferences of an ingress that it took for dead."""
    ticket = rig.client.submit_inference(submission_of("q", is_counted=False), arrival_of())
    rig.scheduler.post_messages(grant_of())
    await rig.client.next_grant(ticket)
    rig.pending.note_answered(ticket)
    rig.scheduler.forget_ingress()
    await eventually(lambda: len(rig.scheduler.ingress_ids) == 2, "it has another name")

    assert not rig.pending.unstored.has_inference("q")
