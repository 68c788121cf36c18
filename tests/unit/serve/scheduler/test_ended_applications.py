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
from tests.unit.serve.scheduler.services import Services, grants, inference, opened, pull

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
    return await services.start()


async def end(service: SchedulerService, verb: str, name: str = "a") -> bool:
    ended: bool = await getattr(service, f"{verb}_application")(name)
    return ended


async def ended(service: SchedulerService, verb: str) -> None:
    """Open an application and end it without outstanding inferences."""
    await service.open_application(opened("a"))
    assert await end(service, verb)
    assert "a" not in service.term.driver.core.state.applications


async def _cancelled_at_the_next(services: Services) -> SchedulerService:
    """Return a new scheduler, at which an application of the previous one has been cancelled."""
    old = await services.start()
    await old.open_application(replace(opened("a"), keeps_ends=True))
    await old.term.checkpointer.save_once()
    service = await services.start()
    await end(service, "cancel")
    return service


def refusals(mail: IngressMail) -> list[tuple[type, Refusal]]:
    messages = [message for _, message in mail.messages]
    return [(type(m), m.reason) for m in messages if isinstance(m, Refuse | RefuseApplication)]


def _call(request_id: str, ingress_id: str, *, reopens: bool = False) -> tuple[Any, ...]:
    """Return the items that an ingress submits for a call of the application, with its opening."""
    arrival = replace(opened("a"), ingress_id=ingress_id, reopens=reopens)
    return arrival, replace(inference(request_id, "a"), ingress_id=ingress_id)


@pytest.mark.parametrize("verb", _VERBS)
async def test_next_inference_of_an_ended_application_is_refused(
    service: SchedulerService, verb: str
) -> None:
    """The agent has not learned of the end, and its next call may reach any ingress."""
    await ended(service, verb)
    reason = _VERBS[verb]
    for ingress_id in ("i", "another"):
        items = (replace(opened("a"), ingress_id=ingress_id), inference("q", "a"))
        items = (items[0], replace(items[1], ingress_id=ingress_id))
        mail = await service.submit_many(ingress_id, 1, 0, items)
        assert [(RefuseApplication, reason), (Refuse, reason)] == refusals(mail)
    assert not service.term.driver.core.state.applications
    assert await service.application("a") is None


async def test_reason_is_that_of_the_last_end(service: SchedulerService) -> None:
    """An application that is closed with outstanding inferences may then be cancelled."""
    await service.submit_many("i", 1, 0, (opened("a"), inference("q", "a")))
    await end(service, "close")
    await end(service, "cancel")
    assert not await end(service, "close")
    mail = await service.submit_many("i", 1, 1, (opened("a"), inference("q2", "a")))

    assert Refusal.APPLICATION_CANCELLED in {reason for _, reason in refusals(mail)}
    assert Refusal.APPLICATION_CLOSED not in {reason for _, reason in refusals(mail)}


async def test_call_that_opens_the_id_lets_it_take_inferences_again(
    service: SchedulerService,
) -> None:
    await ended(service, "cancel")
    assert (await service.open_application(opened("a"))).refusal is None
    mail = await service.submit_many("i", 1, 0, (inference("q", "a"),))
    assert [] == refusals(mail)
    await end(service, "cancel")
    again = (replace(opened("a"), reopens=True), inference("q2", "a"))

    assert [] == refusals(await service.submit_many("i", 1, 9, again))


async def test_ingress_that_reopens_the_id_does_not_receive_the_earlier_end(
    service: SchedulerService,
) -> None:
    """Otherwise the ingress would forget the new application."""
    await ended(service, "cancel")
    await service.open_application(opened("a"))
    mail = await service.submit_many("i", 1, 0, (inference("q", "a"),))

    assert [] == [message for _, message in mail.messages if isinstance(message, EndApplication)]


async def test_resubmitted_inference_is_admitted(service: SchedulerService) -> None:
    """The inference was waiting before, and the answers to its first submission were lost."""
    await ended(service, "close")
    items = (
        replace(opened("a"), resubmitted=True),
        replace(inference("q", "a"), resubmitted=True),
    )

    assert [] == refusals(await service.submit_many("i", 1, 0, items))
    assert "q" in service.term.driver.core.state.inferences


async def test_inference_of_a_cancelled_application_is_not_readmitted(
    service: SchedulerService,
) -> None:
    """An ingress may learn of the lost lease before its reason, and resubmit."""
    await ended(service, "cancel")
    items = (
        replace(opened("a"), resubmitted=True),
        replace(inference("q+", "a"), resubmitted=True),
    )
    mail = await service.submit_many("i", 1, 0, items)

    reason = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, reason), (Refuse, reason)] == refusals(mail)
    assert not service.term.driver.core.state.applications


async def test_reopened_application_survives_a_late_end_report(
    service: SchedulerService,
) -> None:
    """Another ingress reopened the id, and the one that ended it has not been informed."""
    await service.submit_many("i", 1, 0, (replace(opened("a"), resubmitted=True),))
    await service.restore_ended([("a", "application_cancelled", 10.0)])

    assert [] == refusals(await service.submit_many("i", 1, 0, (inference("q", "a"),)))


async def test_application_closed_by_its_last_inference_starts_again(
    service: SchedulerService,
) -> None:
    """The call may have to be retried, and most applications consist of one call."""
    await service.pull(pull(1))
    items = (opened("a"), inference("q", "a"), ApplicationClosed("a"))
    await service.submit_many("i", 1, 0, items)
    [grant] = grants(await service.pull(pull(2)))
    await service.pull(pull(3, finished=(LeaseFinished(grant.lease_id, 5, 1, Outcome.FINISHED),)))
    assert "a" not in service.term.driver.core.state.applications
    mail = await service.submit_many("i", 1, 9, (opened("a"), inference("q2", "a")))

    assert [] == refusals(mail)


@pytest.mark.parametrize("verb", _VERBS)
async def test_id_that_was_never_open_is_not_kept(service: SchedulerService, verb: str) -> None:
    """A script may end leftovers of an earlier run before it starts."""
    assert not await end(service, verb)
    mail = await service.submit_many("i", 1, 0, (opened("a"), inference("q", "a")))

    assert [] == refusals(mail)


async def test_id_is_not_reopened_while_ends_of_cancelled_inferences_are_due(
    services: Services,
) -> None:
    service = await _cancelled_at_the_next(services)
    too_early = await service.open_application(opened("a"))
    await service.submit_many("i", service.term.epoch, 0, (Resubmitted("i"),))
    later = await service.open_application(opened("a"))

    assert (Refusal.APPLICATION_ENDING, None) == (too_early.refusal, later.refusal)
    assert not service.term.driver.core.state.applications["a"].state.is_cancelled


async def test_call_with_an_opening_is_retried_while_such_ends_are_due(
    services: Services,
) -> None:
    """An application that was first used with another model is opened here by its first call."""
    service = await _cancelled_at_the_next(services)
    epoch = service.term.epoch
    cancelled = await service.submit_many("j", epoch, 0, _call("q0", "j"))
    opening = _call("q1", "j", reopens=True)
    too_early = await service.submit_many("j", epoch, 2, opening)
    another = await service.submit_many("k", epoch, 0, _call("q2", "k"))
    await service.submit_many("i", epoch, 0, (Resubmitted("i"),))
    later = await service.submit_many("j", epoch, 4, _call("q3", "j", reopens=True))

    for mail, reason in (
        (cancelled, Refusal.APPLICATION_CANCELLED),
        (too_early, Refusal.APPLICATION_ENDING),
        (another, Refusal.APPLICATION_ENDING),
    ):
        assert [(RefuseApplication, reason), (Refuse, reason)] == refusals(mail)
    assert [] == refusals(later)


async def test_call_of_a_closed_application_is_retried_while_its_end_is_due(
    services: Services,
) -> None:
    """The previous scheduler died after the last call was answered and before it was saved."""
    old = await services.start()
    waits = (replace(opened("a"), keeps_ends=True), inference("q", "a"), ApplicationClosed("a"))
    await old.submit_many("i", old.term.epoch, 0, waits)
    await old.term.checkpointer.save_once()
    service = await services.start()
    epoch = service.term.epoch
    too_early = await service.submit_many("j", epoch, 0, _call("q1", "j"))
    await service.submit_many("i", epoch, 0, (Resubmitted("i"),))
    later = await service.submit_many("j", epoch, 1, _call("q2", "j"))

    assert [(Refuse, Refusal.APPLICATION_ENDING)] == refusals(too_early)
    assert [] == refusals(later)


async def test_closed_application_that_is_reopened_continues(service: SchedulerService) -> None:
    """One of its inferences still waits, so the opening must reopen the application."""
    await service.submit_many("i", 1, 0, (opened("a"), inference("q", "a")))
    await end(service, "close")
    refused = await service.submit_many("i", 1, 0, (inference("q1", "a"),))
    again = await service.open_application(opened("a"))

    assert [(Refuse, Refusal.APPLICATION_CLOSED)] == refusals(refused)
    assert again.refusal is None
    assert [] == refusals(await service.submit_many("i", 1, 1, (inference("q2", "a"),)))


async def test_ingress_remembers_ends_cancelled_before_it_joined(
    services: Services,
) -> None:
    """Otherwise a refusal would make the ingress forget ends that only it remembers."""
    service = await _cancelled_at_the_next(services)
    epoch = service.term.epoch
    ended = replace(inference("q", "a"), resubmitted=True, lease_id="1-1", outcome=Outcome.FINISHED)
    items = (replace(opened("a"), resubmitted=True, keeps_ends=True), ended, Resubmitted("i"))
    mail = await service.submit_many("i", epoch, 0, items)

    [over] = [message for _, message in mail.messages]
    assert isinstance(over, EndApplication)
    assert ("a", 1, Outcome.CANCELLED) == (over.application_id, over.inferences, over.outcome)


async def test_ingresses_send_ended_applications_to_a_new_scheduler(services: Services) -> None:
    service = await services.start()
    await service.restore_ended(
        [("a", "application_cancelled", 10.0), ("b", "application_closed", 1e6)]
    )
    items = (opened("a"), inference("q", "a"), opened("b"), inference("r", "b"))
    mail = await service.submit_many("i", 1, 0, items)

    cancelled = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, cancelled), (Refuse, cancelled)] == refusals(mail)
    assert ["b"] == list(service.term.driver.core.state.applications)
