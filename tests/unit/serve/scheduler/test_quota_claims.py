"""Quota claims over refusals, repetitions and outages: each counts once, if the inference ran."""

import asyncio

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, inference, opened
from tests.unit.serve.scheduler.test_quota_gate import Accounts, accounts, services

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


class _Steps(asyncio.Event):
    """Gate that lets a given number of quota exchanges be answered."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Semaphore(0)

    def answer(self) -> None:
        self._free.release()

    async def wait(self) -> bool:  # type: ignore[override]  # typeshed has Literal[True]
        await self._free.acquire()
        return True


async def _serving(
    services: Services, accounts: Accounts, timeout_s: float = 10.0, **limits: float
) -> SchedulerService:
    """Return a leading scheduler with a daily quota for each of these units."""
    service = services.service(quota_timeout_s=timeout_s)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quotas = [{"unit": unit, "limit": limit, "per": "day"} for unit, limit in limits.items()]
    await service.configure({"tenants": {"*": {"quotas": quotas}}})
    return service


async def _submit(service: SchedulerService, *items: object) -> list[Refuse]:
    mail = await service.submit_many("i", service.term.epoch, 0, items)  # type: ignore[arg-type]
    return [message for _, message in mail.messages if isinstance(message, Refuse)]


def _live(service: SchedulerService) -> list[str]:
    return sorted(service.term.driver.core.state.applications)


async def test_inference_that_the_core_refuses_is_not_counted(
    services: Services, accounts: Accounts
) -> None:
    """The claim is granted before the core refuses the inference, which never runs."""
    service = await _serving(services, accounts, inferences=5)
    items = (opened("a"), inference("q0"), ev.ApplicationClosed("a"))
    await _submit(service, *items)
    await eventually(lambda: accounts.remaining() == 4, "the first is counted")
    late = ev.InferenceSubmitted("q1", "a", "1", "i", 20, 10, 10)
    told = await _submit(service, late)

    async def is_refused() -> bool:
        told.extend(await _submit(service))
        return Refusal.APPLICATION_CLOSED in {one.reason for one in told}

    await eventually(is_refused, "the second, which was granted, is refused")
    await eventually(lambda: accounts.remaining() == 4, "it is given back")


async def test_second_settlement_leaves_a_later_claim_of_the_same_name(
    services: Services, accounts: Accounts
) -> None:
    """An application that is opened repeatedly is answered each time."""
    service = await _serving(services, accounts, 60.0, applications=1, inferences=100)
    await service.open_application(opened("a"))
    steps = accounts.answering = _Steps()
    gate = service.term.gate
    numbered = [ev.InferenceSubmitted(f"q{k}", "b", f"n{k}", "i", 20, 10, 10) for k in range(2)]
    await _submit(service, opened("b"), numbered[0])
    await eventually(
        lambda: gate.exchange._told is not None and bool(gate.exchange._told.asks),
        "both are asked for",
    )
    await _submit(service, opened("b"), numbered[1], opened("b"))
    steps.answer()
    await eventually(lambda: gate.refusals == 3, "it is refused up to the second inference")
    await _submit(service, opened("b"))
    for _ in range(2):
        steps.answer()

    await eventually(lambda: gate.held_back == 0, "all are answered")
    assert ["a"] == _live(service)
    for _ in range(10):
        steps.answer()  # the reports at the end


async def test_reopened_application_makes_a_new_claim(
    services: Services, accounts: Accounts
) -> None:
    """Two openings of one id that are both held back count as two applications."""
    service = await _serving(services, accounts, applications=1)
    accounts.answering.clear()
    await _submit(service, opened("a"), ev.ApplicationClosed("a"), opened("a"))
    accounts.answering.set()
    await eventually(lambda: service.term.gate.refusals == 1, "the second is refused")

    assert [] == _live(service)


async def test_claim_ends_once_the_end_of_its_application_is_stored(
    services: Services, accounts: Accounts
) -> None:
    """A successor that does not have the end would claim, and count, the application again."""
    service = await _serving(services, accounts, tokens=1_000)
    assert accounts.service is not None
    book = accounts.service.book
    services.store.free.clear()
    await _submit(service, opened("a"), inference("q"), ev.ApplicationClosed("a"))
    await eventually(lambda: "q" in service.term.driver.core.state.inferences, "it is let in")
    claims = book._terms[service.term.gate.exchange._scheduler].claims
    held = book.nodes(1_000_000.0)["t"][0].claimed
    await _submit(service, ev.InferenceCancelled("q"))
    await eventually(lambda: book.nodes(1_000_000.0)["t"][0].claimed == 0, "the rest comes back")
    kept = set(claims)
    services.store.free.set()
    service.term.checkpointer.save_soon()
    await eventually(lambda: not claims, "the claim is over")

    assert (30, {"a#0"}) == (held, kept)


async def test_application_during_an_accounts_outage_is_counted(
    services: Services, accounts: Accounts
) -> None:
    """A quota that only deprioritises admits the application, but must still count it."""
    service = services.service(quota_timeout_s=0.2)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quotas = [
        {"unit": unit, "limit": 5, "per": "day", "on_exhausted": "deprioritise"}
        for unit in ("applications", "inferences")
    ]
    await service.configure({"tenants": {"*": {"quotas": quotas}}})
    accounts.away = True
    await service.open_application(opened("a"))
    await _submit(service, inference("q"), ev.ApplicationClosed("a"))
    await eventually(lambda: service.term.gate.held_back == 0, "all is let in")
    await service.cancel_application("a")
    accounts.away = False

    await eventually(lambda: accounts.remaining() == 4, "the application is counted")
    assert accounts.service is not None
    book = accounts.service.book
    await eventually(
        lambda: [s.remaining for s in book.standings("t", 1e6)] == [4, 4],
        "so is the inference",
    )


async def test_ingress_with_only_held_back_items_is_registered(
    services: Services, accounts: Accounts
) -> None:
    """Otherwise the ingress would be forgotten at its first call and never receive a grant."""
    service = await _serving(services, accounts, applications=1)
    accounts.away = True
    await _submit(service, opened("a"), inference("q"), ev.InferenceCancelled("of before"))
    mail = await service.submit_many("i", service.term.epoch, 0, ())

    assert not mail.forgotten
