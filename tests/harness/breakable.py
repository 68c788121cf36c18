"""Replica and Ingress whose connections can be cut and whose port can be blocked by a call.

The fake engine of such a replica dies, or its process crashes, on certain words in a prompt.
"""

import asyncio
import ctypes
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine, EngineCall, ResponseHead
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.ingress.deployment import Ingress
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.serve.transport.connection import Connection
from justitia_ray.serve.transport.link import Link, SocketLink
from justitia_ray.units import Seconds
from tests.harness.planned import KILLER
from tests.harness.probe import Probed

_ANSWERED_S: Seconds = 0.2
"""Seconds that a fault waits, so that the call that requested it gets its answer first."""

CRASHER = "segfault"
"""Word in a prompt that crashes the replica's process."""
KILLS_AFTER_S: Seconds = 0.3


class BreakableReplica(Probed, EngineReplica):
    """Replica with methods that inject faults; tests call them through `probe`."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        await super().__init__(config, build_engine)
        if isinstance(self._engine, FakeEngine):
            die_of_killers(self._engine)

    def block_loop(self, for_s: Seconds) -> None:
        asyncio.get_running_loop().call_later(_ANSWERED_S, time.sleep, for_s)

    def process_id(self) -> int:
        return os.getpid()

    def address(self) -> str:
        assert self._listener is not None
        return self._listener.address

    def cut_connections(self, *, to_scheduler_only: bool = False) -> int:
        cut = _connections_of([self._scheduler._link])
        if not to_scheduler_only:
            cut += self._ingress_connections()
        return _shut_down_sockets(cut)

    async def block_port(self, for_s: Seconds) -> None:
        """Refuse connections from ingresses for `for_s` seconds, but keep the scheduler's."""
        listener = self._listener
        assert listener is not None
        assert listener._server is not None
        host, port = listener._server.sockets[0].getsockname()[:2]
        listener._server.close()
        _shut_down_sockets(self._ingress_connections())
        await asyncio.sleep(for_s)
        loop = asyncio.get_running_loop()
        listener._server = await loop.create_server(listener._next_protocol, host, port)

    def _ingress_connections(self) -> list[Connection]:
        assert self._listener is not None
        return [served.connection for served in self._listener._served]


class BreakableIngress(Probed, Ingress):
    """Ingress whose connections tests can cut through `probe`."""

    def cut_connections(self, *, to_scheduler_only: bool = False) -> int:
        links: list[Link | None] = []
        for queue in self._queues:
            links.append(queue._scheduler_link._link)
            opening = [known.opening for known in queue.calls.links._known.values()]
            if not to_scheduler_only:
                done = [task for task in opening if task is not None and task.done()]
                links += [task.result() for task in done if task.exception() is None]
        return _shut_down_sockets(_connections_of(links))


def die_of_killers(engine: FakeEngine) -> None:
    """Let every prompt that contains the word `KILLER` kill the engine after a while.

    Prompts with `CRASHER` crash its process.
    """
    run = engine.call

    async def call(call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        if KILLER.encode() in call.body:
            asyncio.get_running_loop().call_later(KILLS_AFTER_S, engine.die)
        elif CRASHER.encode() in call.body:
            asyncio.get_running_loop().call_later(KILLS_AFTER_S, ctypes.string_at, 0)
        async with aclosing(run(call)) as items:
            async for item in items:
                yield item

    engine.call = call  # type: ignore[method-assign]


def _connections_of(links: Iterable[Link | None]) -> list[Connection]:
    return [link._connection for link in links if isinstance(link, SocketLink)]


def _shut_down_sockets(connections: Iterable[Connection]) -> int:
    """Shut sockets down in both directions, as a network failure would."""
    alive = [connection for connection in connections if not connection.is_lost]
    for connection in alive:
        number = os.dup(connection._socket.get_extra_info("socket").fileno())
        with socket.socket(fileno=number) as opened:  # a transport's socket has no `shutdown`
            opened.shutdown(socket.SHUT_RDWR)
    return len(alive)
