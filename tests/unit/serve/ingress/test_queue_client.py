"""Queue client of an ingress: submission batches, grants, and repetition to a new scheduler."""

import asyncio
import gc
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
from tests.unit.serve.scheduler.services import arrival_of, submission_of

_MOST = 5


class Rig:
    """Queue client with a fake scheduler, and records of the callbacks it made."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.ended: list[EndApplication] = []
        self.openings: list[tuple[str, bool]] = []
        """Applications, each with whether it was opened (True) or closed (False)."""
        self.new_epochs = 0
        self.failures: list[Exception] = []
        """Errors that the callback of a new epoch raises."""
        self.may_end = asyncio.Event()
        """Event that lets the callback of a new epoch finish."""
        self.may_end.set()
        self.client = QueueClient(
            self.scheduler,
            self.ended.append,
            self._note_new_epoch,
            _MOST,
            0.0,
            lambda application_id, is_open: self.openings.append((application_id, is_open)),
        )
        self.pending = self.client.pending

    async def _note_new_epoch(self) -> None:
        self.new_epochs += 1
        await self.may_end.wait()
        if self.failures:
            raise self.failures.pop()

    async def accepted_items(self, count: int) -> list[object]:
        """Return the items that the scheduler has accepted, once there are that many."""
        await eventually(lambda: len(self.scheduler.items) >= count, f"{count} items are taken")
        return list(self.scheduler.items)

    async def accepted_inferences(self, last: str) -> list[str]:
        """Return the inferences that the scheduler has accepted, once `last` is among them."""

        def accepted_ids() -> list[str]:
            items = self.scheduler.items
            return [item.request_id for item in items if isinstance(item, InferenceSubmitted)]

        await eventually(lambda: last in accepted_ids(), f"{last} is taken")
        return accepted_ids()

    async def submit_and_grant(self) -> tuple[PendingInference, Grant]:
        ticket = self.client.submit_inference(submission_of(), arrival_of())
        self.scheduler.post_messages(grant_of())
        return ticket, await self.client.next_grant(ticket)

    async def wait_until_forgotten(self, name: str = "a") -> None:
        await eventually(lambda: name not in self.pending.applications, f"{name} is forgotten")

    async def wait_for_epoch(self, epoch: int) -> None:
        await eventually(lambda: self.client.session.epoch == epoch, f"it knows epoch {epoch}")


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Queue client that knows the scheduler's epoch and repeats failed calls at once."""
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.0)
    rig = Rig()
    rig.client.session.ingress_id = "i"
    rig.client.start()
    await rig.wait_for_epoch(1)
    yield rig
    await rig.client.stop()


def grant_of(request_id: str = "q", lease_id: str = "1-1") -> Grant:
    return Grant(request_id, "i", lease_id, "r", 1, 15, 0.0)


def end_of(name: str = "a") -> EndApplication:
    return replace(ENDED, application_id=name)


# --- submissions


async def test_concurrent_submissions_are_sent_as_one_ordered_batch(rig: Rig) -> None:
    """An inference that arrived before its application would be refused."""
    rig.client.submit_inference(submission_of("q1"), arrival_of())
    rig.client.submit_inference(submission_of("q2"))
    rig.client.close_application("a")

    expected = [arrival_of(), submission_of("q1"), submission_of("q2"), ApplicationClosed("a")]
    assert expected == await rig.accepted_items(4)
    assert [4] == [len(items) for _, items in rig.scheduler.batches if items]


async def test_large_backlog_of_submissions_is_sent_in_several_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader receives all outstanding items and must answer other calls meanwhile."""
    monkeypatch.setattr(scheduler_session, "BATCH", 2)
    rig.client.submit_inference(submission_of("q1"), arrival_of())
    rig.client.submit_inference(submission_of("q2"))
    rig.client.close_application("a")
    sent = [arrival_of(), submission_of("q1"), submission_of("q2"), ApplicationClosed("a")]

    assert sent == await rig.accepted_items(4)
    assert [2, 2] == [len(items) for _, items in rig.scheduler.batches if items]


@pytest.mark.parametrize("error", [ConnectionLost("cut"), RemoteFailure("a bug")])
async def test_failed_submission_is_repeated_once(rig: Rig, error: Exception) -> None:
    """A scheduler that restarts or fails a call must not lose an inference."""
    rig.scheduler.fail_next("submit_many", error)
    rig.client.submit_inference(submission_of(), arrival_of())
    await eventually(lambda: rig.scheduler.failed, "the first submission has failed")

    assert [arrival_of(), submission_of()] == await rig.accepted_items(2)
    rig.client.submit_inference(submission_of("last"))
    assert [arrival_of(), submission_of(), submission_of("last")] == await rig.accepted_items(3)


async def test_submissions_beyond_the_ingress_limit_are_refused(rig: Rig) -> None:
    """The memory of the ingress is bounded, and the caller gets a retry time.

    The refused call takes no place in its stage: otherwise every retry would widen the fan-out.
    """
    first, *_ = [
        rig.client.submit_inference(submission_of(f"q{i}"), arrival_of()) for i in range(_MOST)
    ]
    before = rig.pending.next_stage("a")
    with pytest.raises(QueueFull, match="5 inferences are outstanding") as refused:
        rig.client.submit_inference(submission_of("one more"))

    assert refused.value.retry_after_s is not None
    assert before == rig.pending.next_stage("a")
    rig.pending.note_answered(first)
    rig.client.submit_inference(submission_of("one more"))
    assert _MOST == len(rig.pending.inferences)


async def test_opening_of_an_application_is_repeated_until_the_scheduler_is_reachable(
    rig: Rig,
) -> None:
    """The caller that opens the application waits for the restart of the scheduler."""
    rig.scheduler.fail_next("open_application", ConnectionLost("cut"), ConnectionLost("cut"))

    assert 42.0 == (await rig.client.open_application(arrival_of())).virtual_finish_time
    assert "a" in rig.pending.applications


# --- grants


async def test_grant_reaches_its_inference_exactly_once(rig: Rig) -> None:
    """A poll and the answer to a submission can carry the same grant."""
    ticket, first = await rig.submit_and_grant()
    rig.client.submit_inference(submission_of("other"))
    await rig.accepted_items(3)

    assert grant_of() == first
    assert not ticket.answers


async def test_error_of_the_queue_clients_callback_is_logged(rig: Rig) -> None:
    """The error ends the task that reads the scheduler's messages."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(str(context["exception"]))
    )

    def fail_callback(application_id: str, is_open: bool) -> None:
        raise ValueError("a broken callback")

    rig.client._on_opening = fail_callback
    rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(grant_of())

    def is_logged() -> bool:
        gc.collect()  # Asyncio reports the error when the task is garbage-collected.
        return "a broken callback" in reported

    await eventually(is_logged, "the error is reported")


async def test_running_call_learns_of_a_newer_lease(rig: Rig) -> None:
    """The scheduler revoked the first lease, because its replica was silent."""
    ticket, first = await rig.submit_and_grant()
    told: list[str] = []
    ticket.on_grant = lambda newer: told.append(newer.lease_id)
    for number in (2, 3):
        rig.scheduler.post_messages(grant_of(lease_id=f"1-{number}"))
    await eventually(lambda: len(told) == 2, "both are told")

    assert ("1-1", ["1-2", "1-3"]) == (first.lease_id, told)
    assert "1-3" == (await rig.client.next_grant(ticket)).lease_id
    assert not ticket.answers


async def test_grant_of_a_cancelled_inference_is_returned(rig: Rig) -> None:
    """The caller disconnected while the grant was on its way.

    Its KV must not stay reserved until the lapse.
    """
    rig.client.cancel_inference(rig.client.submit_inference(submission_of(), arrival_of()))
    await rig.accepted_items(3)
    rig.scheduler.post_messages(grant_of())

    expected = [arrival_of(), submission_of(), InferenceCancelled("q"), InferenceCancelled("q")]
    assert expected == await rig.accepted_items(4)


async def test_lease_of_an_already_answered_inference_is_returned(rig: Rig) -> None:
    """Otherwise its replica would reserve a seat for an inference that never comes."""
    ticket, _ = await rig.submit_and_grant()
    rig.scheduler.post_messages(grant_of(lease_id="1-2"))
    await eventually(lambda: ticket.answers, "the second lease arrives")
    rig.client.note_answered(ticket)

    assert InferenceCancelled("q") == (await rig.accepted_items(3))[-1]


async def test_answered_inference_with_a_single_lease_is_not_cancelled(rig: Rig) -> None:
    """A new scheduler grants a running inference's lease again, which is no second lease."""
    ticket, _ = await rig.submit_and_grant()
    rig.scheduler.post_messages(grant_of())
    await eventually(lambda: ticket.answers, "the lease arrives again")
    rig.client.note_answered(ticket)
    rig.client.close_application("a")

    assert ApplicationClosed("a") == (await rig.accepted_items(3))[-1]
    assert {} == rig.pending.inferences


async def test_ended_inference_is_not_cancelled_at_the_scheduler(rig: Rig) -> None:
    """Every caller cancels when it finishes, however the inference ended."""
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.pending.note_answered(ticket)
    rig.client.cancel_inference(ticket)
    rig.client.close_application("a")

    assert [arrival_of(), submission_of(), ApplicationClosed("a")] == await rig.accepted_items(3)


async def test_refused_inference_raises_the_reason(rig: Rig) -> None:
    """Without the refusal the caller would wait forever."""
    ticket = rig.client.submit_inference(submission_of())
    rig.scheduler.post_messages(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    with pytest.raises(UnknownApplication, match="application 'a'"):
        await rig.client.next_grant(ticket)


async def test_application_that_expires_during_a_submission_is_reopened(rig: Rig) -> None:
    """The inference was on its way when the application expired."""
    await rig.client.open_application(arrival_of())
    ticket = rig.client.submit_inference(submission_of())
    await rig.accepted_items(1)
    rig.scheduler.post_messages(end_of(), Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    opening, item = (await rig.accepted_items(3))[1:]
    rig.scheduler.post_messages(replace(grant_of(), request_id="q+"))

    assert replace(arrival_of(), resubmitted=True) == opening
    assert isinstance(item, InferenceSubmitted)
    assert "q+" == (await waiting).request_id == item.request_id
    assert not rig.scheduler.batches[-1][1][2:], "it stays open for the next one"


_UNKNOWN = Refuse("q", "i", Refusal.UNKNOWN_APPLICATION)


async def test_duplicate_refusal_does_not_resubmit_an_inference_again(rig: Rig) -> None:
    """The second refusal is a duplicate: the client repeated a batch during a stall."""
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(end_of(), _UNKNOWN, _UNKNOWN)
    await eventually(lambda: len(ticket.answers) == 2, "both refusals are there")
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    await rig.accepted_items(4)
    rig.client.submit_inference(submission_of("later", "b"))
    rig.scheduler.post_messages(replace(grant_of(), request_id="q+"))

    assert ["q", "q+", "later"] == await rig.accepted_inferences("later")
    assert "q+" == (await waiting).request_id


async def test_lease_that_follows_a_refusal_is_accepted(rig: Rig) -> None:
    """Another ingress opened the application before the batch was repeated."""
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(_UNKNOWN, grant_of())
    await eventually(lambda: len(ticket.answers) == 2, "both answers are there")

    lease = await rig.client.next_grant(ticket)
    rig.client.submit_inference(submission_of("later", "b"))

    assert "1-1" == lease.lease_id
    assert ["q", "later"] == await rig.accepted_inferences("later")


async def test_unusable_lease_is_returned_and_the_next_lease_is_used(rig: Rig) -> None:
    """The inference keeps its place; the client repeats the return until the scheduler has it."""
    ticket, first = await rig.submit_and_grant()
    rig.scheduler.fail_next("refuse_lease", ConnectionLost("cut"))
    await rig.client.nack_lease(ticket, first, NackReason.CONNECTION)
    rig.scheduler.post_messages(grant_of(lease_id="1-2"))

    assert [("q", "1-1", NackReason.CONNECTION)] == rig.scheduler.refused
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_inference_that_the_scheduler_ended_is_resubmitted_under_another_id(
    rig: Rig,
) -> None:
    """The replica reported an end, but the caller received no answer."""
    ticket, first = await rig.submit_and_grant()
    rig.scheduler.still_waits = False
    await rig.client.nack_lease(ticket, first, NackReason.LEASE)
    *_, again = await rig.accepted_items(4)

    assert isinstance(again, InferenceSubmitted)
    assert ("q+", True, None) == (again.request_id, again.resubmitted, again.lease_id)
    rig.scheduler.post_messages(grant_of("q+", "1-2"))
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_inference_of_a_cancelled_application_is_not_submitted_again(rig: Rig) -> None:
    """The application was cancelled while the inference ran.

    A resubmission would reopen the application and run again.
    """
    ticket, first = await rig.submit_and_grant()
    rig.scheduler.still_waits = False
    rig.scheduler.post_messages(Refuse("q", "i", Refusal.APPLICATION_CANCELLED))
    await rig.client.nack_lease(ticket, first, NackReason.LEASE)

    with pytest.raises(ApplicationIsClosed):
        await rig.client.next_grant(ticket)
    rig.client.submit_inference(submission_of("next"))
    assert [arrival_of(), submission_of(), submission_of("next")] == await rig.accepted_items(3)


# --- the end of applications


@pytest.mark.parametrize(("epoch", "ingress_id"), [(0, "i"), (1, "earlier")])
async def test_application_known_only_to_an_earlier_scheduler_is_opened_again(
    rig: Rig, epoch: int, ingress_id: str
) -> None:
    """The ingress had already reported its open applications to the new scheduler."""

    async def answer_opening(arrival: ApplicationArrived) -> Opened:
        return Opened(epoch, 42.0)

    rig.scheduler._open_application = answer_opening  # type: ignore[method-assign]
    await rig.client.open_application(replace(arrival_of(), ingress_id=ingress_id))

    assert [replace(arrival_of(), resubmitted=True)] == await rig.accepted_items(1)


async def test_application_reopened_at_a_scheduler_keeps_its_first_options(rig: Rig) -> None:
    """A second opening may have another class, and its scheduler keeps the first.

    An application that has ended meanwhile at the scheduler is new.
    """
    first, second = arrival_of(), replace(arrival_of(), application_class="other", weight=7.0)
    is_known = False

    async def answer_opening(arrival: ApplicationArrived) -> Opened:
        return Opened(1, 42.0, is_known=is_known)

    rig.scheduler._open_application = answer_opening  # type: ignore[method-assign]
    await rig.client.open_application(first)
    rig.client.close_application("a")
    is_known = True
    again = await rig.client.open_application(second)
    kept = rig.pending.applications["a"]
    is_known = False
    anew = await rig.client.open_application(second)

    assert (first, False, first) == (again.arrival, again.is_new, kept)
    assert (second, True) == (anew.arrival, anew.is_new)
    assert second is rig.pending.applications["a"]


@pytest.mark.parametrize(
    ("message", "told_ends"), [(end_of(), [end_of()]), (ForgetApplication("a", "i"), [])]
)
async def test_ingress_that_last_opened_an_application_reports_its_end(
    rig: Rig,
    message: EndApplication | ForgetApplication,
    told_ends: list[EndApplication],
) -> None:
    """The predictor must receive the true cost once, from one ingress."""
    await rig.client.open_application(arrival_of())
    rig.scheduler.post_messages(message)
    await rig.wait_until_forgotten()

    assert told_ends == rig.ended


# --- another scheduler


async def test_application_refused_for_a_full_queue_is_not_kept_open(rig: Rig) -> None:
    """The scheduler never reports an end of an application that it refused.

    Either the refusal or the lease of its inference decides.
    """
    refused = rig.client.submit_inference(submission_of("q1", "a"), arrival_of("a"))
    leased = rig.client.submit_inference(submission_of("q2", "b"), arrival_of("b"))
    why = Refuse("q1", "i", Refusal.TOO_MANY_APPLICATIONS)
    rig.scheduler.post_messages(RefuseApplication("a", "i"), why, grant_of("q2"))
    with pytest.raises(TooManyApplications, match=r"scheduler\.max_open_applications"):
        await rig.client.next_grant(refused)
    await rig.client.next_grant(leased)
    rig.client.cancel_inference(refused)

    assert [("a", False), ("b", True)] == rig.openings
    assert ["b"] == list(rig.pending.applications)
    assert ["q2"] == list(rig.pending.inferences)


async def test_refused_opening_raises_an_error_with_a_retry_time(rig: Rig) -> None:
    """An explicit opening has no inference that could carry the refusal."""
    rig.scheduler.refusal = Refusal.TOO_MANY_APPLICATIONS
    with pytest.raises(TooManyApplications) as refused:
        await rig.client.open_application(arrival_of())

    assert 5.0 == refused.value.retry_after_s
    assert "a" not in rig.pending.applications


async def test_new_scheduler_receives_recently_ended_applications(rig: Rig) -> None:
    """An end that the last scheduler had not saved would leave its application open at the next."""
    for name in ("a", "b"):
        rig.client.submit_inference(submission_of(name, name), arrival_of(name))
    await rig.accepted_items(4)
    rig.scheduler.post_messages(end_of("a"), end_of("b"))
    await rig.wait_until_forgotten("b")
    rig.client.submit_inference(submission_of("again", "b"), arrival_of("b"))
    await rig.accepted_items(6)
    rig.scheduler.replace_scheduler()
    await eventually(lambda: ApplicationClosed("a") in rig.scheduler.items, "it is told")

    assert ApplicationClosed("b") not in rig.scheduler.items  # it was opened again


async def test_new_scheduler_receives_all_outstanding_submissions(rig: Rig) -> None:
    """Applications are sent first, then inferences with their age and current lease."""
    running = rig.client.submit_inference(submission_of("running"), arrival_of())
    rig.client.submit_inference(submission_of("waiting"))
    rig.scheduler.post_messages(grant_of("running"))
    await rig.client.next_grant(running)
    await rig.accepted_items(3)
    rig.scheduler.replace_scheduler()
    first, *rest = await rig.accepted_items(3)
    again = [item for item in rest if isinstance(item, InferenceSubmitted)]

    assert replace(arrival_of(), resubmitted=True) == first
    found = [(item.request_id, item.resubmitted, item.lease_id) for item in again]
    assert [("running", True, "1-1"), ("waiting", True, None)] == found
    assert all(item.age_s > 0 for item in again)
    assert 2 == rig.client.session.epoch
    await eventually(lambda: rig.new_epochs == 1, "the owner is told")


@pytest.mark.parametrize("opened_by_call", [False, True])
async def test_application_is_opened_again_if_its_end_was_not_stored(
    rig: Rig, opened_by_call: bool
) -> None:
    """The next scheduler has no record of the application or its end.

    A call that was refused for another reason must not run.
    """
    if opened_by_call:
        await rig.client.open_application(arrival_of())
        ticket = rig.client.submit_inference(submission_of())
        rig.client.close_application("a")
    else:
        ticket = rig.client.submit_inference(submission_of(), arrival_of(), is_last=True)
    rig.scheduler.post_messages(grant_of(), end_of())
    await rig.client.next_grant(ticket)
    await rig.wait_until_forgotten()
    rig.scheduler.replace_scheduler()
    await rig.wait_for_epoch(2)
    rig.scheduler.post_messages(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    first, item, last = (await rig.accepted_items(5))[-3:]

    assert (replace(arrival_of(), resubmitted=True), ApplicationClosed("a")) == (first, last)
    assert isinstance(item, InferenceSubmitted)
    assert ("q+", True) == (item.request_id, item.resubmitted)
    rig.scheduler.post_messages(Refuse("q+", "i", Refusal.APPLICATION_CANCELLED))
    with pytest.raises(ApplicationIsClosed):
        await waiting


async def test_new_scheduler_receives_unsent_closings(rig: Rig) -> None:
    """An application that is never closed would stay open until it expires."""
    await rig.client.open_application(arrival_of())
    rig.scheduler.epoch = 2  # The scheduler leads, but no message has announced its epoch yet.
    rig.client.close_application("a")

    expected = [replace(arrival_of(), resubmitted=True), ApplicationClosed("a")]
    assert expected == await rig.accepted_items(2)


async def test_new_scheduler_receives_unconfirmed_application_closings(
    rig: Rig,
) -> None:
    """The old scheduler may have died before it saved the closings or reported the ends."""
    rig.pending.note_answered(
        rig.client.submit_inference(submission_of("q1", "a"), arrival_of("a"))
    )
    rig.client.close_application("a")
    await rig.client.open_application(arrival_of("b"))
    rig.pending.note_closed("b")
    await rig.client.open_application(arrival_of("c"))
    await rig.accepted_items(3)
    rig.scheduler.replace_scheduler()

    expected = [replace(arrival_of(name), resubmitted=True) for name in "abc"]
    expected_closings = [ApplicationClosed("a"), ApplicationClosed("b")]
    assert [*expected, *expected_closings] == await rig.accepted_items(5)


async def test_reopened_application_is_not_closed_at_a_new_scheduler(
    rig: Rig,
) -> None:
    """The caller that reopened the id must not receive the end of the earlier application."""
    await rig.client.open_application(arrival_of("a"))
    rig.pending.note_closed("a")
    await rig.client.open_application(arrival_of("a"))
    await rig.client.open_application(arrival_of("b"))
    rig.pending.note_closed("b")
    rig.scheduler.replace_scheduler()

    expected = [replace(arrival_of(name), resubmitted=True) for name in "ab"]
    assert [*expected, ApplicationClosed("b")] == await rig.accepted_items(3)


async def test_all_messages_of_a_new_scheduler_are_read(rig: Rig) -> None:
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(grant_of(), grant_of(lease_id="1-2"))
    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id
    rig.scheduler.replace_scheduler()
    await rig.accepted_items(2)
    rig.scheduler.post_messages(grant_of(lease_id="2-1"))

    assert "2-1" == (await rig.client.next_grant(ticket)).lease_id


async def test_messages_of_a_lower_epoch_are_ignored(rig: Rig) -> None:
    """Two schedulers may run for a moment; the one of the lower epoch is about to stop."""
    rig.scheduler.replace_scheduler()
    await rig.wait_for_epoch(2)
    rig.scheduler.epoch = 1
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(grant_of(lease_id="1-9"))
    rig.scheduler.fail_next("poll_grants", ConnectionLost("cut"))
    await eventually(lambda: rig.scheduler.failed, "it goes on asking")

    assert [] == rig.scheduler.items
    assert not ticket.answers
    rig.scheduler.replace_scheduler()
    assert [arrival_of(), submission_of()] == await rig.accepted_items(2)


# --- a scheduler that has forgotten this ingress


async def test_forgotten_ingress_resubmits_all_inferences_under_another_ingress_id(
    rig: Rig,
) -> None:
    """After a stall, the scheduler has ended the ingress's inferences; their callers still wait."""
    running = rig.client.submit_inference(submission_of("running"), arrival_of("a"))
    rig.client.submit_inference(submission_of("waiting"))
    rig.client.close_application("a")
    rig.scheduler.post_messages(grant_of("running"))
    await rig.client.next_grant(running)
    await rig.accepted_items(4)
    rig.scheduler.forget_ingress()
    application, *inferences, closing = await rig.accepted_items(4)

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


async def test_application_reopened_by_a_forgotten_ingress_has_its_new_id(rig: Rig) -> None:
    """The end of the application is sent to the ingress id that opened it."""
    await rig.client.open_application(arrival_of())
    ticket = rig.client.submit_inference(submission_of())
    rig.scheduler.post_messages(grant_of(), end_of())
    await rig.client.next_grant(ticket)
    await rig.wait_until_forgotten()
    rig.scheduler.forget_ingress()
    await rig.accepted_items(2)
    rig.scheduler.post_messages(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(rig.client.next_grant(ticket))
    opening = (await rig.accepted_items(5))[-3]
    waiting.cancel()

    after = rig.client.session.ingress_id
    assert "i" != after
    assert replace(arrival_of(), ingress_id=after, resubmitted=True) == opening


async def test_callers_of_a_forgotten_ingress_get_leases_under_its_new_id(rig: Rig) -> None:
    """Leases of the earlier ingress id are revoked; the caller gets the one granted after them."""
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    rig.scheduler.post_messages(grant_of(lease_id="1-1"))
    await eventually(lambda: ticket.answers, "the grant is there")
    rig.scheduler.forget_ingress()
    await rig.accepted_items(2)
    rig.scheduler.post_messages(grant_of(lease_id="1-2"))

    assert "1-2" == (await rig.client.next_grant(ticket)).lease_id


async def test_forgotten_ingress_sends_its_pending_batch_once(rig: Rig) -> None:
    """The batch is part of the outstanding items that are sent again."""
    rig.scheduler.fail_next("poll_grants", ConnectionLost("cut"))
    await eventually(lambda: rig.scheduler.failed, "no poll is on its way")
    rig.scheduler.forget_ingress()
    rig.client.submit_inference(submission_of("q1"), arrival_of())
    await rig.accepted_items(2)
    rig.client.submit_inference(submission_of("q2"))

    items = await rig.accepted_items(3)
    requests = [item.request_id for item in items if isinstance(item, InferenceSubmitted)]
    assert ["q1", "q2"] == requests


# --- a superseded scheduler


def superseded_error() -> SchedulerSuperseded:
    return SchedulerSuperseded("epoch 7 is in office, held by process 1 on host gpu-9")


async def test_superseded_scheduler_names_the_leader_at_an_opening(rig: Rig) -> None:
    rig.scheduler.fail_next("open_application", superseded_error())
    with pytest.raises(SchedulerSuperseded, match=r"host gpu-9$"):
        await rig.client.open_application(arrival_of())


@pytest.mark.slow
async def test_inferences_are_refused_if_no_successor_is_found_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a successor after this time, another deployment must be leading."""
    monkeypatch.setattr(scheduler_session, "_GIVE_UP_S", 0.01)
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.001)
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    await rig.accepted_items(2)
    for method in ("poll_grants", "submit_many"):
        rig.scheduler.fail_next(method, *(superseded_error() for _ in range(10_000)))
    with pytest.raises(AdmissionError, match="/readyz says to whom"):
        await rig.client.next_grant(ticket)


async def test_quick_discovery_of_a_new_scheduler_loses_no_inference(rig: Rig) -> None:
    """Ray resolves the actor's name to the new process shortly after the failover."""
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    await rig.accepted_items(2)
    rig.scheduler.fail_next("poll_grants", superseded_error())
    rig.scheduler.replace_scheduler()
    await rig.accepted_items(2)
    rig.scheduler.post_messages(grant_of())

    assert grant_of() == await rig.client.next_grant(ticket)


async def test_each_superseded_scheduler_restarts_the_wait_for_a_successor(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two failovers in a row each get the full waiting time."""
    monkeypatch.setattr(scheduler_session, "_GIVE_UP_S", 0.0)
    monkeypatch.setattr(scheduler_session, "_RETRY_S", 0.001)
    ticket = rig.client.submit_inference(submission_of(), arrival_of())
    await rig.accepted_items(2)
    rig.scheduler.fail_next(
        "poll_grants", superseded_error(), ConnectionLost("cut"), superseded_error()
    )
    rig.scheduler.replace_scheduler()
    await rig.accepted_items(2)
    rig.scheduler.post_messages(grant_of())

    assert grant_of() == await rig.client.next_grant(ticket)


async def test_ingress_repeats_settings_until_a_new_scheduler_accepts_them(rig: Rig) -> None:
    """A scheduler without its settings would use stored ones or the defaults."""
    rig.failures = [RayActorError(), RaySystemError("it is not in office any more")]
    rig.scheduler.replace_scheduler()
    await eventually(lambda: rig.new_epochs == 3, "it was told after two failures")

    assert 2 == rig.client.session.epoch


async def test_new_scheduler_has_its_settings_before_any_submission(rig: Rig) -> None:
    """A scheduler without its settings would admit what the quotas refuse."""
    rig.client.submit_inference(submission_of(), arrival_of())
    await rig.accepted_items(2)
    rig.may_end.clear()
    rig.scheduler.replace_scheduler()
    await eventually(lambda: rig.new_epochs == 1, "it is being told")
    await rig.wait_for_epoch(2)
    before = list(rig.scheduler.items)
    rig.may_end.set()
    await rig.accepted_items(2)

    assert [] == before


async def test_hanging_settings_call_delays_submissions_only_briefly(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call with the settings may hang while the connection for submissions works."""
    monkeypatch.setattr(scheduler_session, "_PREPARED_WITHIN_S", 0.0)
    rig.client.submit_inference(submission_of(), arrival_of())
    await rig.accepted_items(2)
    rig.may_end.clear()
    rig.scheduler.replace_scheduler()

    await rig.accepted_items(2)
    assert not rig.may_end.is_set()
