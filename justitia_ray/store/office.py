"""Who holds the office of scheduler, as it stands in Redis, and who has lost it."""

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
class Holder:
    """One scheduler's process, as it writes itself into Redis."""

    namespace: str = ""
    """Of Ray's actors."""
    actor: str = ""
    """Ray's id of the actor: the processes that it has one after the other share it."""
    version: str = ""
    """Of this package."""
    host: str = field(default_factory=socket.gethostname)
    process_id: int = field(default_factory=os.getpid)
    since: Seconds = field(default_factory=lambda: round(time.time(), 3))
    """When it started to take office, in seconds since 1970 by its own clock."""

    def is_succeeded_by(self, record: Mapping[str, Any]) -> bool:
        """Return whether a stored holder is another process of the same actor."""
        return bool(self.actor) and record.get("actor") == self.actor

    def record(self, epoch: Epoch) -> dict[str, Any]:
        """Return what is stored, as JSON has it."""
        return {"epoch": epoch, **asdict(self)}


class StaleEpoch(StoreError):
    """Another scheduler took office since; the one that sees this hands out nothing any more.

    Attributes:
        ours: Epoch of the scheduler that tried to save.
        theirs: Epoch in the store, greater than ours.
        holder: What the store says of who holds that epoch; empty if nothing.
        succeeded: Whether that is another process of the same actor, started in its place.
    """

    def __init__(
        self,
        ours: Epoch,
        theirs: Epoch,
        holder: Mapping[str, Any] | None = None,
        succeeded: bool = False,
    ) -> None:
        super().__init__(ours, theirs, holder, succeeded)
        self.ours = ours
        self.theirs = theirs
        self.holder = dict(holder or {})
        self.succeeded = succeeded

    def __str__(self) -> str:
        return (
            f"epoch {self.theirs} is in office, {told_of(self.holder)};"
            f" epoch {self.ours} may no longer write"
        )


def told_of(holder: Mapping[str, Any]) -> str:
    """Return who holds an office, in words; of a record that anybody may have written."""
    if not holder:
        return "by whom is not known"
    since = holder.get("since")
    try:
        at = datetime.fromtimestamp(float(since or 0), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        at = "a time that cannot be read"
    return (
        f"held by process {holder.get('process_id')} on host {holder.get('host')}"
        f" (justitia_ray {holder.get('version')}, Ray namespace {holder.get('namespace')})"
        f" since {at}"
    )
