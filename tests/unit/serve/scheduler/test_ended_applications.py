"""A call that carries the id of an ended application does not open a new application."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.actions import EndApplication, Refusal, Refuse, RefuseApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import ApplicationClosed, LeaseFinished, Resubmitted
from justitia_ray.protocol.messages import IngressMail
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import (
    Services,
    arrival_of,
    grants_in,
    pull_of,
    submission_of,
)

_VERBS = {
    "cancel": Refusal.APPLICATION_CANCELLED,
    "close": Refusal.APPLICATION_CLOSED,
}


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services(clock=SteadyClock, save_interval_s=0.01)
    yield services
    await services.close()


@pytest.fixture
async def service(services: Services) -> SchedulerService:
    return await services.start_leader()


async def end_application(service: SchedulerService, verb: str, name: str = "a") -> bool:
    ended: bool = await getattr(service, f"{verb}_application")(name)
    return ended


async def open_and_end(service: SchedulerService, verb: str) -> None:
    """Open an application and end it without outstanding inferences."""
    await service.open_application(arrival_of("a"))
    assert await end_application(service, verb)
    assert "a" not in service.term.driver.core.state.applications


async def _successor_of_cancelled(services: Services) -> SchedulerService:
    """Return a new scheduler after the previous one has cancelled an application."""
    old = await services.start_leader()
    await old.open_application(replace(arrival_of("a"), keeps_ends=True))
    await old.term.checkpointer.save_once()
    service = await services.start_leader()
    await end_application(service, "cancel")
    return service


def refusals_in(mail: IngressMail) -> list[tuple[type, Refusal]]:
    messages = [message for _, message in mail.messages]
    return [(type(m), m.reason) for m in messages if isinstance(m, Refuse | RefuseApplication)]


def _submission(request_id: str, ingress_id: str, *, reopens: bool = False) -> tuple[Any, ...]:
    """Return the items that an ingress submits for a call that opens its application."""
    arrival = replace(arrival_of("a"), ingress_id=ingress_id, reopens=reopens)
    return arrival, replace(submission_of(request_id, "a"), ingress_id=ingress_id)


@pytest.mark.parametrize("verb", _VERBS)
async def test_inference_submitted_to_an_ended_application_is_refused(
    service: SchedulerService, verb: str
) -> None:
    """The agent does not know of the end, and its next call may reach any ingress."""
    await open_and_end(service, verb)
    reason = _VERBS[verb]
    for ingress_id in ("i", "another"):
        items = (replace(arrival_of("a"), ingress_id=ingress_id), submission_of("q", "a"))
        items = (items[0], replace(items[1], ingress_id=ingress_id))
        mail = await service.submit_many(ingress_id, 1, 0, items)
        assert [(RefuseApplication, reason), (Refuse, reason)] == refusals_in(mail)
    assert not service.term.driver.core.state.applications
    assert await service.application("a") is None


async def test_refusal_of_an_inference_names_why_its_application_ended(
    service: SchedulerService,
) -> None:
    """An application closed with outstanding inferences may be cancelled later."""
    await service.submit_many("i", 1, 0, (arrival_of("a"), submission_of("q", "a")))
    await end_application(service, "close")
    await end_application(service, "cancel")
    assert not await end_application(service, "close")
    mail = await service.submit_many("i", 1, 1, (arrival_of("a"), submission_of("q2", "a")))

    assert Refusal.APPLICATION_CANCELLED in {reason for _, reason in refusals_in(mail)}
    assert Refusal.APPLICATION_CLOSED not in {reason for _, reason in refusals_in(mail)}


async def test_call_that_reopens_an_ended_application_id_is_admitted(
    service: SchedulerService,
) -> None:
    await open_and_end(service, "cancel")
    assert (await service.open_application(arrival_of("a"))).refusal is None
    mail = await service.submit_many("i", 1, 0, (submission_of("q", "a"),))
    assert [] == refusals_in(mail)
    await end_application(service, "cancel")
    again = (replace(arrival_of("a"), reopens=True), submission_of("q2", "a"))

    assert [] == refusals_in(await service.submit_many("i", 1, 9, again))


async def test_ingress_that_reopens_an_application_does_not_receive_its_earlier_end(
    service: SchedulerService,
) -> None:
    """The earlier end would make the ingress forget the new application."""
    await open_and_end(service, "cancel")
    await service.open_application(arrival_of("a"))
    mail = await service.submit_many("i", 1, 0, (submission_of("q", "a"),))

    assert [] == [message for _, message in mail.messages if isinstance(message, EndApplication)]


async def test_resubmitted_inference_of_a_closed_application_is_admitted(
    service: SchedulerService,
) -> None:
    """The answers to the inference's first submission were lost."""
    await open_and_end(service, "close")
    items = (
        replace(arrival_of("a"), resubmitted=True),
        replace(submission_of("q", "a"), resubmitted=True),
    )

    assert [] == refusals_in(await service.submit_many("i", 1, 0, items))
    assert "q" in service.term.driver.core.state.inferences


async def test_inference_of_a_cancelled_application_is_not_readmitted(
    service: SchedulerService,
) -> None:
    """An ingress may learn that a lease is lost before it learns why, and resubmit."""
    await open_and_end(service, "cancel")
    items = (
        replace(arrival_of("a"), resubmitted=True),
        replace(submission_of("q+", "a"), resubmitted=True),
    )
    mail = await service.submit_many("i", 1, 0, items)

    reason = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, reason), (Refuse, reason)] == refusals_in(mail)
    assert not service.term.driver.core.state.applications


async def test_reopened_application_survives_a_late_report_of_its_earlier_end(
    service: SchedulerService,
) -> None:
    """The ingress that ended the id does not know that another one reopened it."""
    await service.submit_many("i", 1, 0, (replace(arrival_of("a"), resubmitted=True),))
    await service.restore_ended([("a", "application_cancelled", 10.0)])

    assert [] == refusals_in(await service.submit_many("i", 1, 0, (submission_of("q", "a"),)))


async def test_application_closed_by_its_last_inference_is_reopened_by_a_retry(
    service: SchedulerService,
) -> None:
    """Most applications consist of one call, which may have to be retried."""
    await service.pull(pull_of(1))
    items = (arrival_of("a"), submission_of("q", "a"), ApplicationClosed("a"))
    await service.submit_many("i", 1, 0, items)
    [grant] = grants_in(await service.pull(pull_of(2)))
    await service.pull(
        pull_of(3, finished=(LeaseFinished(grant.lease_id, 5, 1, Outcome.FINISHED),))
    )
    assert "a" not in service.term.driver.core.state.applications
    mail = await service.submit_many("i", 1, 9, (arrival_of("a"), submission_of("q2", "a")))

    assert [] == refusals_in(mail)


@pytest.mark.parametrize("verb", _VERBS)
async def test_ending_an_application_that_was_never_open_is_not_recorded(
    service: SchedulerService, verb: str
) -> None:
    """A script may end leftovers of an earlier run before it starts."""
    assert not await end_application(service, verb)
    mail = await service.submit_many("i", 1, 0, (arrival_of("a"), submission_of("q", "a")))

    assert [] == refusals_in(mail)


async def test_cancelled_application_cannot_be_reopened_while_inferences_run(
    services: Services,
) -> None:
    service = await _successor_of_cancelled(services)
    too_early = await service.open_application(arrival_of("a"))
    await service.submit_many("i", service.term.epoch, 0, (Resubmitted("i"),))
    later = await service.open_application(arrival_of("a"))

    assert (Refusal.APPLICATION_ENDING, None) == (too_early.refusal, later.refusal)
    assert not service.term.driver.core.state.applications["a"].state.is_cancelled


async def test_call_to_a_cancelled_application_is_retried_until_its_inferences_end(
    services: Services,
) -> None:
    """An agent may call a second model after its application was cancelled at the first."""
    service = await _successor_of_cancelled(services)
    epoch = service.term.epoch
    cancelled = await service.submit_many("j", epoch, 0, _submission("q0", "j"))
    opening = _submission("q1", "j", reopens=True)
    too_early = await service.submit_many("j", epoch, 2, opening)
    another = await service.submit_many("k", epoch, 0, _submission("q2", "k"))
    await service.submit_many("i", epoch, 0, (Resubmitted("i"),))
    later = await service.submit_many("j", epoch, 4, _submission("q3", "j", reopens=True))

    for mail, reason in (
        (cancelled, Refusal.APPLICATION_CANCELLED),
        (too_early, Refusal.APPLICATION_ENDING),
        (another, Refusal.APPLICATION_ENDING),
    ):
        assert [(RefuseApplication, reason), (Refuse, reason)] == refusals_in(mail)
    assert [] == refusals_in(later)


async def test_call_of_a_closed_application_is_retried_until_its_end_is_stored(
    services: Services,
) -> None:
    """The previous scheduler died between the last call's answer and the next save."""
    old = await services.start_leader()
    waits = (
        replace(arrival_of("a"), keeps_ends=True),
        submission_of("q", "a"),
        ApplicationClosed("a"),
    )
    await old.submit_many("i", old.term.epoch, 0, waits)
    await old.term.checkpointer.save_once()
    service = await services.start_leader()
    epoch = service.term.epoch
    too_early = await service.submit_many("j", epoch, 0, _submission("q1", "j"))
    await service.submit_many("i", epoch, 0, (Resubmitted("i"),))
    later = await service.submit_many("j", epoch, 1, _submission("q2", "j"))

    assert [(Refuse, Refusal.APPLICATION_ENDING)] == refusals_in(too_early)
    assert [] == refusals_in(later)


async def test_reopening_a_closed_application_continues_it(service: SchedulerService) -> None:
    """An inference of the closed application still waits."""
    await service.submit_many("i", 1, 0, (arrival_of("a"), submission_of("q", "a")))
    await end_application(service, "close")
    refused = await service.submit_many("i", 1, 0, (submission_of("q1", "a"),))
    again = await service.open_application(arrival_of("a"))

    assert [(Refuse, Refusal.APPLICATION_CLOSED)] == refusals_in(refused)
    assert again.refusal is None
    assert [] == refusals_in(await service.submit_many("i", 1, 1, (submission_of("q2", "a"),)))


async def test_inference_that_ended_after_its_application_was_cancelled_is_counted(
    services: Services,
) -> None:
    """If the scheduler refused them, an ingress would forget inferences that only it knows."""
    service = await _successor_of_cancelled(services)
    epoch = service.term.epoch
    ended = replace(
        submission_of("q", "a"), resubmitted=True, lease_id="1-1", outcome=Outcome.FINISHED
    )
    items = (replace(arrival_of("a"), resubmitted=True, keeps_ends=True), ended, Resubmitted("i"))
    mail = await service.submit_many("i", epoch, 0, items)

    [over] = [message for _, message in mail.messages]
    assert isinstance(over, EndApplication)
    assert ("a", 1, Outcome.CANCELLED) == (over.application_id, over.inferences, over.outcome)


async def test_new_scheduler_learns_of_ended_applications_from_ingresses(
    services: Services,
) -> None:
    service = await services.start_leader()
    await service.restore_ended(
        [("a", "application_cancelled", 10.0), ("b", "application_closed", 1e6)]
    )
    items = (arrival_of("a"), submission_of("q", "a"), arrival_of("b"), submission_of("r", "b"))
    mail = await service.submit_many("i", 1, 0, items)

    cancelled = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, cancelled), (Refuse, cancelled)] == refusals_in(mail)
    assert ["b"] == list(service.term.driver.core.state.applications)
