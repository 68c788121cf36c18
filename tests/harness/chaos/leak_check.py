"""Leak check: processes, files, actors, leases and KV that an idle service holds.

Processes are compared by role, so that a killed process corresponds to its replacement.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray

from justitia_ray.errors import NoReplicaAnswers
from justitia_ray.serve.stores import scheduler_store
from justitia_ray.units import ApplicationId
from tests.harness.chaos.target import ChaosTarget

FILES_TOLERANCE = 24
"""Number of file descriptors that a process may gain without counting as a leak: Ray keeps
connections to earlier workers. A leak of one per call would be hundreds.
"""
IDLE_WORKERS_TOLERANCE = 4
"""Number of idle Ray workers that may be added without counting as a leak: Ray keeps as many as the
machine has cores.
"""


@dataclass(frozen=True, slots=True)
class ResourceCount:
    """Resources that an idle service holds at one instant."""

    processes: Mapping[str, int]
    """Number of processes of each role."""
    files: Mapping[str, int]
    """Largest number of file descriptors of a process, by role."""
    actors: Mapping[str, int]
    """Number of living Ray actors by class."""
    applications: int
    waiting: int
    in_flight: int
    """Number of leased inferences."""
    busy_kv_tokens: int
    """KV tokens in use, from the engines' own gauges."""
    tickets: int
    """Number of inferences that the ingresses have submitted and not seen end."""
    stored: tuple[ApplicationId, ...]
    """Applications stored in Redis."""


def leaks(before: ResourceCount, after: ResourceCount) -> list[str]:
    """Describe the resources that are held after a run and were not held before it."""
    found = []
    for name in ("applications", "waiting", "in_flight", "busy_kv_tokens", "tickets"):
        left = getattr(after, name)
        if left:
            found.append(f"{name}: {left} in place of 0")
    if after.stored:
        found.append(f"stored: {', '.join(after.stored)} in place of none")
    for what, tolerance in (("processes", 0), ("actors", 0), ("files", FILES_TOLERANCE)):
        earlier, later = getattr(before, what), getattr(after, what)
        for role in sorted(later):
            allowed = IDLE_WORKERS_TOLERANCE if role == IDLE_WORKER else tolerance
            if what == "files" and role in (IDLE_WORKER, LOG_MONITOR):
                continue
            if later[role] > earlier.get(role, 0) + allowed:
                found.append(f"{what} of {role}: {later[role]} in place of {earlier.get(role, 0)}")
    return found


LOG_MONITOR = "log_monitor.py"
"""Ray's log monitor, whose open files are not counted: it keeps the logs of dead workers open."""
IDLE_WORKER = "idle worker"
"""Role of Ray's workers that run no task."""


_REPLICA_TITLE = "ray::ServeReplica:"
_ASKED_MOST = 60
"""Number of calls after which each ingress has answered at least once; Serve chooses the ingress.
"""


async def count_resources(target: ChaosTarget) -> ResourceCount:
    """Return the resources that the service holds now."""
    status = await target.status()
    processes, files = await asyncio.to_thread(_count_processes, status["pid"])
    return ResourceCount(
        processes=processes,
        files=files,
        actors=await asyncio.to_thread(_count_actors),
        applications=status["applications"],
        waiting=status["waiting"],
        in_flight=status["in_flight"],
        busy_kv_tokens=await _used_kv_tokens(target),
        tickets=await _count_pending_inferences(target),
        stored=await _stored_applications(target),
    )


def _count_processes(scheduler: int) -> tuple[dict[str, int], dict[str, int]]:
    """Count child processes by role, and the most open files of one process of each role."""
    counted: Counter[str] = Counter()
    files: dict[str, int] = defaultdict(int)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            role = process_role(process, scheduler)
            counted[role] += 1
            files[role] = max(files[role], process.num_fds())
        except psutil.Error:
            continue  # it has just ended
    return dict(counted), dict(files)


def process_role(process: psutil.Process, scheduler: int) -> str:
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
        # Ray pads a process title that is shorter than the previous title.
        return title.removeprefix("ray::").split(".")[0].split(":")[0].strip()
    scripts = [Path(word).name for word in process.cmdline() if word.endswith(".py")]
    if scripts:
        return scripts[0]
    if title.startswith("VLLM::"):
        return title.split()[0]
    return str(process.name())


def _count_actors() -> dict[str, int]:
    counted: Counter[str] = Counter()
    for actor in ray.util.list_named_actors(all_namespaces=True):
        counted["#".join(actor["name"].split("#")[:2])] += 1
    return dict(counted)


async def _used_kv_tokens(target: ChaosTarget) -> int:
    busy = 0
    for member in await asyncio.to_thread(target.running, "Replica"):
        try:
            stats: dict[str, Any] = await target.probe(member, "record_autoscaling_stats")
        except NoReplicaAnswers:  # it has just ended
            continue
        busy += int(stats["busy_kv_tokens"])
    return busy


async def _count_pending_inferences(target: ChaosTarget) -> int:
    """Return the number of pending inferences over all ingresses."""
    handle = target.deployment_handle("Ingress")
    held: dict[int, int] = {}
    for _ in range(_ASKED_MOST):
        pid, tickets = await handle.tickets.remote()
        held[pid] = tickets
        if len(held) == target.wanted["Ingress"]:
            break
    return sum(held.values())


async def _stored_applications(target: ChaosTarget) -> tuple[ApplicationId, ...]:
    store = scheduler_store(target.config)
    try:
        stored = (await store.load()).applications
        # An ended application stays stored without `state` while its GPS service is not complete.
        return tuple(name for name, record in stored.items() if "state" in record)
    finally:
        await store.aclose()
