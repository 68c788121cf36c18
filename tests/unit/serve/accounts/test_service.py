"""What the accounts have stored by the time that they answer, and what they leave in the store."""

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
    """A store that writes what it is handed when the test says so."""

    def __init__(self) -> None:
        super().__init__(None, "app")
        self.written: dict[str, JsonObject] = {}
        self.held: list[asyncio.Event] = []
        """Of the saves that have begun, in order."""

    async def save(self, epoch: Epoch, records: Mapping[str, JsonObject | None]) -> bool:
        self.held.append(asyncio.Event())
        await self.held[-1].wait()
        self.written |= {name: record for name, record in records.items() if record is not None}
        return True


async def _begun(store: AccountsStore) -> AccountsService:
    service = AccountsService(store, lambda reason: None, wall=lambda: _NOW)
    await service.begin()
    await service.configure(_TENANTS)
    return service


@pytest.fixture
def redis() -> FakeSchedulerStore:
    """The stored records, over several lives of the accounts actor."""
    return FakeSchedulerStore()


@pytest_asyncio.fixture
async def service(redis: FakeSchedulerStore) -> AsyncIterator[AccountsService]:
    """Accounts on it."""
    service = await _begun(_on(redis))
    yield service
    await service.end()


def _on(redis: FakeSchedulerStore) -> AccountsStore:
    store = AccountsStore(None, "app")
    store._store = redis
    return store


def _asks(service: AccountsService, scheduler: str, *names: str) -> Exchange:
    asks = tuple(Ask(name, "t", {Unit.APPLICATIONS: 1.0}) for name in names)
    return Exchange(scheduler, 1, 1, asks=asks, accounts=service.book.epoch)


async def test_what_was_granted_is_stored_before_it_is_answered_whoever_else_asks() -> None:
    """The models of an application ask at the same time: one is no reason to answer the other."""
    store = _HeldStore()
    service = await _begun(store)
    first = asyncio.create_task(service.exchange(_asks(service, "m1", "a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(service.exchange(_asks(service, "m2", "b")))
    await asyncio.sleep(0)
    store.held[0].set()
    third = asyncio.create_task(service.exchange(_asks(service, "m3", "c")))
    for _ in range(10):  # far more turns than the answers take
        await asyncio.sleep(0)

    assert first.done()
    assert not second.done()
    assert 2 == len(store.held)  # an older one could be written after a newer one
    for held in store.held:
        held.set()
    await asyncio.gather(second, third)
    assert {"claim:m1|a", "claim:m2|b", "claim:m3|c"} <= store.written.keys()


async def test_claim_that_ends_while_the_store_is_away_is_not_there_when_it_is_back(
    service: AccountsService, redis: FakeSchedulerStore
) -> None:
    """Later accounts would count the application twice: as used, and as claimed for good."""
    await service.exchange(_asks(service, "m", "a"))
    redis.away = True
    over = Use("a", {Unit.APPLICATIONS: 1.0}, is_over=True)
    for number in (2, 3):
        await service.exchange(Exchange("m", 1, number, uses=(over,), accounts=service.book.epoch))
    redis.away = False
    await service.end()
    later = await _begun(_on(redis))

    assert [8] == [one.remaining for one in later.book.standings("t", _NOW)]
    await later.end()
