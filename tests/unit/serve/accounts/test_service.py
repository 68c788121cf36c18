"""State that the accounts service stores before it answers, and reservations left in it."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from justitia_ray.accounts.messages import Ask, Exchange, Use
from justitia_ray.core.tenants import Unit
from justitia_ray.serve.accounts.service import AccountsService
from justitia_ray.store.accounts_store import AccountsStore
from justitia_ray.store.schema import JsonObject
from justitia_ray.units import Epoch
from tests.fake_redis import FakeSchedulerStore

pytestmark = pytest.mark.asyncio

_NOW = 1_000_000.0
_TENANTS = {"t": {"quotas": [{"unit": "applications", "limit": 9, "per": "day"}]}}


class _HeldStore(AccountsStore):
    """Store whose saves finish only when the test releases them."""

    def __init__(self) -> None:
        super().__init__(None, "app")
        self.written: dict[str, JsonObject] = {}
        self.held: list[asyncio.Event] = []
        """One event for each pending save, in the order in which the saves began."""

    async def save(self, epoch: Epoch, records: Mapping[str, JsonObject | None]) -> bool:
        self.held.append(asyncio.Event())
        await self.held[-1].wait()
        self.written |= {name: record for name, record in records.items() if record is not None}
        return True


async def _started_service(store: AccountsStore) -> AccountsService:
    service = AccountsService(store, lambda reason: None, wall=lambda: _NOW)
    await service.begin()
    await service.configure(_TENANTS)
    return service


@pytest.fixture
def fake_store() -> FakeSchedulerStore:
    return FakeSchedulerStore()


@pytest_asyncio.fixture
async def service(fake_store: FakeSchedulerStore) -> AsyncIterator[AccountsService]:
    service = await _started_service(_accounts_store(fake_store))
    yield service
    await service.end()


def _accounts_store(fake_store: FakeSchedulerStore) -> AccountsStore:
    store = AccountsStore(None, "app")
    store._store = fake_store
    return store


def _opening_request(service: AccountsService, scheduler: str, *names: str) -> Exchange:
    asks = tuple(Ask(name, "t", {Unit.APPLICATIONS: 1.0}) for name in names)
    return Exchange(scheduler, 1, 1, asks=asks, accounts=service.book.epoch)


async def test_concurrent_quota_reservations_are_stored_before_any_answer() -> None:
    """Neither of two models gets an answer before the common save of both has finished."""
    store = _HeldStore()
    service = await _started_service(store)
    first = asyncio.create_task(service.exchange(_opening_request(service, "m1", "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(service.exchange(_opening_request(service, "m2", "b")))
    await asyncio.sleep(0)
    store.held[0].set()
    third = asyncio.create_task(service.exchange(_opening_request(service, "m3", "c")))
    for _ in range(10):  # Give a wrong answer the time to arrive.
        await asyncio.sleep(0)

    assert first.done()
    assert not second.done()
    assert 2 == len(store.held)  # Otherwise an older save could overwrite a newer one.
    for held in store.held:
        held.set()
    await asyncio.gather(second, third)
    assert {"claim:m1|a", "claim:m2|b", "claim:m3|c"} <= store.written.keys()


async def test_reservation_that_ends_during_a_store_outage_is_removed_afterwards(
    service: AccountsService, fake_store: FakeSchedulerStore
) -> None:
    """A leaked reservation would count the application twice: as used and as reserved."""
    await service.exchange(_opening_request(service, "m", "a"))
    fake_store.away = True
    over = Use("a", {Unit.APPLICATIONS: 1.0}, is_over=True)
    for number in (2, 3):
        await service.exchange(Exchange("m", 1, number, uses=(over,), accounts=service.book.epoch))
    fake_store.away = False
    await service.end()
    later = await _started_service(_accounts_store(fake_store))

    assert [8] == [one.remaining for one in later.book.standings("t", _NOW)]
    await later.end()
