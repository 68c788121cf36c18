"""Counts what there is of an application: processes, files, actors, leases, KV, tickets."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray

from justitia_ray.chaos.census import IDLE_WORKER, Census
from justitia_ray.errors import ReplicaGone
from justitia_ray.serve.chaos_target import ChaosTarget
from justitia_ray.serve.stores import scheduler_store
from justitia_ray.units import ApplicationId

_REPLICA_TITLE = "ray::ServeReplica:"
_ASKED_MOST = 60
"""Calls until every ingress has answered one: Serve chooses who answers."""


async def take_census(target: ChaosTarget) -> Census:
    """Return what there is now."""
    status = await target.status()
    processes, files = await asyncio.to_thread(_processes, status["pid"])
    return Census(
        processes=processes,
        files=files,
        actors=await asyncio.to_thread(_actors),
        applications=status["applications"],
        waiting=status["waiting"],
        in_flight=status["in_flight"],
        busy_kv_tokens=await _busy_kv_tokens(target),
        tickets=await _tickets(target),
        stored=await _stored(target),
    )


def _processes(scheduler: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many processes of each role are below this one, and the most files of one."""
    counted: Counter[str] = Counter()
    files: dict[str, int] = defaultdict(int)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            role = _role(process, scheduler)
            counted[role] += 1
            files[role] = max(files[role], process.num_fds())
        except psutil.Error:
            continue  # it has just ended
    return dict(counted), dict(files)


def _role(process: psutil.Process, scheduler: int) -> str:
    if process == psutil.Process():
        return "this process"
    if process.pid == scheduler:
        return "scheduler"
    title = " ".join(process.cmdline()) or process.name()
    if title.startswith(_REPLICA_TITLE):
        return title.removeprefix(_REPLICA_TITLE).split(":")[1].split(".")[0].strip().lower()
    if title.startswith("ray::IDLE"):
        return IDLE_WORKER
    if title.startswith("ray::"):
        return title.removeprefix("ray::").split(".")[0].split(":")[0]
    scripts = [Path(word).name for word in process.cmdline() if word.endswith(".py")]
    if scripts:
        return scripts[0]
    if title.startswith("VLLM::"):
        return title.split()[0]
    return str(process.name())


def _actors() -> dict[str, int]:
    counted: Counter[str] = Counter()
    for actor in ray.util.list_named_actors(all_namespaces=True):
        counted["#".join(actor["name"].split("#")[:2])] += 1
    return dict(counted)


async def _busy_kv_tokens(target: ChaosTarget) -> int:
    busy = 0
    for member in await asyncio.to_thread(target.running, "Replica"):
        handle = target.replica_handle(member.replica_id)
        try:
            stats: dict[str, Any] = await handle.record_autoscaling_stats.remote()
        except ReplicaGone:  # it has just started, and no router knows it yet: it holds nothing
            continue
        busy += int(stats["busy_kv_tokens"])
    return busy


async def _tickets(target: ChaosTarget) -> int:
    """Return what the ingresses hold for outstanding, having asked each of them."""
    handle = target.handle("Ingress")
    held: dict[int, int] = {}
    for _ in range(_ASKED_MOST):
        pid, tickets = await handle.tickets.remote()
        held[pid] = tickets
        if len(held) == target.wanted["Ingress"]:
            break
    return sum(held.values())


async def _stored(target: ChaosTarget) -> tuple[ApplicationId, ...]:
    store = scheduler_store(target.config)
    try:
        stored = (await store.load()).applications
        # What ended while GPS still owed it leaves a session without a state, until V reaches it.
        return tuple(name for name, record in stored.items() if "state" in record)
    finally:
        await store.aclose()
