"""Memory of waiting inferences and open applications, and the event loop's longest gap; no Ray.

A scheduler's service with its Redis, and an ingress's queue client, are the real parts. Each case
runs in its own process, because Python keeps freed memory.
"""

import asyncio
import gc
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil  # type: ignore[import-untyped]

from justitia_ray.config import AppConfig
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Seconds

_BATCH = 500
_BEAT_S: Seconds = 0.005


@dataclass(frozen=True, slots=True)
class Case:
    """Numbers of applications and inferences in a measurement."""

    applications: int
    inferences: int
    """Inferences of each application; 0 leaves the applications open and idle."""

    @property
    def waiting(self) -> int:
        """Total number of waiting inferences."""
        return self.applications * self.inferences


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Memory and time that one case costs the scheduler."""

    applications: int
    waiting: int
    memory_mb: float
    """Memory of the scheduler above that of an empty scheduler, in MB."""
    bytes_each: float
    """Bytes per waiting inference, or per application if no inference waits."""
    redis_mb: float
    submission_us: float
    """Mean time per submission when submissions are sent in batches, in µs."""
    change_gap_s: float
    """Longest pause of the event loop while settings change, in seconds."""
    restart_s: float
    """Seconds until a second scheduler has loaded the stored state and become leader."""


@dataclass(frozen=True, slots=True)
class TakenAtIngress:
    """Cost of pending inferences or open applications at an ingress's queue client."""

    applications: int
    outstanding: int
    memory_mb: float
    bytes_each: float


class _LoopGaps:
    """Longest pause of the event loop, in CPU time of its thread.

    Wall-clock time would include the load of other processes on the machine.
    """

    def __init__(self) -> None:
        self.longest_s: Seconds = 0.0

    async def watch_gaps(self) -> None:
        while True:
            at = time.thread_time()
            await asyncio.sleep(_BEAT_S)
            self.longest_s = max(self.longest_s, time.thread_time() - at)


class _DirectCalls:
    """Direct calls of a queue client to a scheduler in the same process."""

    def __init__(self, service: SchedulerService) -> None:
        self._service = service

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._service, method)(*arguments)


async def measure_scheduler(case: Case, directory: Path) -> MeasuredCost:
    """Measure the scheduler's cost for the applications and inferences of a case.

    Args:
        case: How much.
        directory: Empty, for its Redis.

    Raises:
        StoreError: If Redis does not start, or does not take the state.
    """
    config = _scheduler_config(directory, case)
    redis = EmbeddedRedis(directory)
    await asyncio.to_thread(redis.start)
    store = SchedulerStore(redis.url, config.store_name)
    service = SchedulerService(Term(config, store, _raise_unexpected))
    await service.term.begin()
    await service.configure({})
    gaps = _LoopGaps()
    watching = asyncio.create_task(gaps.watch_gaps())
    try:
        before = _resident_bytes()
        at = time.perf_counter()
        await _submit_all(service, case)
        submission_s = (time.perf_counter() - at) / max(1, case.applications + case.waiting)
        await _wait_for_saves(service)
        memory = _resident_bytes() - before
        status = service.inspector.status()
        if (status.applications, status.waiting) != (case.applications, case.waiting):
            raise RuntimeError(f"the scheduler has not taken {case}: {status}")
        gaps.longest_s = 0.0
        await service.configure({"policy_options": {"backfill": 1}})
        await _wait_for_saves(service)
        change_gap_s = gaps.longest_s
        redis_mb = _resident_bytes_of_children() / 2**20
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await service.term.end()
    at = time.perf_counter()
    follower = SchedulerService(
        Term(config, SchedulerStore(redis.url, config.store_name), _raise_unexpected)
    )
    await follower.term.begin()
    restart_s = time.perf_counter() - at
    await follower.term.end()
    await asyncio.to_thread(redis.stop)
    return MeasuredCost(
        case.applications,
        case.waiting,
        memory / 2**20,
        memory / (case.waiting or case.applications),
        redis_mb,
        submission_s * 1e6,
        change_gap_s,
        restart_s,
    )


async def measure_ingress(case: Case, directory: Path) -> TakenAtIngress:
    """Measure the cost of a case at an ingress's queue client, without the scheduler's memory.

    Args:
        case: How much.
        directory: Empty, for the scheduler's Redis.
    """
    config = _scheduler_config(directory, case)
    redis = EmbeddedRedis(directory)
    await asyncio.to_thread(redis.start)
    service = SchedulerService(
        Term(config, SchedulerStore(redis.url, config.store_name), _raise_unexpected)
    )
    await service.term.begin()
    await service.configure({})
    # Submit directly first, so that the scheduler already knows the client's submissions.
    await _submit_all(service, case)
    client = QueueClient(
        _DirectCalls(service), _raise_unexpected, _never_called, max(1, case.waiting), 0.0
    )
    client.start()
    before = _resident_bytes()
    tickets = []
    for opening, items in _draw_applications(case, client.session.ingress_id):
        if not items:
            await client.open_application(opening)
        for i, item in enumerate(items):
            tickets.append(client.submit_inference(item, opening if i == 0 else None))
        if len(tickets) % _BATCH == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(2 * _BEAT_S)
    memory = _resident_bytes() - before
    await client.stop()
    await service.term.end()
    await asyncio.to_thread(redis.stop)
    return TakenAtIngress(
        case.applications,
        len(tickets),
        memory / 2**20,
        memory / (case.waiting or case.applications),
    )


def _scheduler_config(directory: Path, case: Case) -> AppConfig:
    ample = {
        "max_waiting_inferences": 2 * case.waiting + 1,
        "max_open_applications": 2 * case.applications + 1,
    }
    return AppConfig.parse(
        {
            "model": {"name": "m", "path": "none"},
            "store": {"data_dir": str(directory)},
            "scheduler": ample,
        }
    )


def _draw_applications(
    case: Case, ingress_id: str
) -> list[tuple[ApplicationArrived, list[InferenceSubmitted]]]:
    """Return applications with their inferences; ids are as long as those of real ingresses."""
    numbers = iter(range(1, 2 + case.applications + 2 * case.waiting))
    load = []
    for i in range(case.applications):
        opening = ApplicationArrived(
            f"app-{UUID(int=next(numbers)).hex}",
            f"class-{i % 9}",
            f"tenant-{i % 7}",
            1.0,
            1_000.0 + i,
            ingress_id,
            charge_kv_token_time=2_000.0 + 2 * i,
        )
        items = [
            InferenceSubmitted(
                request_id=UUID(int=next(numbers)).hex,
                application_id=opening.application_id,
                inference_id=UUID(int=next(numbers)).hex,
                ingress_id=ingress_id,
                prompt_tokens=500,
                predicted_output_tokens=100,
                max_output_tokens=256,
                stage=0,
                remaining_kv_token_time=1_000.0,
            )
            for _ in range(case.inferences)
        ]
        load.append((opening, items))
    return load


async def _submit_all(service: SchedulerService, case: Case) -> None:
    epoch = service.term.epoch
    batch: list[Submission] = []
    for opening, items in _draw_applications(case, "ingress-0123456789ab"):
        batch += [opening, *items]
        if len(batch) >= _BATCH:
            await service.submit_many("ingress-0123456789ab", epoch, 0, tuple(batch))
            batch = []
            await asyncio.sleep(0)
    await service.submit_many("ingress-0123456789ab", epoch, 0, tuple(batch))


async def _wait_for_saves(service: SchedulerService) -> None:
    """Wait for two saves, because one may have begun before the last change."""
    saves = service.inspector.status().saves
    while service.inspector.status().saves < saves + 2:  # noqa: ASYNC110
        await asyncio.sleep(_BEAT_S)


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _resident_bytes_of_children() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(int(child.memory_info().rss) for child in children)


async def _never_called() -> None: ...


def _raise_unexpected(what: Any) -> None:
    raise RuntimeError(f"nothing was to end: {what}")
