"""Quota reservations count once if the inference ran, over refusals, repeats and outages."""

import asyncio

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, arrival_of, submission_of
from tests.unit.serve.scheduler.test_quota_gate import Accounts, accounts, services

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


class _Steps(asyncio.Event):
    """Gate that lets a given number of messages to the quota service be answered."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Semaphore(0)

    def let_one_through(self) -> None:
        self._free.release()

    async def wait(self) -> bool:  # type: ignore[override]  # typeshed has Literal[True]
        await self._free.acquire()
        return True


async def _leader_with_quotas(
    services: Services, accounts: Accounts, timeout_s: float = 10.0, **limits: float
) -> SchedulerService:
    """Return a leading scheduler with a daily quota for each of these units."""
    service = services.new_service(quota_timeout_s=timeout_s)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quotas = [{"unit": unit, "limit": limit, "per": "day"} for unit, limit in limits.items()]
    await service.configure({"tenants": {"*": {"quotas": quotas}}})
    return service


async def _submit_items(service: SchedulerService, *items: object) -> list[Refuse]:
    mail = await service.submit_many("i", service.term.epoch, 0, items)  # type: ignore[arg-type]
    return [message for _, message in mail.messages if isinstance(message, Refuse)]


def _open_names(service: SchedulerService) -> list[str]:
    return sorted(service.term.driver.core.state.applications)


async def test_inference_refused_by_the_core_does_not_count_for_a_quota(
    services: Services, accounts: Accounts
) -> None:
    """The quota is reserved before the core refuses the inference, which never runs."""
    service = await _leader_with_quotas(services, accounts, inferences=5)
    items = (arrival_of("a"), submission_of("q0"), ev.ApplicationClosed("a"))
    await _submit_items(service, *items)
    await eventually(lambda: accounts.remaining_of() == 4, "the first is counted")
    late = ev.InferenceSubmitted("q1", "a", "1", "i", 20, 10, 10)
    told = await _submit_items(service, late)

    async def is_refused() -> bool:
        told.extend(await _submit_items(service))
        return Refusal.APPLICATION_CLOSED in {one.reason for one in told}

    await eventually(is_refused, "the second, which was granted, is refused")
    await eventually(lambda: accounts.remaining_of() == 4, "it is given back")


async def test_repeated_application_end_keeps_a_later_quota_reservation(
    services: Services, accounts: Accounts
) -> None:
    """Each opening of a reused id has a reservation of its own."""
    service = await _leader_with_quotas(services, accounts, 60.0, applications=1, inferences=100)
    await service.open_application(arrival_of("a"))
    steps = accounts.answering = _Steps()
    gate = service.term.gate
    numbered = [ev.InferenceSubmitted(f"q{k}", "b", f"n{k}", "i", 20, 10, 10) for k in range(2)]
    await _submit_items(service, arrival_of("b"), numbered[0])
    await eventually(
        lambda: gate.exchange._told is not None and bool(gate.exchange._told.asks),
        "both are asked for",
    )
    await _submit_items(service, arrival_of("b"), numbered[1], arrival_of("b"))
    steps.let_one_through()
    await eventually(lambda: gate.refusals == 3, "it is refused up to the second inference")
    await _submit_items(service, arrival_of("b"))
    for _ in range(2):
        steps.let_one_through()

    await eventually(lambda: gate.held_back == 0, "all are answered")
    assert ["a"] == _open_names(service)
    for _ in range(10):
        steps.let_one_through()  # the reports at the end


async def test_reopened_application_makes_a_new_quota_reservation(
    services: Services, accounts: Accounts
) -> None:
    """Two openings of one id that both wait for the quota service count as two applications."""
    service = await _leader_with_quotas(services, accounts, applications=1)
    accounts.answering.clear()
    await _submit_items(service, arrival_of("a"), ev.ApplicationClosed("a"), arrival_of("a"))
    accounts.answering.set()
    await eventually(lambda: service.term.gate.refusals == 1, "the second is refused")

    assert [] == _open_names(service)


async def test_quota_reservation_ends_after_its_applications_end_is_stored(
    services: Services, accounts: Accounts
) -> None:
    """The next scheduler would otherwise count the application again."""
    service = await _leader_with_quotas(services, accounts, tokens=1_000)
    assert accounts.service is not None
    book = accounts.service.book
    services.store.free.clear()
    await _submit_items(service, arrival_of("a"), submission_of("q"), ev.ApplicationClosed("a"))
    await eventually(lambda: "q" in service.term.driver.core.state.inferences, "it is let in")
    claims = book._terms[service.term.gate.exchange._scheduler].claims
    held = book.nodes(1_000_000.0)["t"][0].claimed
    await _submit_items(service, ev.InferenceCancelled("q"))
    await eventually(lambda: book.nodes(1_000_000.0)["t"][0].claimed == 0, "the rest comes back")
    kept = set(claims)
    services.store.free.set()
    service.term.checkpointer.save_soon()
    await eventually(lambda: not claims, "the claim is over")

    assert (30, {"a#0"}) == (held, kept)


async def test_application_opened_during_an_outage_of_the_quota_service_is_counted(
    services: Services, accounts: Accounts
) -> None:
    """A quota that only lowers priority admits the application, but must still count it."""
    service = services.new_service(quota_timeout_s=0.2)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quotas = [
        {"unit": unit, "limit": 5, "per": "day", "on_exhausted": "deprioritise"}
        for unit in ("applications", "inferences")
    ]
    await service.configure({"tenants": {"*": {"quotas": quotas}}})
    accounts.away = True
    await service.open_application(arrival_of("a"))
    await _submit_items(service, submission_of("q"), ev.ApplicationClosed("a"))
    await eventually(lambda: service.term.gate.held_back == 0, "all is let in")
    await service.cancel_application("a")
    accounts.away = False

    await eventually(lambda: accounts.remaining_of() == 4, "the application is counted")
    assert accounts.service is not None
    book = accounts.service.book
    await eventually(
        lambda: [s.remaining for s in book.standings("t", 1e6)] == [4, 4],
        "so is the inference",
    )


async def test_ingress_is_registered_while_its_submissions_await_quotas(
    services: Services, accounts: Accounts
) -> None:
    """The ingress would otherwise be unknown at its first call and never receive a grant."""
    service = await _leader_with_quotas(services, accounts, applications=1)
    accounts.away = True
    await _submit_items(
        service, arrival_of("a"), submission_of("q"), ev.InferenceCancelled("of before")
    )
    mail = await service.submit_many("i", service.term.epoch, 0, ())

    assert not mail.forgotten
