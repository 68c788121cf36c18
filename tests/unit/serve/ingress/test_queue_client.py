"""The ingress's side of the queue: batches, grants, and what a new scheduler is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from ray.exceptions import RayActorError, RaySystemError

from justitia_ray.core.actions import (
    EndApplication,
    ForgetApplication,
    Grant,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceCancelled,
    InferenceSubmitted,
    NackReason,
)
from justitia_ray.errors import (
    AdmissionError,
    ApplicationIsClosed,
    ConnectionLost,
    QueueFull,
    RemoteFailure,
    SchedulerSuperseded,
    TooManyApplications,
    UnknownApplication,
)
from justitia_ray.protocol.messages import Opened
from justitia_ray.serve.ingress import scheduler_session
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from tests.eventually import eventually
from tests.unit.observability.recording_backend import ENDED
from tests.unit.serve.ingress.fake_scheduler import FakeScheduler
from tests.unit.serve.scheduler.services import inference, opened

_MOST = 5


class Rig:
    """A client, the scheduler that it talks to, and what the client has told its owner."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.ended: list[EndApplication] = []
        self.openings: list[tuple[str, bool]] = []
        """Applications, and whether they are open."""
        self.new_epochs = 0
        self.failures: list[Exception] = []
        """Of what is done at a new epoch."""
        self.may_end = asyncio.Event()
        """Whether what is done at a new epoch may end."""
        self.may_end.set()
        self.client = QueueClient(
            self.scheduler,
            self.ended.append,
            self._new_epoch,
            _MOST,
            0.0,
            lambda application_id, is_open: self.openings.append((application_id, is_open)),
        )
        self.pending = self.client.pending

    async def _new_epoch(self) -> None:
        self.new_epochs += 1
        await self.may_end.wait()
        if self.failures:
            raise self.failures.pop()

    async def taken(self, count: int) -> list[object]:
        """Return what the scheduler has taken, once it is that much."""
        await eventually(lambda: len(self.scheduler.items) >= count, f"{count} items are taken")
        return list(self.scheduler.items)

    async def submitted(self, last: str) -> list[str]:
        """Return the inferences that the scheduler has taken, once the last is among them."""

        def taken() -> list[str]:
            items = self.scheduler.items
            return [item.request_id for item in items if isinstance(item, InferenceSubmitted)]

        await eventually(lambda: last in taken(), f"{last} is taken")
        return taken()

    async def granted(self) -> tuple[PendingInference, Grant]:
        """Submit an inference with its application, and return it and its lease."""
        ticket = self.client.submit_inference(inference(), opened())
        self.scheduler.post(grant())
        return ticket, await self.client.next_grant(ticket)

    async def forgets(self, name: str = "a") -> None:
        """Wait until an application is not open here any more."""
        await eventually(lambda: name not in self.pending.applications, f"{name} is forgotten")

    async def follows(self, epoch: int) -> None:
        """Wait until the client knows the epoch."""
        await eventually(lambda: self.client.session.epoch == epoch, f"it knows epoch {epoch}")


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A client that knows the scheduler's epoch and repeats calls at once."""
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.0)
    rig = Rig()
    rig.client.session.ingress_id = "i"
    rig.client.session.start()
    await rig.follows(1)
    yield rig
    await rig.client.session.stop()


def grant(request_id: str = "q", lease_id: str = "1-1") -> Grant:
    """Return a lease for it."""
    return Grant(request_id, "i", lease_id, "r", 1, 15, 0.0)


def ended(name: str = "a") -> EndApplication:
    """Return the end of an application."""
    return replace(ENDED, application_id=name)


# --- submissions


async def test_what_is_submitted_at_once_goes_in_one_batch_and_in_order(rig: Rig) -> None:
    """An inference that came before its application would be refused; and batches are cheap."""
    rig.client.submit_inference(inference("q1"), opened())
    rig.client.submit_inference(inference("q2"))
    rig.client.close_application("a")

    expected = [opened(), inference("q1"), inference("q2"), ApplicationClosed("a")]
    assert expected == await rig.taken(4)
    assert [4] == [len(items) for _, items in rig.scheduler.batches if items]


async def test_very_many_go_in_several_batches(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader is sent all that is pending, and has to answer others meanwhile."""
    monkeypatch.setattr(scheduler_session, "BATCH", 2)
    rig.client.submit_inference(inference("q1"), opened())
    rig.client.submit_inference(inference("q2"))
    rig.client.close_application("a")
    sent = [opened(), inference("q1"), inference("q2"), ApplicationClosed("a")]

    assert sent == await rig.taken(4)
    assert [2, 2] == [len(items) for _, items in rig.scheduler.batches if items]


@pytest.mark.parametrize("error", [ConnectionLost("cut"), RemoteFailure("a bug")])
async def test_submission_that_failed_is_repeated_once(rig: Rig, error: Exception) -> None:
    """A scheduler that is being started again, or fails a call, must not lose an inference."""
    rig.scheduler.fail_next("submit_many", error)
    rig.client.submit_inference(inference(), opened())
    await eventually(lambda: rig.scheduler.failed, "the first submission has failed")

    assert [opened(), inference()] == await rig.taken(2)
    rig.client.submit_inference(inference("last"))
    assert [opened(), inference(), inference("last")] == await rig.taken(3)


async def test_more_than_the_allowed_number_is_refused(rig: Rig) -> None:
    """The ingress's memory is bounded; the caller is asked to come back.

    It takes no place in its stage: it would else look like one with a larger fan-out each time.
    """
    first, *_ = [rig.client.submit_inference(inference(f"q{i}"), opened()) for i in range(_MOST)]
    before = rig.pending.next_stage("a")
    with pytest.raises(QueueFull, match="5 inferences are outstanding") as refused:
        rig.client.submit_inference(inference("one more"))

    assert refused.value.retry_after_s is not None
    assert before == rig.pending.next_stage("a")
    rig.pending.note_answered(first)
    rig.client.submit_inference(inference("one more"))
    assert _MOST == len(rig.pending.inferences)


async def test_opening_is_repeated_until_the_scheduler_is_there(rig: Rig) -> None:
    """A caller who opens an application during a restart waits, and does not fail."""
    rig.scheduler.fail_next("open_application", ConnectionLost("cut"), ConnectionLost("cut"))

    assert 42.0 == await rig.client.open_application(opened())
    assert "a" in rig.pending.applications


# --- grants


async def test_grant_reaches_its_inference_and_only_once(rig: Rig) -> None:
    """The long-poll and the answer to a submission carry the same messages."""
    ticket, first = await rig.granted()
    rig.client.submit_inference(inference("other"))
    await rig.taken(3)

    assert grant() == first
    assert not ticket.answers


async def test_lease_is_told_to_the_attempt_that_it_replaces(rig: Rig) -> None:
    """The scheduler took the first one back: its replica was silent, or had not reported it."""
    ticket, first = await rig.granted()
    told: list[str] = []
    ticket.on_grant = lambda newer: told.append(newer.lease_id)
    for number in (2, 3):
        rig.scheduler.post(grant(lease_id=f"1-{number}"))
    await eventually(lambda: len(told) == 2, "both are told")

    assert ("1-1", ["1-2", "1-3"]) == (first.lease_id, told)
    assert "1-3" == (await rig.client.next_grant(ticket)).lease_id
    assert not ticket.answers


async def test_grant_of_a_caller_that_has_left_is_given_back(rig: Rig) -> None:
    """The grant was on its way when its caller left; its KV must not wait for a lapse."""
    rig.client.cancel_inference(rig.client.submit_inference(inference(), opened()))
    await rig.taken(3)
    rig.scheduler.post(grant())

    expected = [opened(), inference(), InferenceCancelled("q"), InferenceCancelled("q")]
    assert expected == await rig.taken(4)


async def test_inference_that_has_ended_is_not_cancelled(rig: Rig) -> None:
    """Cancelling is what every caller does at the end, whatever the end was."""
    ticket = rig.client.submit_inference(inference(), opened())
    rig.pending.note_answered(ticket)
    rig.client.cancel_inference(ticket)
    rig.client.close_application("a")

    assert [opened(), inference(), ApplicationClosed("a")] == await rig.taken(3)


async def test_refused_inference_tells_its_caller_why(rig: Rig) -> None:
    """Otherwise it would wait for ever."""
    ticket = rig.client.submit_inference(inference())
    rig.scheduler.post(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    with pytest.raises(UnknownApplication, match="application 'a'"):
        await rig.client.next_grant(ticket)


async def test_application_that_expires_as_an_inference_comes_is_opened_again(rig: Rig) -> None:
    """The inference was on its way: its caller did nothing that it could be refused for."""
    await rig.client.open_application(opened())
    ticket = rig.client.submit_inference(inference())
    await rig.taken(1)
    rig.scheduler.post(ended(), Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    opening, item = (await rig.taken(3))[1:]
    rig.scheduler.post(replace(grant(), request_id="q+"))

    assert replace(opened(), resubmitted=True) == opening
    assert isinstance(item, InferenceSubmitted)
    assert "q+" == (await waiting).request_id == item.request_id
    assert not rig.scheduler.batches[-1][1][2:], "it stays open for the next one"


_UNKNOWN = Refuse("q", "i", Refusal.UNKNOWN_APPLICATION)


async def test_inference_refused_twice_is_submitted_anew_once(rig: Rig) -> None:
    """Its batch was repeated while the scheduler stood still: the second answer is no news."""
    ticket = rig.client.submit_inference(inference(), opened())
    rig.scheduler.post(ended(), _UNKNOWN, _UNKNOWN)
    await eventually(lambda: len(ticket.answers) == 2, "both refusals are there")
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    await rig.taken(4)
    rig.client.submit_inference(inference("later", "b"))
    rig.scheduler.post(replace(grant(), request_id="q+"))

    assert ["q", "q+", "later"] == await rig.submitted("later")
    assert "q+" == (await waiting).request_id


async def test_lease_after_a_refusal_is_taken(rig: Rig) -> None:
    """Another ingress opened the application before the batch was repeated."""
    ticket = rig.client.submit_inference(inference(), opened())
    rig.scheduler.post(_UNKNOWN, grant())
    await eventually(lambda: len(ticket.answers) == 2, "both answers are there")

    lease = await rig.client.next_grant(ticket)
    rig.client.submit_inference(inference("later", "b"))

    assert "1-1" == lease.lease_id
    assert ["q", "later"] == await rig.submitted("later")


async def test_lease_that_could_not_be_used_is_refused_and_the_next_one_taken(rig: Rig) -> None:
    """The inference keeps its place; a scheduler that is away is asked again."""
    ticket, first = await rig.granted()
    rig.scheduler.fail_next("refuse_lease", ConnectionLost("cut"))
    await rig.client.nack_lease(ticket, first, NackReason.CONNECTION)
    rig.scheduler.post(grant(lease_id="1-2"))

    assert [("q", "1-1", NackReason.CONNECTION)] == rig.scheduler.refused
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_inference_that_has_ended_at_the_scheduler_is_submitted_under_another_id(
    rig: Rig,
) -> None:
    """Its replica reported an end that never reached the caller."""
    ticket, first = await rig.granted()
    rig.scheduler.still_waits = False
    await rig.client.nack_lease(ticket, first, NackReason.LEASE)
    *_, again = await rig.taken(4)

    assert isinstance(again, InferenceSubmitted)
    assert ("q+", True, None) == (again.request_id, again.resubmitted, again.lease_id)
    rig.scheduler.post(grant("q+", "1-2"))
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_inference_that_was_refused_at_the_scheduler_is_not_submitted_again(rig: Rig) -> None:
    """Its application was cancelled while it ran, and its replica's word came first.

    Submitted again with its opening, it would open the application again and run.
    """
    ticket, first = await rig.granted()
    rig.scheduler.still_waits = False
    rig.scheduler.post(Refuse("q", "i", Refusal.APPLICATION_CANCELLED))
    await rig.client.nack_lease(ticket, first, NackReason.LEASE)

    with pytest.raises(ApplicationIsClosed):
        await rig.client.next_grant(ticket)
    rig.client.submit_inference(inference("next"))
    assert [opened(), inference(), inference("next")] == await rig.taken(3)


# --- the end of applications


@pytest.mark.parametrize(("epoch", "ingress_id"), [(0, "i"), (1, "earlier")])
async def test_application_opened_under_an_earlier_epoch_or_name_is_told_again(
    rig: Rig, epoch: int, ingress_id: str
) -> None:
    """Its answer came after the scheduler was told of all that was open; one name hears its end."""

    async def answer(arrival: ApplicationArrived) -> Opened:
        return Opened(epoch, 42.0)

    rig.scheduler._open_application = answer  # type: ignore[method-assign]
    await rig.client.open_application(replace(opened(), ingress_id=ingress_id))

    assert [replace(opened(), resubmitted=True)] == await rig.taken(1)


@pytest.mark.parametrize(
    ("message", "told_ends"), [(ended(), [ended()]), (ForgetApplication("a", "i"), [])]
)
async def test_end_of_an_application_is_told_where_it_was_opened_last(
    rig: Rig,
    message: EndApplication | ForgetApplication,
    told_ends: list[EndApplication],
) -> None:
    """Its true cost is what the predictor learns from, once; elsewhere it is open no more."""
    await rig.client.open_application(opened())
    rig.scheduler.post(message)
    await rig.forgets()

    assert told_ends == rig.ended


# --- another scheduler


async def test_application_that_the_scheduler_has_no_room_for_is_not_open_here(rig: Rig) -> None:
    """It has no end to be heard of: kept as open it would be for ever, and never be opened.

    Its inference hears of it, and the owner: by a refusal, or by a lease that it was opened.
    """
    refused = rig.client.submit_inference(inference("q1", "a"), opened("a"))
    leased = rig.client.submit_inference(inference("q2", "b"), opened("b"))
    why = Refuse("q1", "i", Refusal.TOO_MANY_APPLICATIONS)
    rig.scheduler.post(RefuseApplication("a", "i"), why, grant("q2"))
    with pytest.raises(TooManyApplications, match=r"scheduler\.max_open_applications"):
        await rig.client.next_grant(refused)
    await rig.client.next_grant(leased)
    rig.client.cancel_inference(refused)

    assert [("a", False), ("b", True)] == rig.openings
    assert ["b"] == list(rig.pending.applications)
    assert ["q2"] == list(rig.pending.inferences)


async def test_opening_that_is_refused_is_an_error_that_says_when_to_come_back(rig: Rig) -> None:
    """Over its own call there is no inference to refuse."""
    rig.scheduler.refusal = Refusal.TOO_MANY_APPLICATIONS
    with pytest.raises(TooManyApplications) as refused:
        await rig.client.open_application(opened())

    assert 5.0 == refused.value.retry_after_s
    assert "a" not in rig.pending.applications


async def test_new_scheduler_is_told_what_has_ended_lately(rig: Rig) -> None:
    """What the last one had not saved is open again in the next, until it has long been idle."""
    for name in ("a", "b"):
        rig.client.submit_inference(inference(name, name), opened(name))
    await rig.taken(4)
    rig.scheduler.post(ended("a"), ended("b"))
    await rig.forgets("b")
    rig.client.submit_inference(inference("again", "b"), opened("b"))
    await rig.taken(6)
    rig.scheduler.replace()
    await eventually(lambda: ApplicationClosed("a") in rig.scheduler.items, "it is told")

    assert ApplicationClosed("b") not in rig.scheduler.items  # it was opened again


async def test_new_scheduler_is_told_all_that_is_outstanding(rig: Rig) -> None:
    """Applications first, then inferences with their age and the lease they hold."""
    running = rig.client.submit_inference(inference("running"), opened())
    rig.client.submit_inference(inference("waiting"))
    rig.scheduler.post(grant("running"))
    await rig.client.next_grant(running)
    await rig.taken(3)
    rig.scheduler.replace()
    first, *rest = await rig.taken(3)
    again = [item for item in rest if isinstance(item, InferenceSubmitted)]

    assert replace(opened(), resubmitted=True) == first
    found = [(item.request_id, item.resubmitted, item.lease_id) for item in again]
    assert [("running", True, "1-1"), ("waiting", True, None)] == found
    assert all(item.age_s > 0 for item in again)
    assert 2 == rig.client.session.epoch
    await eventually(lambda: rig.new_epochs == 1, "the owner is told")


@pytest.mark.parametrize("opened_by_call", [False, True])
async def test_application_that_ended_with_an_answer_that_was_lost_is_opened_again(
    rig: Rig, opened_by_call: bool
) -> None:
    """The scheduler that knew of the end is gone, and the next one does not know the application.

    One that refused it for another reason is not to run it.
    """
    if opened_by_call:
        await rig.client.open_application(opened())
        ticket = rig.client.submit_inference(inference())
        rig.client.close_application("a")
    else:
        ticket = rig.client.submit_inference(inference(), opened(), is_last=True)
    rig.scheduler.post(grant(), ended())
    await rig.client.next_grant(ticket)
    await rig.forgets()
    rig.scheduler.replace()
    await rig.follows(2)
    rig.scheduler.post(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    first, item, last = (await rig.taken(5))[-3:]

    assert (replace(opened(), resubmitted=True), ApplicationClosed("a")) == (first, last)
    assert isinstance(item, InferenceSubmitted)
    assert ("q+", True) == (item.request_id, item.resubmitted)
    rig.scheduler.post(Refuse("q+", "i", Refusal.APPLICATION_CANCELLED))
    with pytest.raises(ApplicationIsClosed):
        await waiting


async def test_new_scheduler_is_told_of_closings_that_had_not_been_sent(rig: Rig) -> None:
    """An application that is never closed would stay open until it expires."""
    await rig.client.open_application(opened())
    rig.scheduler.epoch = 2  # it has taken office, and nobody has heard of it yet
    rig.client.close_application("a")

    expected = [replace(opened(), resubmitted=True), ApplicationClosed("a")]
    assert expected == await rig.taken(2)


async def test_new_scheduler_is_told_of_closings_whose_end_was_not_heard_of(rig: Rig) -> None:
    """The old one may have died before it saved them, or before it told of the end."""
    rig.pending.note_answered(rig.client.submit_inference(inference("q1", "a"), opened("a")))
    rig.client.close_application("a")
    await rig.client.open_application(opened("b"))
    rig.pending.note_closed("b")
    await rig.client.open_application(opened("c"))
    await rig.taken(3)
    rig.scheduler.replace()

    expected = [replace(opened(name), resubmitted=True) for name in "abc"]
    expected_closings = [ApplicationClosed("a"), ApplicationClosed("b")]
    assert [*expected, *expected_closings] == await rig.taken(5)


async def test_application_that_is_opened_again_by_a_call_is_not_closed_at_a_new_scheduler(
    rig: Rig,
) -> None:
    """Its end was not told: whoever opens the id again must not hear of it."""
    await rig.client.open_application(opened("a"))
    rig.pending.note_closed("a")
    await rig.client.open_application(opened("a"))
    await rig.client.open_application(opened("b"))
    rig.pending.note_closed("b")
    rig.scheduler.replace()

    expected = [replace(opened(name), resubmitted=True) for name in "ab"]
    assert [*expected, ApplicationClosed("b")] == await rig.taken(3)


async def test_grants_of_the_new_scheduler_are_read_from_its_first(rig: Rig) -> None:
    """It numbers its messages from one again."""
    ticket = rig.client.submit_inference(inference(), opened())
    rig.scheduler.post(grant(), grant(lease_id="1-2"))
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id
    rig.scheduler.replace()
    await rig.taken(2)
    rig.scheduler.post(grant(lease_id="2-1"))

    assert "2-1" == (await rig.client.next_grant(ticket)).lease_id


async def test_scheduler_of_a_lower_epoch_is_not_listened_to(rig: Rig) -> None:
    """Two may be alive for a moment; the older one is about to end itself."""
    rig.scheduler.replace()
    await rig.follows(2)
    rig.scheduler.epoch = 1
    ticket = rig.client.submit_inference(inference(), opened())
    rig.scheduler.post(grant(lease_id="1-9"))
    rig.scheduler.fail_next("poll_grants", ConnectionLost("cut"))
    await eventually(lambda: rig.scheduler.failed, "it goes on asking")

    assert [] == rig.scheduler.items
    assert not ticket.answers
    rig.scheduler.replace()
    assert [opened(), inference()] == await rig.taken(2)


# --- a scheduler that has given this ingress up


async def test_ingress_that_was_forgotten_submits_everything_under_another_name(rig: Rig) -> None:
    """What it had outstanding was ended while it stood still: its callers still wait."""
    running = rig.client.submit_inference(inference("running"), opened("a"))
    rig.client.submit_inference(inference("waiting"))
    rig.client.close_application("a")
    rig.scheduler.post(grant("running"))
    await rig.client.next_grant(running)
    await rig.taken(4)
    rig.scheduler.forget()
    application, *inferences, closing = await rig.taken(4)

    before, after = rig.scheduler.ingress_ids
    assert before != after == rig.client.session.ingress_id
    assert isinstance(application, ApplicationArrived)
    assert ("a", after) == (application.application_id, application.ingress_id)
    found = [
        (item.request_id, item.ingress_id, item.resubmitted, item.lease_id)
        for item in inferences
        if isinstance(item, InferenceSubmitted)
    ]
    assert [("running", after, True, None), ("waiting", after, True, None)] == found
    assert ApplicationClosed("a") == closing
    assert (1, 0) == (rig.client.session.epoch, rig.new_epochs)


async def test_application_opened_anew_after_being_forgotten_has_the_new_name(rig: Rig) -> None:
    """Its end would be told to a name that nobody has, and it would stay open here for ever."""
    await rig.client.open_application(opened())
    ticket = rig.client.submit_inference(inference())
    rig.scheduler.post(grant(), ended())
    await rig.client.next_grant(ticket)
    await rig.forgets()
    rig.scheduler.forget()
    await rig.taken(2)
    rig.scheduler.post(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    opening = (await rig.taken(5))[-3]
    waiting.cancel()

    after = rig.client.session.ingress_id
    assert "i" != after
    assert replace(opened(), ingress_id=after, resubmitted=True) == opening


async def test_grants_after_being_forgotten_reach_their_callers(rig: Rig) -> None:
    """A lease granted before is revoked; one that was not yet used must not be used either."""
    ticket = rig.client.submit_inference(inference(), opened())
    rig.scheduler.post(grant(lease_id="1-1"))
    await eventually(lambda: ticket.answers, "the grant is there")
    rig.scheduler.forget()
    await rig.taken(2)
    rig.scheduler.post(grant(lease_id="1-2"))

    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_batch_that_found_the_ingress_forgotten_is_sent_once(rig: Rig) -> None:
    """It is part of everything that is outstanding."""
    rig.scheduler.fail_next("poll_grants", ConnectionLost("cut"))
    await eventually(lambda: rig.scheduler.failed, "no poll is on its way")
    rig.scheduler.forget()
    rig.client.submit_inference(inference("q1"), opened())
    await rig.taken(2)
    rig.client.submit_inference(inference("q2"))

    items = await rig.taken(3)
    requests = [item.request_id for item in items if isinstance(item, InferenceSubmitted)]
    assert ["q1", "q2"] == requests


# --- a scheduler that has lost its office


def superseded() -> SchedulerSuperseded:
    """Return what a call of it raises."""
    return SchedulerSuperseded("epoch 7 is in office, held by process 1 on host gpu-9")


async def test_opening_at_a_superseded_scheduler_says_who_is_in_office(rig: Rig) -> None:
    """A caller that waited for it would wait for ever."""
    rig.scheduler.fail_next("open_application", superseded())
    with pytest.raises(SchedulerSuperseded, match=r"host gpu-9$"):
        await rig.client.open_application(opened())


@pytest.mark.slow
async def test_what_waits_at_a_superseded_scheduler_is_refused_after_a_while(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No successor was found meanwhile: its office is held by another deployment."""
    monkeypatch.setattr(scheduler_session, "_GIVE_UP_S", 0.01)
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.001)
    ticket = rig.client.submit_inference(inference(), opened())
    await rig.taken(2)
    for method in ("poll_grants", "submit_many"):
        rig.scheduler.fail_next(method, *(superseded() for _ in range(10_000)))
    with pytest.raises(AdmissionError, match="/readyz says to whom"):
        await rig.client.next_grant(ticket)


async def test_successor_that_is_found_soon_loses_nothing(rig: Rig) -> None:
    """Ray leads to the new process of the actor a moment after the old one has said so."""
    ticket = rig.client.submit_inference(inference(), opened())
    await rig.taken(2)
    rig.scheduler.fail_next("poll_grants", superseded())
    rig.scheduler.replace()
    await rig.taken(2)
    rig.scheduler.post(grant())

    assert grant() == await rig.client.next_grant(ticket)


async def test_two_superseded_schedulers_are_not_one_that_never_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two failovers in a row each has its time, whatever lay between their answers."""
    monkeypatch.setattr(scheduler_session, "_GIVE_UP_S", 0.0)
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.001)
    ticket = rig.client.submit_inference(inference(), opened())
    await rig.taken(2)
    rig.scheduler.fail_next("poll_grants", superseded(), ConnectionLost("cut"), superseded())
    rig.scheduler.replace()
    await rig.taken(2)
    rig.scheduler.post(grant())

    assert grant() == await rig.client.next_grant(ticket)


async def test_what_a_new_scheduler_has_to_be_told_is_repeated_until_it_is(rig: Rig) -> None:
    """Settings that reach it no more would be those of its store, or the defaults."""
    rig.failures = [RayActorError(), RaySystemError("it is not in office any more")]
    rig.scheduler.replace()
    await eventually(lambda: rig.new_epochs == 3, "it was told after two failures")

    assert 2 == rig.client.session.epoch


async def test_new_scheduler_has_its_settings_before_anything_is_submitted_to_it(rig: Rig) -> None:
    """One that found none in its store would let in what the quotas refuse."""
    rig.client.submit_inference(inference(), opened())
    await rig.taken(2)
    rig.may_end.clear()
    rig.scheduler.replace()
    await eventually(lambda: rig.new_epochs == 1, "it is being told")
    await rig.follows(2)
    before = list(rig.scheduler.items)
    rig.may_end.set()
    await rig.taken(2)

    assert [] == before


async def test_settings_that_a_new_scheduler_does_not_take_hold_nothing_up_for_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle by which it is told may hang while the connection works."""
    monkeypatch.setattr(scheduler_session, "_PREPARED_WITHIN_S", 0.0)
    rig.client.submit_inference(inference(), opened())
    await rig.taken(2)
    rig.may_end.clear()
    rig.scheduler.replace()

    await rig.taken(2)
    assert not rig.may_end.is_set()
