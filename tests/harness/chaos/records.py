"""Records of a chaos run: callers' calls, injected faults, scheduler samples, the engines' journal.

Replicas append a line an event to the journal, in one write each, so that what is there when a
process is killed stays there. Instants are of the machine's monotonic clock, which its processes
share.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from justitia_ray.units import ApplicationId, Epoch, LeaseId, ReplicaId, Seconds
from tests.harness.answers import Answer
from tests.harness.chaos.plan import FaultKind


class Ending(StrEnum):
    """How a call ended."""

    ANSWERED = "answered"
    LEFT = "left"
    """The caller disconnected."""
    BROKEN = "broken"
    """The connection broke, or the service said that it failed."""
    CUT = "cut"
    """A stream that had begun ended with an error event, or broke off."""
    GIVEN_UP = "given up"
    """No answer in the time that a caller waits, or one that says that there never will be."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a caller for one inference."""

    inference: str
    application_id: ApplicationId
    number: int
    """Number among the calls of this inference, from 1."""
    called_at: Seconds
    ended_at: Seconds
    ending: Ending
    detail: str = ""
    """Why it broke."""
    answer: Answer | None = None
    flaws: tuple[str, ...] = ()
    """Faults of the stream that no stream may have."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Fault, as it was carried out."""

    kind: FaultKind
    round_number: int
    injected_at: Seconds
    back_at: Seconds
    """When what was stopped went on; the same as `injected_at` if nothing was to be put back."""
    target: str = ""
    """Whom the fault hit."""
    pid: int | None = None
    """The process that was killed or stopped, where the journal knows it."""
    epoch: Epoch = 0
    """Epoch of the scheduler at the fault."""
    done_at: Seconds | None = None
    """When the injector itself saw the recovery, where no note or sample shows it."""


@dataclass(frozen=True, slots=True)
class SchedulerSample:
    """Status of the scheduler at one instant."""

    at: Seconds
    epoch: Epoch
    ready: bool
    degraded: bool
    saves: int
    leases: Mapping[ReplicaId, int]
    """How many it books on each replica that it knows."""
    waiting: int = 0
    wanted: int | None = None
    """Replicas that it asks for; None: it does not know."""
    load_s: Seconds | None = None
    """Time that a replica takes to load, as it takes it to be."""

    @property
    def idle(self) -> bool:
        """Whether it knows that nothing waits or runs."""
        return self.ready and not self.waiting and not any(self.leases.values())


@dataclass(frozen=True, slots=True)
class FleetSample:
    """Word of Serve's controller on the replicas at one instant."""

    at: Seconds
    """When it answered."""
    asked_at: Seconds
    target: int
    """Replicas that Serve wants there to be."""
    states: Mapping[ReplicaId, str]
    """Serve's state of each replica that it has."""

    def count(self, *states: str) -> int:
        """Return how many replicas are in one of these states."""
        return sum(state in states for state in self.states.values())


@dataclass(frozen=True, slots=True)
class TagAcrossRestart:
    """The place of an application that had not begun, before and after a scheduler was killed."""

    application_id: ApplicationId
    before: float
    after: float


@dataclass(slots=True)
class RunRecords:
    """Records of a whole run."""

    calls: list[Call] = field(default_factory=list)
    opened: list[tuple[ApplicationId, Seconds, Seconds]] = field(default_factory=list)
    """Application, when its opening was asked for, when it was open."""
    closed: dict[ApplicationId, tuple[Seconds, Seconds]] = field(default_factory=dict)
    """When its closing was asked for, and when it was closed."""
    ended: dict[ApplicationId, int] = field(default_factory=dict)
    """Inferences that the scheduler had ended of each when nothing was left of it."""
    faults: list[InjectedFault] = field(default_factory=list)
    samples: list[SchedulerSample] = field(default_factory=list)
    tags: list[TagAcrossRestart] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    """Calls of which engines die that were answered otherwise than with that."""
    fleet: list[FleetSample] = field(default_factory=list)
    """Samples of the replicas, where these come and go."""
    pids: dict[ReplicaId, int] = field(default_factory=dict)
    """The process of each replica that was seen in these samples."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Run of one call in an engine."""

    inference: str
    call: int
    """Number of the call among its caller's, from 1."""
    lease_id: LeaseId
    priority: int
    """Rank of its application's tag at the grant; lower goes first."""
    pid: int
    """Process id of the replica."""
    began_at: Seconds
    ended_at: Seconds | None
    """None: it never did, its process died."""
    complete: bool
    """Whether the engine made the whole answer."""

    @property
    def epoch(self) -> Epoch:
        """Epoch of the scheduler that granted the lease."""
        return int(self.lease_id.partition("-")[0])

    @property
    def rank(self) -> int:
        """Number of the grant among that scheduler's."""
        return int(self.lease_id.rpartition("-")[2])


class JournalWriter:
    """Appends to the journal."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def began(self, at: Seconds, user: str, lease_id: LeaseId, priority: int) -> None:
        """Note that a run begins; `user` is the body's."""
        self._write(event="began", at=at, user=user, lease_id=lease_id, priority=priority)

    def ended(self, at: Seconds, lease_id: LeaseId, *, complete: bool) -> None:
        """Note that it has ended."""
        self._write(event="ended", at=at, lease_id=lease_id, complete=complete)

    def loading(self, at: Seconds) -> None:
        """Note that this process begins to load."""
        self._write(event="loading", at=at)

    def loaded(self, at: Seconds) -> None:
        """Note that this process has loaded."""
        self._write(event="loaded", at=at)

    def _write(self, **fields: object) -> None:
        line = json.dumps(fields | {"pid": os.getpid()}) + "\n"
        os.write(self._descriptor, line.encode())


def read_journal(file: Path) -> list[EngineRun]:
    """Return all runs in the order in which they began; calls without a known name are left out."""
    began: dict[tuple[int, str], dict[str, object]] = {}
    ended: dict[tuple[int, str], dict[str, object]] = {}
    if not file.exists():
        return []
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        key = (record["pid"], record["lease_id"])
        (began if record["event"] == "began" else ended)[key] = record
    runs = []
    for key, record in began.items():
        inference, mark, call = str(record["user"]).rpartition("#")
        if not mark:
            continue
        end = ended.get(key, {})
        runs.append(
            EngineRun(
                inference,
                int(call),
                key[1],
                int(str(record["priority"])),
                key[0],
                float(str(record["at"])),
                float(str(end["at"])) if end else None,
                bool(end.get("complete")),
            )
        )
    return sorted(runs, key=lambda run: run.began_at)


@dataclass(frozen=True, slots=True)
class Load:
    """Loading of one replica."""

    pid: int
    began_at: Seconds
    ended_at: Seconds | None
    """None: it loads, or died before it had loaded."""


def read_loads(file: Path) -> list[Load]:
    """Return all loadings in the order in which they began."""
    if not file.exists():
        return []
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        (began if record["event"] == "loading" else ended)[record["pid"]] = record["at"]
    return [Load(pid, at, ended.get(pid)) for pid, at in began.items()]
