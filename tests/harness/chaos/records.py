"""Records of a chaos run: calls, injected faults, scheduler samples, the engines' journal.

Replicas append each event to the journal as one line in one write, so that a killed process leaves
complete lines. Times are of the machine's monotonic clock, which its processes share.
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
    ANSWERED = "answered"
    LEFT = "left"
    """The caller disconnected."""
    BROKEN = "broken"
    """The connection broke, or the service reported a failure."""
    CUT = "cut"
    """A stream that had begun ended with an error event, or broke off."""
    GIVEN_UP = "given up"
    """The caller got no answer in time, or an error that a retry cannot change."""


@dataclass(frozen=True, slots=True)
class Call:
    inference: str
    application_id: ApplicationId
    number: int
    """Number of the attempt among the calls for one inference, from 1."""
    called_at: Seconds
    ended_at: Seconds
    ending: Ending
    detail: str = ""
    """Reason why the call failed."""
    answer: Answer | None = None
    flaws: tuple[str, ...] = ()
    """Violations of the stream format in the answer."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected, with its victim and its times."""

    kind: FaultKind
    round_number: int
    injected_at: Seconds
    back_at: Seconds
    """Time at which the stopped process resumed; `injected_at` for a fault that is not undone."""
    target: str = ""
    """Name of the process that the fault hit."""
    pid: int | None = None
    """Process id of the killed or stopped process, if known."""
    epoch: Epoch = 0
    """Epoch of the scheduler at the fault."""
    done_at: Seconds | None = None
    """Time at which the fault injector itself saw the recovery; None if samples show the recovery.
    """


@dataclass(frozen=True, slots=True)
class SchedulerSample:
    """Status of the scheduler at one instant."""

    at: Seconds
    epoch: Epoch
    ready: bool
    degraded: bool
    saves: int
    leases: Mapping[ReplicaId, int]
    """Number of leases by replica."""
    waiting: int = 0
    wanted: int | None = None
    """Number of replicas that the scheduler asks for; None if it has none computed yet."""
    load_s: Seconds | None = None
    """The scheduler's estimate of a replica's loading time, in seconds."""

    @property
    def idle(self) -> bool:
        """Whether the scheduler is ready and has no waiting or running inference."""
        return self.ready and not self.waiting and not any(self.leases.values())


@dataclass(frozen=True, slots=True)
class FleetSample:
    """State of the replicas at one instant, from Serve's controller."""

    at: Seconds
    """Time of the controller's answer."""
    asked_at: Seconds
    target: int
    """Number of replicas that Serve aims at."""
    states: Mapping[ReplicaId, str]
    """Serve's state of each replica."""

    def count_in_states(self, *states: str) -> int:
        return sum(state in states for state in self.states.values())


@dataclass(frozen=True, slots=True)
class TagAcrossRestart:
    """Virtual finish time of an application before and after its scheduler was killed."""

    application_id: ApplicationId
    before: float
    after: float


@dataclass(slots=True)
class RunRecords:
    calls: list[Call] = field(default_factory=list)
    opened: list[tuple[ApplicationId, Seconds, Seconds]] = field(default_factory=list)
    """(application, time of the request to open, time of the answer) of each opening."""
    closed: dict[ApplicationId, tuple[Seconds, Seconds]] = field(default_factory=dict)
    """(time of the request to close, time of the answer) by application."""
    ended: dict[ApplicationId, int] = field(default_factory=dict)
    """Number of an application's ended inferences, read from the scheduler when the application was
    idle.
    """
    faults: list[InjectedFault] = field(default_factory=list)
    samples: list[SchedulerSample] = field(default_factory=list)
    tags: list[TagAcrossRestart] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    """Prompts that should have killed engines but got another answer than expected."""
    fleet: list[FleetSample] = field(default_factory=list)
    """Samples of the states of autoscaled replicas."""
    pids: dict[ReplicaId, int] = field(default_factory=dict)
    """Process id of each replica that was ever sampled."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Execution of a call in an engine."""

    inference: str
    call: int
    """Number of the attempt among the calls for one inference, from 1."""
    lease_id: LeaseId
    priority: int
    """Rank of the application's virtual finish time at the grant; lower goes first."""
    pid: int
    """Process id of the replica."""
    began_at: Seconds
    ended_at: Seconds | None
    """End of the run; None if its process died first."""
    complete: bool
    """Whether the engine made the whole answer."""

    @property
    def epoch(self) -> Epoch:
        """Epoch of the scheduler that granted the lease."""
        return int(self.lease_id.partition("-")[0])

    @property
    def rank(self) -> int:
        """Number of the grant among its scheduler's grants."""
        return int(self.lease_id.rpartition("-")[2])


class JournalWriter:
    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write_run_begin(self, at: Seconds, user: str, lease_id: LeaseId, priority: int) -> None:
        self._write_line(event="began", at=at, user=user, lease_id=lease_id, priority=priority)

    def write_run_end(self, at: Seconds, lease_id: LeaseId, *, complete: bool) -> None:
        self._write_line(event="ended", at=at, lease_id=lease_id, complete=complete)

    def write_loading(self, at: Seconds) -> None:
        self._write_line(event="loading", at=at)

    def write_loaded(self, at: Seconds) -> None:
        self._write_line(event="loaded", at=at)

    def _write_line(self, **fields: object) -> None:
        line = json.dumps(fields | {"pid": os.getpid()}) + "\n"
        os.write(self._descriptor, line.encode())


def read_journal(file: Path) -> list[EngineRun]:
    """Return all engine runs in the order of their begins; calls of other tests are omitted."""
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
class ReplicaLoading:
    """Begin and end of one replica's loading."""

    pid: int
    began_at: Seconds
    ended_at: Seconds | None
    """End of the loading; None while the replica loads, or if it died first."""


def read_loadings(file: Path) -> list[ReplicaLoading]:
    if not file.exists():
        return []
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        (began if record["event"] == "loading" else ended)[record["pid"]] = record["at"]
    return [ReplicaLoading(pid, at, ended.get(pid)) for pid, at in began.items()]
