"""The machine under a benchmark: its description, current speed, CPU time by role."""

import os
import platform
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from justitia_ray.units import Seconds


def machine(packages: Sequence[str] = ()) -> dict[str, str]:
    """Return date, processor, cores, Python, and the versions of the installed packages."""
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    return about


def cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


SHARED = ""
"""Application name for processes that all applications share: proxy, controller, raylet, GCS."""

Role = tuple[str, str]
"""(application, role) of a process, for example `("direct", "ingress")`."""

_REPLICA_TITLE = "ray::ServeReplica:"
_PROXY_TITLES = ("ray::ProxyActor", "ray::HAProxyManager")
"""Titles of Serve's proxy processes; HAProxy itself is a child of its manager."""
_ROLES_OF_RAY_LLM = {"openaiingress": "ingress", "fakellmserver": "replica"}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process as read from /proc."""

    pid: int
    parent: int
    title: str
    cpu_s: Seconds


def processes(proc: Path = Path("/proc")) -> list[ProcessEntry]:
    """Return all readable processes; a process that ends meanwhile is omitted."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()  # fields of `man 5 proc`, from the third on
        ticks = int(fields[11]) + int(fields[12])
        found.append(ProcessEntry(int(entry.name), int(fields[1]), title, ticks / _TICKS_PER_S))
    return found


def cpu_by_role(
    root: int,
    known: Mapping[int, Role],
    read: Callable[[], list[ProcessEntry]] = processes,
) -> dict[Role, Seconds]:
    """Return the CPU time used so far by Ray clusters and other servers, by role.

    Args:
        root: Process whose descendants they are, itself left out.
        known: Roles by pid of processes whose titles do not tell them, such as scheduler actors.
        read: Reads the process table.
    """
    table = {process.pid: process for process in read()}
    roles: dict[int, Role | None] = {root: None}

    def process_role(pid: int) -> Role | None:
        if pid not in roles:
            process = table.get(pid)
            if process is None:
                roles[pid] = None
            else:
                above = process_role(process.parent)
                inside = above is not None or process.parent == root
                roles[pid] = _role_by_title(process, above, known) if inside else None
        return roles[pid]

    totals: dict[Role, Seconds] = {}
    for process in table.values():
        role = process_role(process.pid)
        if role is not None:
            totals[role] = totals.get(role, 0.0) + process.cpu_s
    return totals


def _role_by_title(process: ProcessEntry, above: Role | None, known: Mapping[int, Role]) -> Role:
    if process.pid in known:
        return known[process.pid]
    if process.title.startswith(_REPLICA_TITLE):
        application, deployment = process.title.removeprefix(_REPLICA_TITLE).split(":")[:2]
        name = deployment.split(".")[0].strip().lower()
        return application, _ROLES_OF_RAY_LLM.get(name, name)
    if process.title.startswith(_PROXY_TITLES) or above == (SHARED, "proxy"):
        return SHARED, "proxy"
    if above is not None and above[0] != SHARED:
        return (above[0], "engine") if above[1] in ("replica", "engine") else above
    return SHARED, "ray"


INTERVAL_S: Seconds = 0.25
"""Seconds between two readings; each reading takes some milliseconds of one core."""
_NUMBERS = 6_000
"""Count of numbers to sort in the speed test; they exceed the first-level CPU cache."""
_SEED = 1


class Speedometer:
    """Background thread that measures the machine's speed while its `with` block runs.

    Args:
        clock: Tells the instants of readings, in seconds.
        interval_s: Between two of them.
    """

    def __init__(
        self, clock: Callable[[], Seconds] = time.monotonic, interval_s: Seconds = INTERVAL_S
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._numbers = random.Random(_SEED).sample(range(10 * _NUMBERS), _NUMBERS)
        self._readings: list[tuple[Seconds, Seconds]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._read_repeatedly, name="speedometer", daemon=True
        )

    def __enter__(self) -> "Speedometer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def readings(self) -> tuple[tuple[Seconds, Seconds], ...]:
        """Readings so far: time, and CPU time of the fixed task (both in seconds)."""
        return tuple(self._readings)

    def _read_repeatedly(self) -> None:
        while True:
            began_s = time.thread_time()
            sorted(self._numbers)
            self._readings.append((self._clock(), time.thread_time() - began_s))
            if self._stop.wait(self._interval_s):
                return
