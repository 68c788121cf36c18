"""With `durability: strict` nothing of an application leaves the scheduler before it is stored."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.actions import EndApplication, Refusal, Refuse
from justitia_ray.core.events import ApplicationClosed, InferenceCancelled
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import (
    Services,
    arrival_of,
    exporter_of,
    granted_ids,
    submission_of,
    wait_until_pulling,
)

_SHORT_S = 0.02
"""Waiting time in seconds for an answer that must not come."""


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services(durability="strict", strict_timeout_s=30.0)
    yield services
    await services.close()


async def service_with_known(services: Services) -> SchedulerService:
    """Return a service with a replica and a stored application `known`."""
    service = await services.start_with_replica()
    await service.open_application(arrival_of("known"))
    return service


async def test_finish_tag_is_stored_before_it_is_returned(services: Services) -> None:
    """Strict durability promises that no finish tag known to a caller is ever lost."""
    service = await services.start_leader()
    services.store.free.clear()
    opening = asyncio.create_task(service.open_application(arrival_of()))
    again = asyncio.create_task(service.open_application(arrival_of()))
    seen = asyncio.create_task(service.application("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    early = [task.done() for task in (opening, again, seen)]
    services.store.free.set()
    answer = await opening

    assert [False] * 3 == early
    assert "a" in services.store.stored_applications()
    assert (replace(answer, is_known=True), None) == (await again, answer.refusal)
    known = await seen
    assert known is not None
    assert answer.virtual_finish_time == known["virtual_finish_time"]


async def test_batched_durability_returns_a_finish_tag_at_once() -> None:
    """By default, grants do not wait for Redis."""
    services = Services()
    service = await services.start_leader()
    services.store.free.clear()

    assert (await asyncio.wait_for(service.open_application(arrival_of()), 5.0)).refusal is None
    assert {} == services.store.stored_applications()
    await services.close()


async def test_grants_of_a_new_application_wait_until_it_is_stored(
    services: Services,
) -> None:
    """One application's save must not delay applications that are already stored."""
    service = await service_with_known(services)
    services.store.free.clear()
    new = (arrival_of("new"), submission_of("q-new", "new"), ApplicationClosed("new"))
    first = await service.submit_many("i", 1, 0, (*new, submission_of("q-known", "known")))
    view = service.inspector.status()
    await wait_until_pulling(service)
    services.store.free.set()
    late = await service.poll_grants("i", 1, first.messages[-1][0])

    assert (["q-known"], ["q-new"]) == (granted_ids(first), granted_ids(late))
    assert 1 == view.grants
    assert "new" in services.store.stored_applications()


async def test_concurrently_opened_applications_are_stored_together(services: Services) -> None:
    """While one save runs, the next one collects all new openings."""
    service = await services.start_leader()
    saves = services.store.saves
    await asyncio.gather(*(service.open_application(arrival_of(f"a{n}")) for n in range(100)))

    assert 2 >= services.store.saves - saves


async def test_opening_is_refused_after_a_bounded_wait_for_the_store(services: Services) -> None:
    """A caller must not wait forever for a store that does not answer."""
    service = await service_with_known(services)
    admission = service.term.admission
    patient_s, admission._timeout_s = admission._timeout_s, _SHORT_S
    services.store.away = True
    refused = await service.open_application(arrival_of("a"))
    first = await service.submit_many("i", 1, 0, (arrival_of("b"), submission_of("q-b", "b")))
    on = granted_ids(await service.submit_many("i", 1, 0, (submission_of("q-known", "known"),)))
    read = 0
    told: list[Any] = []
    while not any(isinstance(m, Refuse) for m in told):
        mail = await service.poll_grants("i", 1, read)
        told += [message for _, message in mail.messages]
        read = mail.messages[-1][0]
    await eventually(
        lambda: 1 == len(service.term.driver.core.state.applications), "both are forgotten"
    )

    exporter_of(service).export()
    counts = services.told.counts
    told_of = {key: n for key, n in counts.items() if key[0] == "refusals_total" and n}
    assert {("refusals_total", "not_stored"): 2} == told_of
    assert 0 == counts["application_outcomes_total", "cancelled", "c", "t"]
    assert (Refusal.NOT_STORED, [], ["q-known"]) == (refused.refusal, granted_ids(first), on)
    assert [Refuse("q-b", "i", Refusal.NOT_STORED)] == [m for m in told if isinstance(m, Refuse)]
    assert {"a", "b"} >= {m.application_id for m in told if isinstance(m, EndApplication)}
    services.store.away = False
    admission._timeout_s = patient_s
    await service.term.checkpointer.next_save()
    assert ["known"] == list(services.store.stored_applications())
    assert (await service.open_application(arrival_of("a"))).refusal is None


async def test_inference_cancelled_before_the_save_does_not_run(services: Services) -> None:
    """A cancellation that waits for the application's save must not be lost."""
    service = await service_with_known(services)
    services.store.free.clear()
    items = (arrival_of("a"), submission_of("q1"), submission_of("q2"), InferenceCancelled("q1"))
    await service.submit_many("i", 1, 0, items)
    services.store.free.set()
    mail = await service.poll_grants("i", 1, 0)

    assert ["q2"] == [r for r in granted_ids(mail) if r not in ("q1",)]
    assert {"q2"} == set(service.term.driver.core.state.inferences)


async def test_application_cancelled_before_it_is_stored_has_ended(
    services: Services,
) -> None:
    """The waiting items are refused, and no caller waits forever."""
    service = await service_with_known(services)
    services.store.free.clear()
    await service.submit_many("i", 1, 0, (arrival_of("a"), submission_of("q1")))
    assert await service.cancel_application("a")
    mail = await service.poll_grants("i", 1, 0)
    services.store.free.set()

    refused = [message for _, message in mail.messages if isinstance(message, Refuse)]
    assert ["q1"] == [refusal.request_id for refusal in refused]
    assert set() == {"q1"} & set(service.term.driver.core.state.inferences)


async def test_application_closed_before_it_is_stored_ends_after_its_inferences(
    services: Services,
) -> None:
    """A close that overtook the application's submissions would have them refused."""
    service = await service_with_known(services)
    services.store.free.clear()
    await service.submit_many("i", 1, 0, (arrival_of("a"), submission_of("q1")))
    assert await service.close_application("a")
    services.store.free.set()
    mail = await service.poll_grants("i", 1, 0)

    assert ["q1"] == granted_ids(mail)


async def test_callers_waiting_for_a_save_are_released_on_shutdown(services: Services) -> None:
    """A shutdown during a Redis outage must not leave waiting calls."""
    service = await services.start_leader()
    services.store.away = True
    opening = asyncio.create_task(service.open_application(arrival_of("a")))
    await eventually(lambda: service.term.admission.unstored(), "it waits")
    await service.term.end()

    assert Refusal.NOT_STORED == (await opening).refusal
