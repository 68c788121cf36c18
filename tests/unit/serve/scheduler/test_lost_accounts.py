"""Accounts that lost data are completed by a running scheduler."""

import asyncio
from typing import Any

import pytest

from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.core.actions import Refusal
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, opened
from tests.unit.serve.scheduler.test_quota_gate import Accounts, _serving, accounts, services

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


async def _served(service: SchedulerService, accounts: Accounts, *names: str) -> None:
    """Open and end applications until the accounts have received all of them."""
    gate = service.term.gate
    for name in names:
        assert (await service.open_application(opened(name))).refusal is None
        await service.close_application(name)
    await service.term.checkpointer.next_save()
    await eventually(
        lambda: not (gate.book.over or gate.exchange._told or gate.book.unstored), "all is told"
    )


async def _let_in(service: SchedulerService, *names: str) -> list[str]:
    opening = [await service.open_application(opened(name)) for name in names]
    assert {one.refusal for one in opening} <= {None, Refusal.QUOTA_EXHAUSTED}
    return [name for name, one in zip(names, opening, strict=True) if one.refusal is None]


async def _lose(accounts: Accounts) -> None:
    """Restart the accounts' process with the stored state."""
    assert accounts.service is not None
    assert accounts.service._looking is not None
    accounts.service._looking.cancel()
    accounts.redis.away = False
    await accounts.restart()


async def test_ends_during_a_store_outage_reach_the_next_accounts(
    services: Services, accounts: Accounts
) -> None:
    """Only the accounts restart; a short failure of their store was enough to lose an end."""
    service = await _serving(services, accounts, "applications", 4)
    await _served(service, accounts, "a")
    accounts.redis.away = True
    await _served(service, accounts, "b", "c")
    await _lose(accounts)

    assert ["d"] == await _let_in(service, "d", "e")


async def test_ends_lost_by_the_store_reach_the_next_accounts(
    services: Services, accounts: Accounts
) -> None:
    service = await _serving(services, accounts, "applications", 4)
    await _served(service, accounts, "a")
    hash_ = accounts.redis._keys.applications
    lagging: dict[str, str] = accounts.redis.raw.hgetall(hash_)  # type: ignore[assignment]
    await _served(service, accounts, "b", "c")
    accounts.redis.raw.delete(hash_)
    accounts.redis.raw.hset(hash_, mapping=lagging)  # type: ignore[arg-type]
    await _lose(accounts)

    assert ["d"] == await _let_in(service, "d", "e")


async def test_ends_stored_by_the_next_accounts_are_not_counted_twice(
    services: Services, accounts: Accounts
) -> None:
    service = await _serving(services, accounts, "applications", 4)
    await _served(service, accounts, "a", "b")
    await _lose(accounts)

    assert ["c", "d"] == await _let_in(service, "c", "d", "e")
    assert accounts.service is not None
    claims = [name for term in accounts.service.book._terms.values() for name in term.claims]
    assert ["c", "d"] == claims


async def test_exchange_in_flight_when_the_accounts_die_counts_once(
    services: Services, accounts: Accounts
) -> None:
    """No answer arrived, whether the accounts had stored the exchange or not."""
    service = await _serving(services, accounts, "applications", 4)
    await _served(service, accounts, "a")
    accounts.redis.away = True
    await _served(service, accounts, "b")
    accounts.answering.clear()
    opening = asyncio.create_task(service.open_application(opened("c")))
    await eventually(lambda: accounts.remaining() == 1, "it is claimed")
    await _lose(accounts)
    accounts.away = True
    accounts.answering.set()
    accounts.away = False

    assert (await opening).refusal is None
    assert ["d"] == await _let_in(service, "d", "e")


async def test_missing_ends_are_sent_again_after_the_accounts_die(
    services: Services, accounts: Accounts
) -> None:
    service = await _serving(services, accounts, "applications", 4)
    accounts.redis.away = True
    await _served(service, accounts, "a", "b")
    accounts.answering.clear()
    await _lose(accounts)
    opening = asyncio.create_task(service.open_application(opened("c")))
    await eventually(lambda: accounts.remaining() == 2, "what they lack is claimed")
    await _lose(accounts)
    accounts.answering.set()

    assert (await opening).refusal is None
    assert ["d"] == await _let_in(service, "d", "e")


async def test_name_that_was_used_again_is_counted_each_time(
    services: Services, accounts: Accounts
) -> None:
    service = await _serving(services, accounts, "applications", 6)
    await _served(service, accounts, "a")
    accounts.redis.away = True
    for _ in range(3):
        await _served(service, accounts, "b")
    await _lose(accounts)

    assert ["c", "d"] == await _let_in(service, "c", "d", "e")


async def test_end_is_recorded_with_the_exchange_that_sends_it(
    services: Services, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an end would count as stored or as lost in the wrong exchange."""
    service = await _serving(services, accounts, "applications", 5)
    gate = service.term.gate
    await _served(service, accounts, "a")
    accounts.redis.away = True
    assert (await service.open_application(opened("b"))).refusal is None
    ends: dict[int, set[str]] = {}
    exchange, renumber = accounts.exchange, gate.book.lately_told.renumber
    died = asyncio.Event()
    numbers: list[int] = []

    async def exchange_or_die(told: Exchange) -> Answer:
        ended = {use.name for use in told.uses if use.is_over or use.is_final}
        ends.setdefault(told.number, set()).update(ended)
        answer = await exchange(told)
        if told.asks and not died.is_set():
            await died.wait()
            raise AdmissionError("the accounts have died")
        return answer

    def note_number(after: Any, number: int) -> None:
        numbers.append(number)
        renumber(after, number)

    monkeypatch.setattr(accounts, "exchange", exchange_or_die)
    monkeypatch.setattr(gate.book.lately_told, "renumber", note_number)
    opening = asyncio.create_task(service.open_application(opened("c")))
    await eventually(lambda: accounts.remaining() == 2, "it is claimed")
    assert gate.exchange._told is not None
    assert ["b"] == [
        use.name for use in gate.exchange._told.uses
    ]  # the accounts learn that it is open
    await service.close_application("b")
    await _lose(accounts)
    died.set()

    assert (await opening).refusal is None
    assert ["d", "e"] == await _let_in(service, "d", "e", "f")
    assert "b" in ends[numbers[0]]
