"""Memory of waiting inferences and open applications, the loop's longest gap; real parts, no Ray.

A scheduler's service with its Redis, and an ingress's client before it. Each case is to be run in
a process of its own: memory that was given back is kept by Python.
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
from justitia_ray.serve.scheduler.actor import SchedulerService
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Seconds

_BATCH = 500
_BEAT_S: Seconds = 0.005


@dataclass(frozen=True, slots=True)
class Case:
    """How much there is."""

    applications: int
    inferences: int
    """Inferences of each application; none leaves it open and idle."""

    @property
    def waiting(self) -> int:
        """Inferences that wait in all."""
        return self.applications * self.inferences


@dataclass(frozen=True, slots=True)
class Taken:
    """Cost of a case at the scheduler."""

    applications: int
    waiting: int
    memory_mb: float
    """Memory of the scheduler, above that of an empty one."""
    bytes_each: float
    """For each waiting inference; for each application where none waits."""
    redis_mb: float
    submission_us: float
    """Mean time of a submission in a batch."""
    change_gap_s: float
    """The loop's longest gap while settings change: everything is put in order anew, and saved.
    Decisions that come then are as late."""
    restart_s: float
    """Until another scheduler has read it and is in office."""


@dataclass(frozen=True, slots=True)
class TakenAtIngress:
    """Cost of outstanding inferences, or open applications, at an ingress's queue client."""

    applications: int
    outstanding: int
    memory_mb: float
    bytes_each: float


class _Gaps:
    """The longest time for which the loop worked on without turning, in CPU time of its thread.

    By the clock it would depend on who else uses the machine.
    """

    def __init__(self) -> None:
        self.longest_s: Seconds = 0.0

    async def watch(self) -> None:
        while True:
            at = time.thread_time()
            await asyncio.sleep(_BEAT_S)
            self.longest_s = max(self.longest_s, time.thread_time() - at)


class _Calls:
    """A service as a queue client calls it."""

    def __init__(self, service: SchedulerService) -> None:
        self._service = service

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of a method."""
        return await getattr(self._service, method)(*arguments)


async def measure_scheduler(case: Case, directory: Path) -> Taken:
    """Let a scheduler take a case.

    Args:
        case: How much.
        directory: Empty, for its Redis.

    Raises:
        StoreError: If Redis does not start, or does not take the state.
    """
    config = _config(directory, case)
    redis = EmbeddedRedis(directory)
    await asyncio.to_thread(redis.start)
    store = SchedulerStore(redis.url, config.store_name)
    service = SchedulerService(Term(config, store, _unexpected))
    await service.term.begin()
    await service.configure({})
    gaps = _Gaps()
    watching = asyncio.create_task(gaps.watch())
    try:
        before = _memory()
        at = time.perf_counter()
        await _submit(service, case)
        submission_s = (time.perf_counter() - at) / max(1, case.applications + case.waiting)
        await _next_saves(service)
        memory = _memory() - before
        status = await service.status()
        if (status["applications"], status["waiting"]) != (case.applications, case.waiting):
            raise RuntimeError(f"the scheduler has not taken {case}: {status}")
        gaps.longest_s = 0.0
        await service.configure({"policy_options": {"backfill": 1}})
        await _next_saves(service)
        change_gap_s = gaps.longest_s
        redis_mb = _memory_of_children() / 2**20
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await service.term.end()
    at = time.perf_counter()
    follower = SchedulerService(
        Term(config, SchedulerStore(redis.url, config.store_name), _unexpected)
    )
    await follower.term.begin()
    restart_s = time.perf_counter() - at
    await follower.term.end()
    await asyncio.to_thread(redis.stop)
    return Taken(
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
    """Let a client have a case outstanding; the memory of the scheduler before it is left out.

    Args:
        case: How much.
        directory: Empty, for the scheduler's Redis.
    """
    config = _config(directory, case)
    redis = EmbeddedRedis(directory)
    await asyncio.to_thread(redis.start)
    service = SchedulerService(
        Term(config, SchedulerStore(redis.url, config.store_name), _unexpected)
    )
    await service.term.begin()
    await service.configure({})
    await _submit(service, case)  # what the client tells it then, it knows
    client = QueueClient(_Calls(service), _unexpected, _nothing, max(1, case.waiting), 0.0)
    client.session.start()
    before = _memory()
    tickets = []
    for opening, items in _load(case, client.session.ingress_id):
        if not items:
            await client.open_application(opening)
        for i, item in enumerate(items):
            tickets.append(client.submit_inference(item, opening if i == 0 else None))
        if len(tickets) % _BATCH == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(2 * _BEAT_S)
    memory = _memory() - before
    await client.session.stop()
    await service.term.end()
    await asyncio.to_thread(redis.stop)
    return TakenAtIngress(
        case.applications,
        len(tickets),
        memory / 2**20,
        memory / (case.waiting or case.applications),
    )


def _config(directory: Path, case: Case) -> AppConfig:
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


def _load(case: Case, ingress_id: str) -> list[tuple[ApplicationArrived, list[InferenceSubmitted]]]:
    """Return each application and its inferences, with ids as long as those that ingresses make."""
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


async def _submit(service: SchedulerService, case: Case) -> None:
    epoch = (await service.status())["epoch"]
    batch: list[Submission] = []
    for opening, items in _load(case, "ingress-0123456789ab"):
        batch += [opening, *items]
        if len(batch) >= _BATCH:
            await service.submit_many("ingress-0123456789ab", epoch, 0, tuple(batch))
            batch = []
            await asyncio.sleep(0)
    await service.submit_many("ingress-0123456789ab", epoch, 0, tuple(batch))


async def _next_saves(service: SchedulerService) -> None:
    """Wait until all that has changed is saved: one save may have begun before."""
    saves = (await service.status())["saves"]
    while (await service.status())["saves"] < saves + 2:  # noqa: ASYNC110  # it tells nobody
        await asyncio.sleep(_BEAT_S)


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _memory_of_children() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(int(child.memory_info().rss) for child in children)


async def _nothing() -> None:
    """Do nothing: no other scheduler follows."""


def _unexpected(what: Any) -> None:
    raise RuntimeError(f"nothing was to end: {what}")
