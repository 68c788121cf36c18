"""Accounts that lost data are completed by a running scheduler."""

import asyncio
from typing import Any

import pytest

from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.core.actions import Refusal
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services, arrival_of
from tests.unit.serve.scheduler.test_quota_gate import (
    Accounts,
    _leader_with_quota,
    accounts,
    services,
)

__all__ = ["accounts", "services"]  # fixtures

pytestmark = pytest.mark.asyncio


async def _serve_applications(service: SchedulerService, accounts: Accounts, *names: str) -> None:
    """Open and end applications until the quota service has received all of them."""
    gate = service.term.gate
    for name in names:
        assert (await service.open_application(arrival_of(name))).refusal is None
        await service.close_application(name)
    await service.term.checkpointer.next_save()
    await eventually(
        lambda: not (gate.book.over or gate.exchange._told or gate.book.unstored), "all is told"
    )


async def _admitted_names(service: SchedulerService, *names: str) -> list[str]:
    opening = [await service.open_application(arrival_of(name)) for name in names]
    assert {one.refusal for one in opening} <= {None, Refusal.QUOTA_EXHAUSTED}
    return [name for name, one in zip(names, opening, strict=True) if one.refusal is None]


async def _restart_accounts(accounts: Accounts) -> None:
    """Restart the quota service with its stored state."""
    assert accounts.service is not None
    assert accounts.service._looking is not None
    accounts.service._looking.cancel()
    accounts.redis.away = False
    await accounts.restart()


async def test_next_quota_process_learns_of_applications_that_ended_in_an_outage(
    services: Services, accounts: Accounts
) -> None:
    """The quota service restarts after an outage of its store, while the scheduler continues."""
    service = await _leader_with_quota(services, accounts, "applications", 4)
    await _serve_applications(service, accounts, "a")
    accounts.redis.away = True
    await _serve_applications(service, accounts, "b", "c")
    await _restart_accounts(accounts)

    assert ["d"] == await _admitted_names(service, "d", "e")


async def test_next_quota_process_learns_of_ended_applications_lost_by_the_store(
    services: Services, accounts: Accounts
) -> None:
    service = await _leader_with_quota(services, accounts, "applications", 4)
    await _serve_applications(service, accounts, "a")
    hash_ = accounts.redis._keys.applications
    lagging: dict[str, str] = accounts.redis.raw.hgetall(hash_)  # type: ignore[assignment]
    await _serve_applications(service, accounts, "b", "c")
    accounts.redis.raw.delete(hash_)
    accounts.redis.raw.hset(hash_, mapping=lagging)  # type: ignore[arg-type]
    await _restart_accounts(accounts)

    assert ["d"] == await _admitted_names(service, "d", "e")


async def test_next_quota_process_counts_stored_ended_applications_once(
    services: Services, accounts: Accounts
) -> None:
    service = await _leader_with_quota(services, accounts, "applications", 4)
    await _serve_applications(service, accounts, "a", "b")
    await _restart_accounts(accounts)

    assert ["c", "d"] == await _admitted_names(service, "c", "d", "e")
    assert accounts.service is not None
    claims = [name for term in accounts.service.book._terms.values() for name in term.claims]
    assert ["c", "d"] == claims


async def test_message_interrupted_by_a_quota_process_death_is_counted_once(
    services: Services, accounts: Accounts
) -> None:
    """No answer arrived, whether or not the quota service had stored the message."""
    service = await _leader_with_quota(services, accounts, "applications", 4)
    await _serve_applications(service, accounts, "a")
    accounts.redis.away = True
    await _serve_applications(service, accounts, "b")
    accounts.answering.clear()
    opening = asyncio.create_task(service.open_application(arrival_of("c")))
    await eventually(lambda: accounts.remaining_of() == 1, "it is claimed")
    await _restart_accounts(accounts)
    accounts.away = True
    accounts.answering.set()
    accounts.away = False

    assert (await opening).refusal is None
    assert ["d"] == await _admitted_names(service, "d", "e")


async def test_unstored_ended_applications_are_resent_after_a_quota_process_death(
    services: Services, accounts: Accounts
) -> None:
    service = await _leader_with_quota(services, accounts, "applications", 4)
    accounts.redis.away = True
    await _serve_applications(service, accounts, "a", "b")
    accounts.answering.clear()
    await _restart_accounts(accounts)
    opening = asyncio.create_task(service.open_application(arrival_of("c")))
    await eventually(lambda: accounts.remaining_of() == 2, "what they lack is claimed")
    await _restart_accounts(accounts)
    accounts.answering.set()

    assert (await opening).refusal is None
    assert ["d"] == await _admitted_names(service, "d", "e")


async def test_quota_reservation_with_a_reused_name_is_counted_each_time(
    services: Services, accounts: Accounts
) -> None:
    service = await _leader_with_quota(services, accounts, "applications", 6)
    await _serve_applications(service, accounts, "a")
    accounts.redis.away = True
    for _ in range(3):
        await _serve_applications(service, accounts, "b")
    await _restart_accounts(accounts)

    assert ["c", "d"] == await _admitted_names(service, "c", "d", "e")


async def test_end_of_a_quota_reservation_is_recorded_with_its_message_number(
    services: Services, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another message's number, the end could wrongly count as stored or as lost."""
    service = await _leader_with_quota(services, accounts, "applications", 5)
    gate = service.term.gate
    await _serve_applications(service, accounts, "a")
    accounts.redis.away = True
    assert (await service.open_application(arrival_of("b"))).refusal is None
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

    def note_and_renumber(after: Any, number: int) -> None:
        numbers.append(number)
        renumber(after, number)

    monkeypatch.setattr(accounts, "exchange", exchange_or_die)
    monkeypatch.setattr(gate.book.lately_told, "renumber", note_and_renumber)
    opening = asyncio.create_task(service.open_application(arrival_of("c")))
    await eventually(lambda: accounts.remaining_of() == 2, "it is claimed")
    assert gate.exchange._told is not None
    assert ["b"] == [
        use.name for use in gate.exchange._told.uses
    ]  # The quota service learns that the application is open.
    await service.close_application("b")
    await _restart_accounts(accounts)
    died.set()

    assert (await opening).refusal is None
    assert ["d", "e"] == await _admitted_names(service, "d", "e", "f")
    assert "b" in ends[numbers[0]]
