"""Record of the leading scheduler in Redis, and the error of a scheduler that lost the lead."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.units import Epoch, Seconds


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Process of the leading scheduler, as stored in Redis."""

    namespace: str = ""
    """Namespace of the scheduler's Ray actor."""
    actor: str = ""
    """Ray's actor id, which survives a restart of the actor's process."""
    version: str = ""
    """Version of this package that the scheduler runs."""
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    since: Seconds = field(default_factory=lambda: round(time.time(), 3))
    """Time at which the process started to become the leader, in seconds since 1970 on its clock.
    """

    def is_succeeded_by(self, record: Mapping[str, Any]) -> bool:
        """Return whether a stored leader is a later process of the same actor."""
        return bool(self.actor) and record.get("actor") == self.actor

    def record(self, epoch: Epoch) -> dict[str, Any]:
        """Return the record to store, as JSON-compatible values."""
        return {"epoch": epoch, **asdict(self)}


class StaleEpoch(StoreError):
    """Another scheduler has become the leader, so this one must stop granting leases.

    Attributes:
        ours: Epoch of the scheduler that tried to save.
        theirs: Epoch in the store, greater than ours.
        leader: Record of the leader with that epoch; empty if the store has none.
        has_successor: Whether the new leader is another process of the same actor, started to
            replace it.
    """

    def __init__(
        self,
        ours: Epoch,
        theirs: Epoch,
        leader: Mapping[str, Any] | None = None,
        has_successor: bool = False,
    ) -> None:
        super().__init__(ours, theirs, leader, has_successor)
        self.ours = ours
        self.theirs = theirs
        self.leader = dict(leader or {})
        self.has_successor = has_successor

    def __str__(self) -> str:
        return (
            f"epoch {self.theirs} leads, {describe_leader(self.leader)};"
            f" epoch {self.ours} may no longer write"
        )


def describe_leader(record: Mapping[str, Any]) -> str:
    """Describe the leader for messages; the record may be malformed."""
    if not record:
        return "by whom is not known"
    since = record.get("since")
    try:
        at = datetime.fromtimestamp(float(since or 0), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        at = "a time that cannot be read"
    return (
        f"held by process {record.get('process_id')} on host {record.get('host')}"
        f" (justitia_ray {record.get('version')}, Ray namespace {record.get('namespace')})"
        f" since {at}"
    )
