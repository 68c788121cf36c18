"""The journal of the runs: every time an engine begins and ends a call, who ran it, and why then.

Replicas append a line an event to one file, in one write each, so that what is there when a process
is killed stays there. Instants are of the machine's monotonic clock, which its processes share.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.units import Epoch, LeaseId, Seconds


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one call in an engine."""

    inference: str
    call: int
    """Which call of its caller, from 1."""
    lease_id: LeaseId
    priority: int
    """Rank of its application's tag at the grant; lower goes first."""
    pid: int
    """Of the replica."""
    began_at: Seconds
    ended_at: Seconds | None
    """None: it never did, its process died."""
    complete: bool
    """Whether the engine made the whole answer."""

    @property
    def epoch(self) -> Epoch:
        """Of the scheduler that granted it."""
        return int(self.lease_id.partition("-")[0])

    @property
    def rank(self) -> int:
        """Which of that scheduler's grants it was."""
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

    def _write(self, **fields: object) -> None:
        line = json.dumps(fields | {"pid": os.getpid()}) + "\n"
        os.write(self._descriptor, line.encode())


def read_journal(file: Path) -> list[Run]:
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
            Run(
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
