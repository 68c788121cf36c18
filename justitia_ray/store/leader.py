"""The leader as it stands in Redis: who became the leader, and who has lost the lead."""

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
    """A leading scheduler's process, as it writes itself into Redis."""

    namespace: str = ""
    """Namespace of Ray's actors."""
    actor: str = ""
    """Ray's id of the actor: the processes that an actor has one after the other share it."""
    version: str = ""
    """Version of this package."""
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    since: Seconds = field(default_factory=lambda: round(time.time(), 3))
    """When the process started to become the leader, in seconds since 1970 by its own clock."""

    def is_succeeded_by(self, record: Mapping[str, Any]) -> bool:
        """Return whether a stored leader is another process of the same actor."""
        return bool(self.actor) and record.get("actor") == self.actor

    def record(self, epoch: Epoch) -> dict[str, Any]:
        """Return the record to store, as JSON has it."""
        return {"epoch": epoch, **asdict(self)}


class StaleEpoch(StoreError):
    """Another scheduler became the leader; the one that sees this hands out nothing any more.

    Attributes:
        ours: Epoch of the scheduler that tried to save.
        theirs: Epoch in the store, greater than ours.
        leader: Record of the leader at that epoch; empty if the store has none.
        succeeded: Whether that is another process of the same actor, started in its place.
    """

    def __init__(
        self,
        ours: Epoch,
        theirs: Epoch,
        leader: Mapping[str, Any] | None = None,
        succeeded: bool = False,
    ) -> None:
        super().__init__(ours, theirs, leader, succeeded)
        self.ours = ours
        self.theirs = theirs
        self.leader = dict(leader or {})
        self.succeeded = succeeded

    def __str__(self) -> str:
        return (
            f"epoch {self.theirs} leads, {describe_leader(self.leader)};"
            f" epoch {self.ours} may no longer write"
        )


def describe_leader(record: Mapping[str, Any]) -> str:
    """Return who leads, in words; of a record that anybody may have written."""
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
