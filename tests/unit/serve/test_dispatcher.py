"""The ingress's side of the queue: batches, grants, and what a new scheduler is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from ray.exceptions import RayActorError, RaySystemError, RayTaskError

from justitia_ray.core.actions import (
    EndApplication,
    ForgetApplication,
    Grant,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceCancelled,
    InferenceSubmitted,
)
from justitia_ray.errors import (
    AdmissionError,
    QueueFull,
    SchedulerSuperseded,
    TooManyApplications,
    UnknownApplication,
)
from justitia_ray.errors import ApplicationClosed as ClosedError
from justitia_ray.protocol.messages import Opened
from justitia_ray.serve import failed_calls
from justitia_ray.serve.dispatcher import Dispatcher
from tests.eventually import eventually

from .fake_scheduler import FakeScheduler, Method

_MOST = 5


class Told:
    """What the dispatcher has told its owner."""

    def __init__(self) -> None:
        self.ended: list[EndApplication] = []
        self.openings: list[tuple[str, bool]] = []
        """Applications, and whether they are open."""
        self.new_epochs = 0
        self.failures: list[Exception] = []
        """Of what is done at a new epoch."""

    def opening(self, application_id: str, is_open: bool) -> None:
        """Keep it."""
        self.openings.append((application_id, is_open))

    async def new_epoch(self) -> None:
        """Count it."""
        self.new_epochs += 1
        if self.failures:
            raise self.failures.pop()


@pytest.fixture
def scheduler() -> FakeScheduler:
    """The scheduler."""
    return FakeScheduler()


@pytest.fixture
def told() -> Told:
    """The owner."""
    return Told()


@pytest.fixture
async def dispatcher(
    scheduler: FakeScheduler, told: Told, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Dispatcher]:
    """A dispatcher that knows the scheduler's epoch and repeats calls at once."""
    monkeypatch.setattr(failed_calls, "_RETRY_S", 0.0)
    dispatcher = Dispatcher(scheduler, told.ended.append, told.new_epoch, _MOST, 0.0, told.opening)
    dispatcher._conversation.ingress_id = "i"
    dispatcher.start()
    await eventually(lambda: dispatcher.epoch == 1, "it knows the epoch")
    yield dispatcher
    await dispatcher.stop()


def opened(name: str = "a") -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", 1.0, 100.0, "i")


def inference(request_id: str = "q", application_id: str = "a") -> InferenceSubmitted:
    """Return an inference."""
    return InferenceSubmitted(request_id, application_id, "0", "i", 10, 5, 5)


def grant(request_id: str = "q", lease_id: str = "1-1") -> Grant:
    """Return a lease for it."""
    return Grant(request_id, "i", lease_id, "r", 1, 15, 0.0)


def ended(name: str = "a") -> EndApplication:
    """Return the end of an application."""
    return EndApplication(
        name, "c", "t", "i", Outcome.FINISHED, 100.0, 90.0, 1.0, 0.0, 0.5, 1.0, 1, 0, 5, 0
    )


async def taken(scheduler: FakeScheduler, count: int) -> list[object]:
    """Return what the scheduler has taken, once it is that much."""
    await eventually(lambda: len(scheduler.items) >= count, f"{count} items are taken")
    return list(scheduler.items)


# --- submissions


async def test_what_is_submitted_at_once_goes_in_one_batch_and_in_order(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """An inference that came before its application would be refused; and batches are cheap."""
    dispatcher.submit(inference("q1"), opened())
    dispatcher.submit(inference("q2"))
    dispatcher.close_application("a")

    expected = [opened(), inference("q1"), inference("q2"), ApplicationClosed("a")]
    assert expected == await taken(scheduler, 4)
    assert [4] == [len(items) for _, items in scheduler.batches if items]


@pytest.mark.parametrize("error", [RayActorError(), RaySystemError("a bug")])
async def test_submission_that_failed_is_repeated_once(
    dispatcher: Dispatcher, scheduler: FakeScheduler, error: Exception
) -> None:
    """A scheduler that is being started again, or fails a call, must not lose an inference."""
    scheduler.fail_next("submit_many", error)
    dispatcher.submit(inference(), opened())
    await eventually(lambda: scheduler.failed, "the first submission has failed")

    assert [opened(), inference()] == await taken(scheduler, 2)
    dispatcher.submit(inference("last"))
    assert [opened(), inference(), inference("last")] == await taken(scheduler, 3)


async def test_more_than_the_allowed_number_is_refused(dispatcher: Dispatcher) -> None:
    """The ingress's memory is bounded; the caller is asked to come back."""
    tickets = [dispatcher.submit(inference(f"q{i}")) for i in range(_MOST)]
    with pytest.raises(QueueFull, match="5 inferences are outstanding") as refused:
        dispatcher.submit(inference("one more"))
    dispatcher.end(tickets[0])
    dispatcher.submit(inference("one more"))

    assert 5.0 == refused.value.retry_after_s
    assert _MOST == dispatcher.outstanding


async def test_opening_is_repeated_until_the_scheduler_is_there(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """A caller who opens an application during a restart waits, and does not fail."""
    scheduler.fail_next("open_application", RayActorError(), RayActorError())

    assert 42.0 == await dispatcher.open_application(opened())
    assert dispatcher.opened_here("a") is not None


# --- grants


async def test_grant_reaches_its_inference_and_only_once(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """The long-poll and the answer to a submission carry the same messages."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant())
    first = await dispatcher.next_grant(ticket)
    dispatcher.submit(inference("other"))
    await taken(scheduler, 3)

    assert grant() == first
    assert not ticket.answers


async def test_grant_of_a_caller_that_has_left_is_given_back(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """The grant was on its way when its caller left; its KV must not wait for a lapse."""
    dispatcher.cancel(dispatcher.submit(inference(), opened()))
    await taken(scheduler, 3)
    scheduler.post(grant())

    expected = [opened(), inference(), InferenceCancelled("q"), InferenceCancelled("q")]
    assert expected == await taken(scheduler, 4)


async def test_inference_that_has_ended_is_not_cancelled(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Cancelling is what every caller does at the end, whatever the end was."""
    ticket = dispatcher.submit(inference(), opened())
    dispatcher.end(ticket)
    dispatcher.cancel(ticket)
    dispatcher.close_application("a")

    assert [opened(), inference(), ApplicationClosed("a")] == await taken(scheduler, 3)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Refusal.UNKNOWN_APPLICATION, UnknownApplication),
        (Refusal.APPLICATION_CLOSED, ClosedError),
        (Refusal.APPLICATION_CANCELLED, ClosedError),
        (Refusal.APPLICATION_EXPIRED, ClosedError),
    ],
)
async def test_refused_inference_tells_its_caller_why(
    dispatcher: Dispatcher, scheduler: FakeScheduler, reason: Refusal, error: type[Exception]
) -> None:
    """Otherwise it would wait for ever."""
    ticket = dispatcher.submit(inference())
    scheduler.post(Refuse("q", "i", reason))
    with pytest.raises(error, match="application 'a'"):
        await dispatcher.next_grant(ticket)


async def test_lease_that_could_not_be_used_is_refused_and_the_next_one_taken(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """The inference keeps its place; a scheduler that is away is asked again."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant())
    first = await dispatcher.next_grant(ticket)
    scheduler.fail_next("refuse_lease", RayActorError())
    await dispatcher.refuse(ticket, first, replica_gone=True)
    scheduler.post(grant(lease_id="1-2"))

    assert [("q", "1-1", "r", True)] == scheduler.refused
    assert "1-2" == (await dispatcher.next_grant(ticket)).lease_id


async def test_inference_that_has_ended_at_the_scheduler_is_submitted_under_another_id(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Its replica reported an end that never reached the caller."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant())
    first = await dispatcher.next_grant(ticket)
    scheduler.still_waits = False
    await dispatcher.refuse(ticket, first, replica_gone=False)
    *_, again = await taken(scheduler, 4)

    assert isinstance(again, InferenceSubmitted)
    assert ("q+", True, None) == (again.request_id, again.again, again.lease_id)
    scheduler.post(grant("q+", "1-2"))
    assert "1-2" == (await dispatcher.next_grant(ticket)).lease_id


async def test_inference_that_was_refused_at_the_scheduler_is_not_submitted_again(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Its application was cancelled while it ran, and its replica's word came first.

    Submitted again with its opening, it would open the application again and run.
    """
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant())
    first = await dispatcher.next_grant(ticket)
    scheduler.still_waits = False
    scheduler.post(Refuse("q", "i", Refusal.APPLICATION_CANCELLED))
    await dispatcher.refuse(ticket, first, replica_gone=False)

    with pytest.raises(ClosedError):
        await dispatcher.next_grant(ticket)
    dispatcher.submit(inference("next"))
    assert [opened(), inference(), inference("next")] == await taken(scheduler, 3)


# --- the end of applications


async def test_application_that_others_have_open_too_is_open_no_more_with_its_end(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """Its end is for the ingress that opened it last; here it only has to be forgotten."""
    await dispatcher.open_application(opened())
    scheduler.post(ForgetApplication("a", "i"))
    await eventually(lambda: dispatcher.opened_here("a") is None, "it is forgotten")

    assert [] == told.ended


async def test_application_that_an_old_scheduler_has_opened_is_told_to_the_new_one(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Its answer came after the new one was told of all that was open."""

    async def answer_of_old(arrival: ApplicationArrived) -> Opened:
        return Opened(0, 42.0)

    scheduler.open_application = Method(answer_of_old)
    await dispatcher.open_application(opened())

    assert [replace(opened(), again=True)] == await taken(scheduler, 1)


async def test_end_of_an_application_is_told_and_it_is_open_no_more(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """Its true cost is what the predictor learns from; its next request opens it anew."""
    await dispatcher.open_application(opened())
    scheduler.post(ended())
    await eventually(lambda: told.ended, "its end is told")

    assert [ended()] == told.ended
    assert dispatcher.opened_here("a") is None


# --- another scheduler


async def test_application_that_the_scheduler_has_no_room_for_is_not_open_here(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """It has no end to be heard of: kept as open it would be for ever, and never be opened."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(RefuseApplication("a", "i"), Refuse("q", "i", Refusal.TOO_MANY_APPLICATIONS))
    with pytest.raises(TooManyApplications, match=r"scheduler\.max_open_applications"):
        await dispatcher.next_grant(ticket)
    dispatcher.cancel(ticket)

    assert dispatcher.opened_here("a") is None
    assert 0 == dispatcher.outstanding


async def test_owner_hears_whether_an_application_was_opened_for_its_inference(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """It has no answer of its own: a lease says so, or a refusal."""
    first = dispatcher.submit(inference("q1", "a"), opened("a"))
    second = dispatcher.submit(inference("q2", "b"), opened("b"))
    scheduler.post(
        RefuseApplication("a", "i"),
        Refuse("q1", "i", Refusal.TOO_MANY_APPLICATIONS),
        grant("q2"),
    )
    await dispatcher.next_grant(second)
    dispatcher.cancel(first)

    assert [("a", False), ("b", True)] == told.openings


async def test_opening_that_is_refused_is_an_error_that_says_when_to_come_back(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Over its own call there is no inference to refuse."""
    scheduler.refusal = Refusal.TOO_MANY_APPLICATIONS
    with pytest.raises(TooManyApplications) as refused:
        await dispatcher.open_application(opened())

    assert 5.0 == refused.value.retry_after_s
    assert dispatcher.opened_here("a") is None


async def test_new_scheduler_is_told_what_has_ended_lately(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """What the last one had not saved is open again in the next, until it has long been idle."""
    for name in ("a", "b"):
        dispatcher.submit(inference(name, name), opened(name))
    await taken(scheduler, 4)
    scheduler.post(ended("a"), ended("b"))
    await eventually(lambda: dispatcher.opened_here("b") is None, "both have ended")
    dispatcher.submit(inference("again", "b"), opened("b"))
    await taken(scheduler, 6)
    scheduler.replace()
    await eventually(lambda: ApplicationClosed("a") in scheduler.items, "it is told")

    assert ApplicationClosed("b") not in scheduler.items  # it was opened again


async def test_new_scheduler_is_told_all_that_is_outstanding(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """Applications first, then inferences with their age and the lease they hold."""
    running = dispatcher.submit(inference("running"), opened())
    dispatcher.submit(inference("waiting"))
    scheduler.post(grant("running"))
    await dispatcher.next_grant(running)
    await taken(scheduler, 3)
    scheduler.replace()
    first, *rest = await taken(scheduler, 3)
    again = [item for item in rest if isinstance(item, InferenceSubmitted)]

    assert replace(opened(), again=True) == first
    found = [(item.request_id, item.again, item.lease_id) for item in again]
    assert [("running", True, "1-1"), ("waiting", True, None)] == found
    assert all(item.age_s > 0 for item in again)
    assert 2 == dispatcher.epoch
    await eventually(lambda: told.new_epochs == 1, "the owner is told")


async def test_application_that_ended_with_an_answer_that_was_lost_is_opened_again(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """The scheduler that knew of the end is gone, and the next one does not know the application.

    One that refused it for another reason is not to run it.
    """
    ticket = dispatcher.submit(inference(), opened(), is_last=True)
    scheduler.post(grant(), ended())
    await dispatcher.next_grant(ticket)
    scheduler.replace()
    await eventually(lambda: dispatcher.epoch == 2, "there is another scheduler")
    scheduler.post(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(dispatcher.next_grant(ticket))
    first, item, last = (await taken(scheduler, 5))[-3:]

    assert (replace(opened(), again=True), ApplicationClosed("a")) == (first, last)
    assert isinstance(item, InferenceSubmitted)
    assert ("q+", True) == (item.request_id, item.again)
    scheduler.post(Refuse("q+", "i", Refusal.APPLICATION_CANCELLED))
    with pytest.raises(ClosedError):
        await waiting


async def test_answer_lost_of_an_application_closed_before_it_was_read_is_made_again(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Its end had been heard of before the scheduler died: it is opened again, and closed."""
    await dispatcher.open_application(opened())
    ticket = dispatcher.submit(inference())
    dispatcher.close_application("a")
    scheduler.post(grant(), ended())
    await dispatcher.next_grant(ticket)
    await eventually(lambda: dispatcher.opened_here("a") is None, "its end was heard of")
    scheduler.replace()
    await eventually(lambda: dispatcher.epoch == 2, "there is another scheduler")
    scheduler.post(Refuse("q", "i", Refusal.UNKNOWN_APPLICATION))
    waiting = asyncio.ensure_future(dispatcher.next_grant(ticket))
    await eventually(lambda: dispatcher.opened_here("a") is not None, "it is open again")
    scheduler.post(grant("q+"))
    await waiting
    await eventually(
        lambda: any(getattr(item, "request_id", "") == "q+" for item in scheduler.items), "again"
    )
    first, item, last = scheduler.items[-3:]

    assert (replace(opened(), again=True), ApplicationClosed("a")) == (first, last)
    assert isinstance(item, InferenceSubmitted)
    assert ("q+", True) == (item.request_id, item.again)


async def test_new_scheduler_is_told_of_closings_that_had_not_been_sent(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """An application that is never closed would stay open until it expires."""
    await dispatcher.open_application(opened())
    scheduler.epoch = 2  # it has taken office, and nobody has heard of it yet
    dispatcher.close_application("a")

    expected = [replace(opened(), again=True), ApplicationClosed("a")]
    assert expected == await taken(scheduler, 2)


async def test_new_scheduler_is_told_of_closings_whose_end_was_not_heard_of(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """The old one may have died before it saved them, or before it told of the end."""
    dispatcher.end(dispatcher.submit(inference("q1", "a"), opened("a")))
    dispatcher.close_application("a")
    await dispatcher.open_application(opened("b"))
    dispatcher.note_closed("b")
    await dispatcher.open_application(opened("c"))
    await taken(scheduler, 3)
    scheduler.replace()

    expected = [replace(opened(name), again=True) for name in "abc"]
    expected_closings = [ApplicationClosed("a"), ApplicationClosed("b")]
    assert [*expected, *expected_closings] == await taken(scheduler, 5)


async def test_grants_of_the_new_scheduler_are_read_from_its_first(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """It numbers its messages from one again."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant(), grant(lease_id="1-2"))
    await dispatcher.next_grant(ticket)
    await dispatcher.next_grant(ticket)
    scheduler.replace()
    await taken(scheduler, 2)
    scheduler.post(grant(lease_id="2-1"))

    assert "2-1" == (await dispatcher.next_grant(ticket)).lease_id


async def test_scheduler_of_a_lower_epoch_is_not_listened_to(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """Two may be alive for a moment; the older one is about to end itself."""
    scheduler.replace()
    await eventually(lambda: dispatcher.epoch == 2, "it knows the new epoch")
    scheduler.epoch = 1
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant(lease_id="1-9"))
    scheduler.fail_next("poll_grants", RayActorError())
    await eventually(lambda: scheduler.failed, "it goes on asking")

    assert [] == scheduler.items
    assert not ticket.answers
    scheduler.replace()
    assert [opened(), inference()] == await taken(scheduler, 2)


# --- a scheduler that has given this ingress up


async def test_ingress_that_was_forgotten_submits_everything_under_another_name(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """What it had outstanding was ended while it stood still: its callers still wait."""
    running = dispatcher.submit(inference("running"), opened("a"))
    dispatcher.submit(inference("waiting"))
    dispatcher.close_application("a")
    scheduler.post(grant("running"))
    await dispatcher.next_grant(running)
    await taken(scheduler, 4)
    scheduler.forget()
    application, *inferences, closing = await taken(scheduler, 4)

    before, after = scheduler.ingress_ids
    assert before != after == dispatcher.ingress_id
    assert isinstance(application, ApplicationArrived)
    assert ("a", after) == (application.application_id, application.ingress_id)
    found = [
        (item.request_id, item.ingress_id, item.again, item.lease_id)
        for item in inferences
        if isinstance(item, InferenceSubmitted)
    ]
    assert [("running", after, True, None), ("waiting", after, True, None)] == found
    assert ApplicationClosed("a") == closing
    assert (1, 0) == (dispatcher.epoch, told.new_epochs)


async def test_grants_after_being_forgotten_reach_their_callers(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """A lease granted before is revoked; one that was not yet used must not be used either."""
    ticket = dispatcher.submit(inference(), opened())
    scheduler.post(grant(lease_id="1-1"))
    await eventually(lambda: ticket.answers, "the grant is there")
    scheduler.forget()
    await taken(scheduler, 2)
    scheduler.post(grant(lease_id="1-2"))

    assert "1-2" == (await dispatcher.next_grant(ticket)).lease_id


async def test_batch_that_found_the_ingress_forgotten_is_sent_once(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """It is part of everything that is outstanding."""
    scheduler.fail_next("poll_grants", RayActorError())
    await eventually(lambda: scheduler.failed, "no poll is on its way")
    scheduler.forget()
    dispatcher.submit(inference("q1"), opened())
    await taken(scheduler, 2)
    dispatcher.submit(inference("q2"))

    items = await taken(scheduler, 3)
    requests = [item.request_id for item in items if isinstance(item, InferenceSubmitted)]
    assert ["q1", "q2"] == requests


async def test_application_whose_opening_was_under_way_follows_the_new_name(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Its end is told to whoever spoke for it last."""
    await dispatcher.open_application(replace(opened("a"), ingress_id="earlier"))
    (application,) = await taken(scheduler, 1)

    assert isinstance(application, ApplicationArrived)
    assert dispatcher.ingress_id == application.ingress_id


# --- stages


async def test_answer_opens_the_next_stage(dispatcher: Dispatcher) -> None:
    """The ingress knows it at once; the scheduler hears of it with the replica's next pull."""
    first = dispatcher.submit(inference("q1"), opened())
    dispatcher.submit(inference("q2"))

    assert (0, 3) == dispatcher.next_stage("a")

    first.item = replace(first.item, stage=0)
    dispatcher.end(first)

    assert (1, 1) == dispatcher.next_stage("a")


async def test_refused_submission_takes_no_place(dispatcher: Dispatcher) -> None:
    """A caller that comes back would else look like one with a larger fan-out each time."""
    for number in range(_MOST):
        dispatcher.submit(inference(f"q{number}"), opened())
    before = dispatcher.next_stage("a")
    with pytest.raises(QueueFull):
        dispatcher.submit(inference("one more"))

    assert before == dispatcher.next_stage("a")


async def test_end_of_an_application_forgets_its_stage(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """An id that comes again is another application."""
    dispatcher.submit(inference(), opened())
    await taken(scheduler, 2)
    scheduler.post(ended())
    await eventually(lambda: dispatcher.opened_here("a") is None, "its end was told")

    assert (0, 1) == dispatcher.next_stage("a")


# --- a scheduler that has lost its office


def superseded() -> RayTaskError:
    """Return what a call of it raises, as Ray hands it on."""
    cause = SchedulerSuperseded("epoch 7 is in office, held by process 1 on host gpu-9")
    error: RayTaskError = RayTaskError(
        "poll_grants", "", cause, proctitle="", pid=1, ip="0.0.0.0"
    ).as_instanceof_cause()
    return error


async def test_opening_at_a_superseded_scheduler_says_who_is_in_office(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """A caller that waited for it would wait for ever."""
    scheduler.fail_next("open_application", superseded())
    with pytest.raises(SchedulerSuperseded, match=r"host gpu-9$"):
        await dispatcher.open_application(opened())


async def test_what_waits_at_a_superseded_scheduler_is_refused_after_a_while(
    dispatcher: Dispatcher, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No successor was found meanwhile: its office is held by another deployment."""
    monkeypatch.setattr(failed_calls, "_GIVE_UP_S", 0.01)
    monkeypatch.setattr(failed_calls, "_RETRY_S", 0.001)
    ticket = dispatcher.submit(inference(), opened())
    await taken(scheduler, 2)
    for method in ("poll_grants", "submit_many"):
        scheduler.fail_next(method, *(superseded() for _ in range(10_000)))
    with pytest.raises(AdmissionError, match="/readyz says to whom"):
        await dispatcher.next_grant(ticket)


async def test_successor_that_is_found_soon_loses_nothing(
    dispatcher: Dispatcher, scheduler: FakeScheduler
) -> None:
    """Ray leads to the new process of the actor a moment after the old one has said so."""
    ticket = dispatcher.submit(inference(), opened())
    await taken(scheduler, 2)
    scheduler.fail_next("poll_grants", superseded())
    scheduler.replace()
    await taken(scheduler, 2)
    scheduler.post(grant())

    assert grant() == await dispatcher.next_grant(ticket)


async def test_what_a_new_scheduler_has_to_be_told_is_repeated_until_it_is(
    dispatcher: Dispatcher, scheduler: FakeScheduler, told: Told
) -> None:
    """Settings that reach it no more would be those of its store, or the defaults."""
    told.failures = [RayActorError(), RaySystemError("it is not in office any more")]
    scheduler.replace()
    await eventually(lambda: told.new_epochs == 3, "it was told after two failures")

    assert 2 == dispatcher.epoch
