"""CPU time of the processes of a local Ray cluster, by application and role, from /proc (Linux)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.units import Seconds

SHARED = ""
"""The application of what serves all applications: proxy, controller, raylet, GCS."""

Role = tuple[str, str]
"""Application and role, e.g. `("direct", "ingress")`."""

_REPLICA_TITLE = "ray::ServeReplica:"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A line of /proc."""

    pid: int
    parent: int
    title: str
    cpu_s: Seconds


def processes(proc: Path = Path("/proc")) -> list[Process]:
    """Return all processes that can be read; one that ends meanwhile is left out."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()  # proc(5), from the third field on
        ticks = int(fields[11]) + int(fields[12])
        found.append(Process(int(entry.name), int(fields[1]), title, ticks / _TICKS_PER_S))
    return found


def cpu_by_role(
    root: int,
    schedulers: Mapping[int, str],
    read: Callable[[], list[Process]] = processes,
) -> dict[Role, Seconds]:
    """Return the CPU time so far of a Ray cluster's processes.

    Args:
        root: Process whose descendants they are, itself left out.
        schedulers: Application of each scheduler actor, by pid: their titles do not tell.
        read: Reads the process table.
    """
    table = {process.pid: process for process in read()}
    roles: dict[int, Role | None] = {root: None}

    def role_of(pid: int) -> Role | None:
        if pid not in roles:
            process = table.get(pid)
            if process is None:
                roles[pid] = None
            else:
                above = role_of(process.parent)
                inside = above is not None or process.parent == root
                roles[pid] = _role(process, above, schedulers) if inside else None
        return roles[pid]

    totals: dict[Role, Seconds] = {}
    for process in table.values():
        role = role_of(process.pid)
        if role is not None:
            totals[role] = totals.get(role, 0.0) + process.cpu_s
    return totals


def _role(process: Process, above: Role | None, schedulers: Mapping[int, str]) -> Role:
    if process.pid in schedulers:
        return schedulers[process.pid], "scheduler"
    if process.title.startswith(_REPLICA_TITLE):
        application, deployment = process.title.removeprefix(_REPLICA_TITLE).split(":")[:2]
        return application, deployment.split(".")[0].strip().lower()
    if process.title.startswith("ray::ProxyActor"):
        return SHARED, "proxy"
    if above is not None and above[0] != SHARED:
        return (above[0], "engine") if above[1] in ("replica", "engine") else above
    return SHARED, "ray"
