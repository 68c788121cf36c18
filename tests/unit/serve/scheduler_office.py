"""Services over one store in memory, and what the calls of replicas and ingresses look like."""

import asyncio
import itertools
from typing import Any

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, LeaseProgress
from justitia_ray.protocol.messages import IngressMail, Pull, ReplicaMail
from justitia_ray.serve.exporter import Exporter
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.serve.steady_clock import SteadyClock
from tests.eventually import eventually
from tests.unit.observability.taken import Taken
from tests.unit.serve.memory_store import MemoryStore


class Hands:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        """Return the instant."""
        return self.at


class Office:
    """Services on one store; nothing is saved by the clock, only when it is asked for."""

    def __init__(self, store: MemoryStore, **section: Any) -> None:
        """Open one.

        Args:
            store: Shared by all.
            section: The store's settings.
        """
        self.store = store
        self.section = {"save_interval_s": 1_000.0, **section}
        self.reasons: list[str] = []
        self.outranked: list[int] = []
        self.services: list[SchedulerService] = []
        self.replicas: list[PullingReplica] = []
        self.hands = Hands()
        self.told = [Taken()]
        """What each service exported."""

    @property
    def config(self) -> AppConfig:
        """The application's arguments."""
        return parse_app_config(
            {
                "model": {"name": "m", "path": "none"},
                "scheduler": {"recovery_s": 0.01, "abandoned_s": 1_000.0},
                "store": self.section,
            }
        )

    async def start(self) -> SchedulerService:
        """Return another service, in office."""
        service = SchedulerService(
            self.config,
            self.store,
            self.reasons.append,
            clock=SteadyClock(self.hands),
            begin_again=self.outranked.append,
            backend=self.told[-1],
        )
        self.told.append(Taken())
        self.services.append(service)
        await service.start()
        return service

    async def serving(self) -> SchedulerService:
        """Return another service, in office, with a replica that waits for work."""
        service = await self.start()
        self.replicas.append(PullingReplica(service, service._epoch))
        await waits_for_work(service)
        return service

    async def close(self) -> None:
        """Stop all of them."""
        for replica in self.replicas:
            await replica.stop()
        for service in self.services:
            await service.stop()


class PullingReplica:
    """Replica `r` with room for 100 tokens, which pulls all the time and finishes nothing."""

    def __init__(self, service: SchedulerService, epoch: int) -> None:
        """Begin to pull; `epoch` is the one that it knows."""
        self._service = service
        self._epoch = epoch
        self._goes_on = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Pull no more."""
        self._goes_on = False  # Python 3.11's `wait_for` may swallow a cancellation
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        held: dict[str, Grant] = {}
        read = 0
        for number in itertools.count(1):
            if not self._goes_on:
                return
            mail = await self._service.pull(
                pull(
                    number,
                    self._epoch,
                    ack=read,
                    wait_s=60.0,
                    free_kv_tokens=100 - 30 * len(held),
                    progress=tuple(LeaseProgress(name, 20, 1, running=True) for name in held),
                )
            )
            for place, message in mail.messages:
                read = place
                if isinstance(message, Grant):
                    held[message.lease_id] = message
                else:
                    held.pop(message.lease_id, None)


def exporter_of(service: SchedulerService) -> Exporter:
    """Return what exports its metrics."""
    exporter = service._office._exporter
    assert exporter is not None
    return exporter


async def waits_for_work(service: SchedulerService) -> None:
    """Return once replica `r` has a pull outstanding."""
    await eventually(lambda: service._driver.mail.of_replica("r")._bell is not None, "it pulls")


def pull(number: int, epoch: int = 1, **fields: Any) -> Pull:
    """Return a pull of replica `r` with room for 100 tokens."""
    defaults: dict[str, Any] = {
        "ack": 0,
        "capacity": ReplicaCapacity(100),
        "free_kv_tokens": 100,
        "progress": (),
        "finished": (),
        "preemptions": 0,
        "wait_s": 0.0,
    }
    return Pull("r", epoch, number, **(defaults | fields))


def opened(name: str = "a") -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", 1.0, 1_000.0, "i")


def inference(request_id: str, application_id: str = "a", **fields: Any) -> InferenceSubmitted:
    """Return an inference that needs 30 of the replica's 100 tokens."""
    return InferenceSubmitted(request_id, application_id, "0", "i", 20, 10, 10, **fields)


def granted(mail: IngressMail | ReplicaMail) -> list[str]:
    """Return whose grants are in an answer."""
    return [m.request_id for _, m in mail.messages if isinstance(m, Grant)]
