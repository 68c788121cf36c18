"""Scheduler services over one in-memory store, and calls of replicas and ingresses to them."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, LeaseProgress
from justitia_ray.protocol.messages import IngressMail, Pull, ReplicaMail
from justitia_ray.serve.ray_metrics import Exporter
from justitia_ray.serve.scheduler.checkpointer import Checkpoint, Checkpointer
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.store.scheduler_store import DurableState
from tests.eventually import eventually
from tests.fake_redis import FakeSchedulerStore
from tests.unit.observability.recording_backend import RecordingBackend


class HeldStore(FakeSchedulerStore):
    """Store whose saves wait while the test holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.tried = 0

    async def save(self, *arguments: Any) -> bool:
        self.tried += 1
        await self.free.wait()
        return await super().save(*arguments)


class ManualClock:
    """Monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class Services:
    """Scheduler services on one store, saved on request by default, with a manual clock."""

    def __init__(self, *, clock: Callable[[], SteadyClock] | None = None, **section: Any) -> None:
        """Use one manual clock for all services, unless `clock` returns others."""
        self.store = HeldStore()
        self.section = {"save_interval_s": 1_000.0, **section}
        self.reasons: list[str] = []
        self.outranked: list[int] = []
        self.revivals = 0
        self.services: list[SchedulerService] = []
        self.replicas: list[PullingReplica] = []
        self.hands = ManualClock()
        self._clock = clock or (lambda: SteadyClock(self.hands))
        self.told = RecordingBackend()
        """Metrics that the services exported."""

    def new_service(self, **scheduler: float | str) -> SchedulerService:
        """Return another service with these scheduler settings, which is not started."""
        config = AppConfig.parse(
            {
                "model": {"name": "m", "path": "none"},
                "scheduler": {"recovery_s": 0.02, "abandoned_s": 1_000.0, **scheduler},
                "store": self.section,
            }
        )
        term = Term(
            config,
            self.store,
            self.reasons.append,
            self._note_revival,
            self._clock(),
            self.outranked.append,
            self.told,
        )
        service = SchedulerService(term)
        self.services.append(service)
        return service

    async def start_leader(self, **scheduler: float | str) -> SchedulerService:
        """Start a service that leads, with stored settings or the defaults."""
        service = self.new_service(**scheduler)
        await service.term.begin()
        if not service.term.has_settings.is_set():
            await service.configure({})  # Send the settings, as an ingress would.
        return service

    async def start_with_replica(self) -> SchedulerService:
        service = await self.start_leader()
        self.replicas.append(PullingReplica(service, service.term.epoch))
        await wait_until_pulling(service)
        return service

    async def close(self) -> None:
        """Stop all services, and let a held store finish its saves."""
        self.store.free.set()
        for replica in self.replicas:
            await replica.stop()
        for service in self.services:
            await service.term.end()

    def _note_revival(self) -> None:
        self.revivals += 1


class PullingReplica:
    """Replica `r` with room for 100 tokens that pulls continuously and finishes nothing."""

    def __init__(self, service: SchedulerService, epoch: int) -> None:
        """Start pulling from the scheduler with this epoch."""
        self._service = service
        self._epoch = epoch
        self._goes_on = True
        self._task = asyncio.get_running_loop().create_task(self._pull_forever())

    async def stop(self) -> None:
        self._goes_on = False  # Python 3.11's `wait_for` may swallow a cancellation.
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _pull_forever(self) -> None:
        held: dict[str, Grant] = {}
        read = 0
        for number in itertools.count(1):
            if not self._goes_on:
                return
            mail = await self._service.pull(
                pull_of(
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
                elif isinstance(message, Abort):
                    held.pop(message.lease_id, None)


def exporter_of(service: SchedulerService) -> Exporter:
    exporter = service.term._exporter
    assert exporter is not None
    return exporter


async def wait_until_pulling(service: SchedulerService) -> None:
    await eventually(
        lambda: service.term.driver.outboxes.of_replica("r")._notified is not None, "it pulls"
    )


def pull_of(number: int, epoch: int = 1, **fields: Any) -> Pull:
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


def arrival_of(name: str = "a", cost: float = 1_000.0, weight: float = 1.0) -> ApplicationArrived:
    return ApplicationArrived(name, "c", "t", weight, cost, "i")


def submission_of(
    request_id: str = "q", application_id: str = "a", prompt_tokens: int = 20, **fields: Any
) -> InferenceSubmitted:
    """Return an inference that needs 10 tokens more than its prompt, by default 30."""
    return InferenceSubmitted(request_id, application_id, "0", "i", prompt_tokens, 10, 10, **fields)


def grants_in(mail: IngressMail | ReplicaMail) -> list[Grant]:
    return [message for _, message in mail.messages if isinstance(message, Grant)]


def granted_ids(mail: IngressMail | ReplicaMail) -> list[str]:
    return [grant.request_id for grant in grants_in(mail)]


class CheckpointedCore:
    """Scheduler core that is saved when the test calls `save`."""

    def __init__(self, store: DurableState, core: SchedulerCore | None = None) -> None:
        self.core = SchedulerCore() if core is None else core
        self.epoch = 1
        self.settings: dict[str, Any] = {}
        self.checkpointer = Checkpointer(
            store,
            None,
            lambda: Checkpoint(self.core, self.epoch, self.settings),
            lambda error: None,
            1_000.0,
            SteadyClock(),
        )

    async def become_leader(self) -> None:
        self.epoch, _ = await self.checkpointer.become_leader()

    async def save(self) -> bool:
        return await self.checkpointer.save_once()
