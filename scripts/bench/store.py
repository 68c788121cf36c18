"""Cost of `durability`: a scheduler on an embedded Redis, called as ingresses call it.

Ray is left out: its calls cost the same in every mode and would mask the difference.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from justitia_ray.config import AppConfig
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, LeaseFinished
from justitia_ray.protocol.messages import IngressMail, Pull
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.scheduler_store import SchedulerStore

MODES = ("batched", "strict")
BATCH = 10
CALLERS = 32
_INGRESS, _REPLICA = "ingress", "replica"
_ROOM = 10**9


@dataclass(slots=True)
class StoreFigures:
    """Seconds of calls in one repeat, by kind of measurement."""

    mode: str
    open_alone: list[float] = field(default_factory=list)
    """Seconds to open an application on an idle service."""
    open_together: list[float] = field(default_factory=list)
    """Seconds to open an application while all callers open theirs."""
    new_batch: list[float] = field(default_factory=list)
    """Seconds until all of a batch of new applications, each with one inference, are granted."""
    known_batch: list[float] = field(default_factory=list)
    """Seconds until a batch of inferences of an open application is granted."""
    openings_per_s: float = 0.0
    """Openings per second while all callers open applications."""
    saves: int = 0


class StoreBench:
    """Runs the measurements with every durability mode of the store, in random order."""

    def __init__(self, server: EmbeddedRedis, live: int, calls: int, seed: int) -> None:
        self._server = server
        self._live = live
        self._calls = calls
        self._lots = random.Random(seed)
        self._stores = itertools.count()

    async def repeat(self) -> list[StoreFigures]:
        """Measure every durability mode of the store once."""
        modes = list(MODES)
        self._lots.shuffle(modes)
        return [await self._measure_mode(mode) for mode in modes]

    async def _measure_mode(self, mode: str) -> StoreFigures:
        found = StoreFigures(mode)
        async with self._serving_service(mode) as desk:
            for number in range(self._live):
                await desk.open_application(f"live-{number}")
            for number in range(self._calls):
                found.open_alone.append(
                    await _measure_seconds(desk.open_application(f"alone-{number}"))
                )
            numbers = iter(range(self._calls * 4))

            async def open_and_submit() -> None:
                for number in numbers:
                    found.open_together.append(
                        await _measure_seconds(desk.open_application(f"together-{number}"))
                    )

            took_s = await _measure_seconds(
                asyncio.gather(*(open_and_submit() for _ in range(CALLERS)))
            )
            found.openings_per_s = len(found.open_together) / took_s
            for number in range(self._calls):
                found.new_batch.append(
                    await _measure_seconds(desk.submit_batch(f"new-{number}", new=True))
                )
                found.known_batch.append(
                    await _measure_seconds(desk.submit_batch(f"known-{number}", new=False))
                )
            found.saves = desk.service.inspector.status().saves
        return found

    @asynccontextmanager
    async def _serving_service(self, mode: str) -> AsyncIterator["_Service"]:
        config = AppConfig.parse(
            {
                "model": {"name": "bench", "path": "none"},
                "store": {"durability": mode},
                "scheduler": {"recovery_s": 0.001},
            }
        )
        store = SchedulerStore(self._server.url, f"bench/{next(self._stores)}")
        service = SchedulerService(Term(config, store, lambda reason: None))
        await service.term.begin()
        await service.configure({})
        desk = _Service(service)
        try:
            await desk.open_application(desk.known)
            yield desk
        finally:
            await desk.stop()
            await service.term.end()


class _Service:
    """Scheduler service with an ingress, and a replica with room for every concurrent call."""

    def __init__(self, service: SchedulerService) -> None:
        self.service = service
        self.known = "known"
        self._epoch = 0
        self._read = 0
        self._replica = asyncio.ensure_future(self._pull_repeatedly())

    async def stop(self) -> None:
        self._replica.cancel()
        await asyncio.gather(self._replica, return_exceptions=True)

    async def open_application(self, name: str) -> None:
        opened = await self.service.open_application(_arrival_event(name))
        self._epoch = opened.epoch

    async def submit_batch(self, name: str, *, new: bool) -> None:
        """Submit a batch and wait for all of its grants."""
        items: list[ApplicationArrived | InferenceSubmitted] = []
        for number in range(BATCH):
            application = f"{name}-{number}" if new else self.known
            if new:
                items.append(_arrival_event(application))
            items.append(
                InferenceSubmitted(f"{name}-{number}", application, "0", _INGRESS, 20, 10, 10)
            )
        mail = await self.service.submit_many(_INGRESS, self._epoch, self._read, tuple(items))
        granted = self._await_grants(mail)
        while granted < BATCH:
            mail = await self.service.poll_grants(_INGRESS, self._epoch, self._read)
            granted += self._await_grants(mail)

    def _await_grants(self, mail: IngressMail) -> int:
        new = [message for number, message in mail.messages if number > self._read]
        self._read = max((number for number, _ in mail.messages), default=self._read)
        return sum(isinstance(message, Grant) for message in new)

    async def _pull_repeatedly(self) -> None:
        read, epoch, finished = 0, 0, tuple[LeaseFinished, ...]()
        for number in itertools.count(1):
            mail = await self.service.pull(
                Pull(
                    _REPLICA,
                    epoch,
                    number,
                    read,
                    ReplicaCapacity(_ROOM),
                    _ROOM,
                    (),
                    finished,
                    0,
                    1.0,
                )
            )
            epoch = mail.epoch
            read = max((place for place, _ in mail.messages), default=read)
            finished = tuple(
                LeaseFinished(message.lease_id, 20, 10, Outcome.FINISHED)
                for _, message in mail.messages
                if isinstance(message, Grant)
            )


def embedded_server(directory: Path) -> EmbeddedRedis:
    """Return an embedded Redis server that is not started."""
    return EmbeddedRedis(directory)


def _arrival_event(name: str) -> ApplicationArrived:
    return ApplicationArrived(name, "bench", "tenant", 1.0, 1_000.0, _INGRESS)


async def _measure_seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began
