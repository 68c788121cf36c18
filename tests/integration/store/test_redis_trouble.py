"""Redis servers that refuse commands: the store reports the reason and recovers by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from justitia_ray.errors import StoreError
from justitia_ray.store.connection import Credentials
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually
from tests.integration.store.redis_processes import free_port, redis_server

pytestmark = pytest.mark.redis


async def save_error(store: SchedulerStore, epoch: int) -> str | None:
    """Save, and return the reason of a failure; None on success."""
    try:
        await store.save(epoch, {"v": 1}, {"a": {"F": 1}}, ())
    except StoreError as error:
        return str(error)
    return None


@asynccontextmanager
async def store_with_state(
    port: int, credentials: Credentials | None = None
) -> AsyncIterator[tuple[SchedulerStore, int]]:
    """Yield a store that has saved once, and its epoch."""
    store = SchedulerStore(f"redis://127.0.0.1:{port}", "app/m", credentials)
    epoch = await store.become_leader()
    assert await save_error(store, epoch) is None
    yield store, epoch
    await store.aclose()


@contextmanager
def changed_setting(raw: redis.Redis, name: str, value: str) -> Iterator[None]:
    """Set a value of a Redis server's configuration during a `with` block."""
    before = str(raw.config_get(name)[name])
    raw.config_set(name, value)
    yield
    raw.config_set(name, str(before))


@contextmanager
def read_only_replica(raw: redis.Redis) -> Iterator[None]:
    """Make a Redis server a replica of a missing master, so that it refuses writes."""
    raw.replicaof("127.0.0.1", str(free_port()))
    yield
    raw.replicaof("NO", "ONE")


@contextmanager
def stale_replica(raw: redis.Redis) -> Iterator[None]:
    """Make a Redis server a replica that answers nothing while its master is missing."""
    with changed_setting(raw, "replica-serve-stale-data", "no"), read_only_replica(raw):
        yield


@contextmanager
def out_of_memory(raw: redis.Redis) -> Iterator[None]:
    with changed_setting(raw, "maxmemory", "1"):
        yield


@contextmanager
def too_few_replicas(raw: redis.Redis) -> Iterator[None]:
    """Make a Redis server require a replica before it accepts writes."""
    with changed_setting(raw, "min-replicas-to-write", "1"):
        yield


_HARMS: list[tuple[str, Callable[[redis.Redis], Any]]] = [
    ("READONLY|read only replica", read_only_replica),
    ("MASTERDOWN|Link with MASTER is down", stale_replica),
    ("OOM|command not allowed when used memory", out_of_memory),
    ("NOREPLICAS|Not enough good replicas", too_few_replicas),
]


@pytest.mark.parametrize(
    ("said", "harm"), _HARMS, ids=["read-only", "master down", "out of memory", "no replicas"]
)
async def test_store_recovers_when_redis_accepts_writes_again(
    tmp_path: Path, said: str, harm: Callable[[redis.Redis], Any]
) -> None:
    with redis_server(tmp_path, free_port(), "--save", "") as raw:
        port = raw.connection_pool.connection_kwargs["port"]
        async with store_with_state(port) as (store, epoch):
            with harm(raw):
                trouble = await save_error(store, epoch)
                again = await save_error(store, epoch)
            after = await save_error(store, epoch)

    assert trouble is not None
    assert any(part in trouble for part in said.split("|")), trouble
    assert again == trouble
    assert after is None


class SwitchableAddress:
    """Fixed address in front of several servers; new connections go to the selected one."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def forward_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
        for source, sink in ((reader, inner_writer), (inner_reader, writer)):
            task = asyncio.create_task(self._copy_bytes(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy_bytes(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()

    async def close_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_store_finds_the_new_primary_although_old_connections_stay_open(
    tmp_path: Path,
) -> None:
    """A managed Redis keeps its address; the old master remains as a read-only replica."""
    with (
        redis_server(tmp_path, free_port(), "--save", "") as old,
        redis_server(tmp_path, free_port(), "--save", "") as new,
    ):
        ports = [one.connection_pool.connection_kwargs["port"] for one in (old, new)]
        switch = SwitchableAddress(ports[0])
        async with await asyncio.start_server(switch.forward_connection, "127.0.0.1", 0) as front:
            port = front.sockets[0].getsockname()[1]
            async with store_with_state(port) as (store, epoch):
                new.replicaof("127.0.0.1", str(ports[0]))
                await eventually(
                    lambda: new.info("replication").get("master_link_status") == "up", "a copy"
                )
                old.wait(1, 5_000)
                new.replicaof("NO", "ONE")
                old.replicaof("127.0.0.1", str(ports[1]))
                switch.target = ports[1]
                troubles = [await save_error(store, epoch) for _ in range(2)]
                stored = await store.load()
            await switch.close_all()

    assert "read only replica" in str(troubles[0])
    assert troubles[1] is None
    assert {"a": {"F": 1}} == stored.applications


async def test_store_waits_while_redis_loads_its_data(tmp_path: Path) -> None:
    """A server that loads its data accepts connections and refuses every command."""
    with redis_server(tmp_path, free_port(), "--rdbcompression", "no") as raw:
        port = raw.connection_pool.connection_kwargs["port"]
        async with store_with_state(port) as (store, epoch):
            for number in range(50):
                # Redis serves clients after every 2 MB that it loads.
                raw.set(f"filling-{number}", "x" * 300_000)
            raw.config_set("key-load-delay", "20000")
            with redis.Redis(port=port) as other:
                reload = asyncio.create_task(
                    asyncio.to_thread(other.execute_command, "DEBUG", "RELOAD")
                )
                troubles: list[str | None] = []

                async def error_is_reported() -> bool:
                    troubles.append(await save_error(store, epoch))
                    return troubles[-1] is not None

                await eventually(error_is_reported, "it reads its data")
                await reload
            after = await save_error(store, epoch)

    assert "loading the dataset" in str(troubles[-1])
    assert after is None


def change_password(raw: redis.Redis, password: str) -> None:
    """Change a Redis server's password, and close all connections made with the old one."""
    raw.config_set("requirepass", password)
    raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]


async def test_changed_redis_password_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    credentials = Credentials(password_file=str(file))
    with redis_server(tmp_path, free_port(), "--save", "") as raw:
        port = raw.connection_pool.connection_kwargs["port"]
        change_password(raw, "first")
        async with store_with_state(port, credentials) as (store, epoch):
            change_password(raw, "second")
            before = await save_error(store, epoch)
            file.write_text("second\n")
            after = await save_error(store, epoch)
            file.unlink()
            change_password(raw, "third")
            without = await save_error(store, epoch)
            file.write_text("third")
            again = await save_error(store, epoch)

    assert "password" in str(before)
    assert str(file) in str(before)
    assert after is None
    assert "No such file" in str(without)
    assert again is None


@pytest.mark.parametrize("password", [None, "first"])
async def test_store_recovers_from_a_changed_redis_password(
    tmp_path: Path, password: str | None
) -> None:
    """A process keeps its environment, so a changed password needs a restart."""
    with redis_server(tmp_path, free_port(), "--save", "") as raw:
        port = raw.connection_pool.connection_kwargs["port"]
        change_password(raw, password or "")
        async with store_with_state(port, Credentials(password=password)) as (store, epoch):
            change_password(raw, "second")
            troubles = [await save_error(store, epoch) for _ in range(2)]
            change_password(raw, password or "")
            after = await save_error(store, epoch)

    for trouble in troubles:
        assert trouble is not None
        assert "store.redis_password_file" in trouble
        assert ("environment" in trouble) == (password is not None)
    assert after is None
