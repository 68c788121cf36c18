"""Applications that their owners have ended: the next call of the id does not begin a new one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.actions import EndApplication, Refusal, Refuse, RefuseApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import ApplicationClosed, LeaseFinished, Resubmitted
from justitia_ray.protocol.messages import IngressMail
from justitia_ray.serve.scheduler.actor import SchedulerService
from justitia_ray.serve.scheduler.clock import SteadyClock
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
    """End an application by a call."""
    ended: bool = await getattr(service, f"{verb}_application")(name)
    return ended


async def ended(service: SchedulerService, verb: str) -> None:
    """Open an application, and end it with nothing left of it."""
    await service.open_application(opened("a"))
    assert await end(service, verb)
    assert "a" not in service.term.driver.core.state.applications


async def _cancelled_at_the_next(services: Services) -> SchedulerService:
    """Return a new scheduler, at which an application of the one before has been cancelled."""
    old = await services.start()
    await old.open_application(replace(opened("a"), keeps_ends=True))
    await old.term.checkpointer.save_once()
    service = await services.start()
    await end(service, "cancel")
    return service


def refusals(mail: IngressMail) -> list[tuple[type, Refusal]]:
    """Return kind and reason of the refusals in an answer."""
    messages = [message for _, message in mail.messages]
    return [(type(m), m.reason) for m in messages if isinstance(m, Refuse | RefuseApplication)]


def _call(request_id: str, ingress_id: str, *, reopens: bool = False) -> tuple[Any, ...]:
    """Return a call that an ingress submits of the application, with its opening."""
    arrival = replace(opened("a"), ingress_id=ingress_id, reopens=reopens)
    return arrival, replace(inference(request_id, "a"), ingress_id=ingress_id)


@pytest.mark.parametrize("verb", _VERBS)
async def test_next_inference_of_an_ended_application_is_refused(
    service: SchedulerService, verb: str
) -> None:
    """Its agent does not know that it was ended; any ingress may be the next that it calls."""
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
    """An application that is closed with something left may be cancelled then."""
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


async def test_ingress_that_opens_the_id_again_does_not_hear_of_the_end_before(
    service: SchedulerService,
) -> None:
    """It would forget the new application, and another scheduler would not be told of it."""
    await ended(service, "cancel")
    await service.open_application(opened("a"))
    mail = await service.submit_many("i", 1, 0, (inference("q", "a"),))

    assert [] == [message for _, message in mail.messages if isinstance(message, EndApplication)]


async def test_what_an_ingress_submits_again_is_let_in(service: SchedulerService) -> None:
    """It waited before: the answers to it were lost."""
    await ended(service, "close")
    items = (
        replace(opened("a"), resubmitted=True),
        replace(inference("q", "a"), resubmitted=True),
    )

    assert [] == refusals(await service.submit_many("i", 1, 0, items))
    assert "q" in service.term.driver.core.state.inferences


async def test_nothing_of_a_cancelled_application_is_let_in_again(
    service: SchedulerService,
) -> None:
    """An ingress may hear that a lease is lost before it hears why, and submits anew."""
    await ended(service, "cancel")
    items = (
        replace(opened("a"), resubmitted=True),
        replace(inference("q+", "a"), resubmitted=True),
    )
    mail = await service.submit_many("i", 1, 0, items)

    reason = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, reason), (Refuse, reason)] == refusals(mail)
    assert not service.term.driver.core.state.applications


async def test_application_that_came_since_is_not_refused_for_what_an_ingress_tells_late(
    service: SchedulerService,
) -> None:
    """Another ingress has opened the id again, which the one that ended it does not know."""
    await service.submit_many("i", 1, 0, (replace(opened("a"), resubmitted=True),))
    await service.restore_ended([("a", "application_cancelled", 10.0)])

    assert [] == refusals(await service.submit_many("i", 1, 0, (inference("q", "a"),)))


async def test_application_that_closes_with_its_last_inference_begins_anew(
    service: SchedulerService,
) -> None:
    """The call may have to be sent again; and most applications are of one call each."""
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
    """A script may end what a run before it has left over, before it begins."""
    assert not await end(service, verb)
    mail = await service.submit_many("i", 1, 0, (opened("a"), inference("q", "a")))

    assert [] == refusals(mail)


async def test_id_is_not_opened_again_while_ends_of_what_was_cancelled_may_come(
    services: Services,
) -> None:
    """They would count for the new application; and its inferences would be refused."""
    service = await _cancelled_at_the_next(services)
    too_early = await service.open_application(opened("a"))
    await service.submit_many("i", service.term.epoch, 0, (Resubmitted("i"),))
    later = await service.open_application(opened("a"))

    assert (Refusal.APPLICATION_ENDING, None) == (too_early.refusal, later.refusal)
    assert not service.term.driver.core.state.applications["a"].is_stopped


async def test_call_that_opens_the_id_is_to_come_again_while_such_ends_may_come(
    services: Services,
) -> None:
    """An application that came to another model first is opened here by its first call."""
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


async def test_call_of_an_application_that_had_closed_is_to_come_again_while_its_end_may_come(
    services: Services,
) -> None:
    """Its last call was answered, and the scheduler died unsaved: the next one begins it anew."""
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


async def test_closed_application_that_is_opened_again_goes_on(service: SchedulerService) -> None:
    """Something of it still waits: its opening was answered as if it took more, and calls 409."""
    await service.submit_many("i", 1, 0, (opened("a"), inference("q", "a")))
    await end(service, "close")
    refused = await service.submit_many("i", 1, 0, (inference("q1", "a"),))
    again = await service.open_application(opened("a"))

    assert [(Refuse, Refusal.APPLICATION_CLOSED)] == refusals(refused)
    assert again.refusal is None
    assert [] == refusals(await service.submit_many("i", 1, 1, (inference("q2", "a"),)))


async def test_ingress_keeps_the_ends_of_what_was_cancelled_at_a_new_scheduler_before_it_came(
    services: Services,
) -> None:
    """If that one dies unsaved, the next has to hear of them: a refusal would make it forget."""
    service = await _cancelled_at_the_next(services)
    epoch = service.term.epoch
    ended = replace(inference("q", "a"), resubmitted=True, lease_id="1-1", outcome=Outcome.FINISHED)
    items = (replace(opened("a"), resubmitted=True, keeps_ends=True), ended, Resubmitted("i"))
    mail = await service.submit_many("i", epoch, 0, items)

    [over] = [message for _, message in mail.messages]
    assert isinstance(over, EndApplication)
    assert ("a", 1, Outcome.CANCELLED) == (over.application_id, over.inferences, over.outcome)


async def test_new_scheduler_is_told_by_the_ingresses(services: Services) -> None:
    service = await services.start()
    await service.restore_ended(
        [("a", "application_cancelled", 10.0), ("b", "application_closed", 1e6)]
    )
    items = (opened("a"), inference("q", "a"), opened("b"), inference("r", "b"))
    mail = await service.submit_many("i", 1, 0, items)

    cancelled = Refusal.APPLICATION_CANCELLED
    assert [(RefuseApplication, cancelled), (Refuse, cancelled)] == refusals(mail)
    assert ["b"] == list(service.term.driver.core.state.applications)
