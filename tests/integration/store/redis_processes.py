"""Real redis-server processes in the setups that operators run; each ends with its block."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import redis

from justitia_ray.store.embedded import find_redis_server

_STOP_S = 10.0


def free_port() -> int:
    """Return a free port whose cluster bus port, 10,000 above, is free, too."""
    while True:
        with closing(socket()) as found, closing(socket()) as bus:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
            if port > 50_000:
                continue
            with suppress(OSError):
                bus.bind(("127.0.0.1", port + 10_000))
                return port


@contextmanager
def redis_server(directory: Path, port: int, *words: str) -> Iterator[redis.Redis]:
    """Run a Redis server on a local port, and yield a client."""
    with (
        _running_process(directory, port, *words),
        redis.Redis(port=port, decode_responses=True) as client,
    ):
        yield client


@contextmanager
def redis_sentinel(directory: Path, port: int, master: str, master_port: int) -> Iterator[None]:
    """Run a Redis Sentinel that declares its master down after one second on its own."""
    config = directory / f"sentinel-{port}.conf"
    config.write_text(
        f"sentinel monitor {master} 127.0.0.1 {master_port} 1\n"
        f"sentinel down-after-milliseconds {master} 1000\n"
        f"sentinel failover-timeout {master} 3000\n"
    )
    with _running_process(directory, port, str(config), "--sentinel"):
        yield


@contextmanager
def one_node_cluster(directory: Path, port: int) -> Iterator[redis.Redis]:
    """Run a Redis Cluster of one node with all slots, and yield a client of that node."""
    words = ("--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf")
    with redis_server(directory, port, *words) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))  # type: ignore[no-untyped-call]
        yield client


@asynccontextmanager
async def tls_front(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Yield a port that terminates TLS in front of a server without TLS."""
    served: set[asyncio.Task[Any]] = set()

    async def forward_connection(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        this = asyncio.current_task()
        assert this is not None
        served.add(this)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        tasks = [
            asyncio.ensure_future(_copy_bytes(reader, inner_writer)),
            asyncio.ensure_future(_copy_bytes(inner_reader, writer)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in (inner_writer, writer):
            one.close()
            with suppress(OSError, ssl.SSLError):
                await one.wait_closed()

    front = await asyncio.start_server(forward_connection, "127.0.0.1", 0, ssl=context)
    async with front:
        yield int(front.sockets[0].getsockname()[1])
    await asyncio.gather(*served, return_exceptions=True)


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@contextmanager
def _running_process(directory: Path, port: int, *words: str) -> Iterator[None]:
    command = [str(find_redis_server()), *words]
    command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    with (directory / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for_answer(port, process, directory)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_answer(port: int, process: "subprocess.Popen[bytes]", directory: Path) -> None:
    for _ in range(500):
        log = (directory / f"{port}.log").read_text(errors="replace")
        assert process.poll() is None, log
        with suppress(OSError), closing(create_connection(("127.0.0.1", port), 1.0)):
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    raise AssertionError(f"nobody listens on {port}")
