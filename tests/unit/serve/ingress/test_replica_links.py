"""An ingress has one connection to each replica and limits how often it reconnects."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from itertools import pairwise
from typing import Any

import pytest

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from tests.harness.simulation.virtual_loop import run_virtually


class Connection:
    """Connection that the test can cut."""

    def __init__(self) -> None:
        self.is_lost = False
        self.closed = 0

    async def close(self) -> None:
        self.is_lost = True
        self.closed += 1


class Rig:
    """Connections of an ingress to its replicas, and a record of its connection attempts."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, str]] = []
        self.dialled_at: list[float] = []
        self.opened: list[Connection] = []
        self.takes_s = 0.5
        self.reachable = True
        self.links = ReplicaLinks(self._dial)
        self.links.note_addresses({"r1": "a:1"})

    async def _dial(self, address: str, target: str) -> Any:
        self.dialled.append((address, target))
        self.dialled_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if not self.reachable:
            raise ConnectionLost(f"no connection to {target}")
        self.opened.append(Connection())
        return self.opened[-1]

    async def is_refused_at_once(self) -> bool:
        """Return whether a call to a replica is refused at once, without a connection attempt."""
        before = len(self.dialled)
        try:
            await self.links.link_to("r1")
        except ConnectionLost as error:
            return "was lost just now" in str(error) and before == len(self.dialled)
        return False


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on an event loop whose clock jumps to the next deadline."""

    @wraps(test)
    def run_test() -> None:
        run_virtually(test())

    return run_test


@in_virtual_time
async def test_concurrent_callers_share_one_connection_to_a_replica() -> None:
    """A burst of calls after a start must not open a hundred connections."""
    rig = Rig()
    found = await asyncio.gather(*(rig.links.link_to("r1") for _ in range(100)))
    found.append(await rig.links.link_to("r1"))

    assert [("a:1", "r1")] == rig.dialled
    assert {id(rig.opened[0])} == {id(link) for link in found}


@in_virtual_time
async def test_cancelled_caller_does_not_end_a_shared_connection_attempt() -> None:
    """The caller was cancelled while the connection was being opened."""
    rig = Rig()
    leaves = asyncio.create_task(rig.links.link_to("r1"))
    stays = asyncio.create_task(rig.links.link_to("r1"))
    await asyncio.sleep(0.1)
    leaves.cancel()

    await stays
    assert 1 == len(rig.opened)


@in_virtual_time
async def test_grant_without_the_replicas_address_is_refused() -> None:
    """A grant of an older scheduler may lack the replica's address."""
    with pytest.raises(ConnectionLost, match="no address of replica r2 is known"):
        await Rig().links.link_to("r2")


@in_virtual_time
async def test_lost_replica_connection_is_dialled_again_after_a_pause() -> None:
    rig = Rig()
    rig.takes_s = 0.0
    for _ in range(3):
        (await rig.links.link_to("r1")).is_lost = True  # type: ignore[misc]
        assert await rig.is_refused_at_once()
        await asyncio.sleep(0.09)
        assert await rig.is_refused_at_once()
        await asyncio.sleep(0.02)

    assert not (await rig.links.link_to("r1")).is_lost
    assert 4 == len(rig.opened)


@in_virtual_time
async def test_pauses_between_failed_connection_attempts_grow_to_five_seconds() -> None:
    rig = Rig()
    rig.reachable, rig.takes_s = False, 0.0
    for attempts, every_s in ((9, 0.01), (1_100, 2.5)):
        while len(rig.dialled) < attempts:
            with pytest.raises(ConnectionLost):
                await rig.links.link_to("r1")
            await asyncio.sleep(every_s)
    pauses = [after - before for before, after in pairwise(rig.dialled_at)]

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] == pytest.approx(pauses[:8], abs=0.03)
    assert max(pauses) <= 7.5  # checked every 2.5 s
    rig.reachable = True
    await asyncio.sleep(5.0)
    (await rig.links.link_to("r1")).is_lost = True  # type: ignore[misc]
    assert await rig.is_refused_at_once()
    await asyncio.sleep(0.11)
    assert not (await rig.links.link_to("r1")).is_lost  # The pause is back at its first length.


@in_virtual_time
async def test_failure_to_connect_reaches_every_waiting_caller() -> None:
    """Each caller then returns its lease to the scheduler."""
    rig = Rig()
    rig.reachable = False
    found = await asyncio.gather(
        *(rig.links.link_to("r1") for _ in range(3)), return_exceptions=True
    )

    assert ["no connection to r1"] * 3 == [str(error) for error in found]
    assert 1 == len(rig.dialled)


@in_virtual_time
async def test_changed_replica_address_is_dialled_at_once() -> None:
    """The pause after a failure belongs to the old address."""
    rig = Rig()
    first = await rig.links.link_to("r1")
    rig.links.note_addresses({"r1": "a:1"})
    assert first is await rig.links.link_to("r1")
    first.is_lost = True  # type: ignore[misc]
    assert await rig.is_refused_at_once()
    rig.links.note_addresses({"r1": "b:2"})

    assert first is not await rig.links.link_to("r1")
    assert [("a:1", "r1"), ("b:2", "r1")] == rig.dialled


@in_virtual_time
async def test_addresses_of_former_replicas_are_forgotten() -> None:
    """An ingress runs for months and must remember only the latest addresses."""
    rig = Rig()
    for number in range(5_000):
        rig.links.note_addresses({f"replica-{number}": f"a:{number}"})
    await rig.links.link_to("replica-4999")
    with pytest.raises(ConnectionLost, match="no address"):
        await rig.links.link_to("replica-0")


@in_virtual_time
async def test_closing_replica_links_ends_connections_and_attempts() -> None:
    rig = Rig()
    rig.links.note_addresses({"r2": "a:2", "r3": "a:3"})
    await rig.links.link_to("r1")
    opening = asyncio.create_task(rig.links.link_to("r2"))
    await asyncio.sleep(0.1)
    await rig.links.close()
    await asyncio.wait([opening])

    assert opening.cancelled()
    assert [1] == [connection.closed for connection in rig.opened]
    with pytest.raises(ConnectionLost, match="no address"):
        await rig.links.link_to("r1")
