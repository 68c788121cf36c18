"""A mailbox with somebody waiting at it."""

import asyncio
from typing import Any

from justitia_ray.core.events import ReplicaPulled
from justitia_ray.protocol.mailbox import Mailbox
from justitia_ray.protocol.messages import Pull
from justitia_ray.units import Seconds


class Line(Mailbox[Any]):
    """Messages to one ingress or replica, and its one waiting call: a newer releases the older."""

    def __init__(self, last: int) -> None:
        """Begin empty.

        Args:
            last: No message gets this number or a lower one. A reader that was given up and comes
                back has read so far in an earlier line, and would take lower ones for read.
        """
        super().__init__()
        self._last = last
        self.last_pull: Pull | None = None
        """The last one taken, for whoever examines the scheduler."""
        self._bell: asyncio.Event | None = None

    @property
    def last(self) -> int:
        """Number of the last message put in."""
        return self._last

    def take(self, pull: Pull) -> ReplicaPulled | None:
        """Take a replica's pull; return what it reports, None if it came too late."""
        if self.last_pull is not None and pull.number <= self.last_pull.number:
            return None
        self.last_pull = pull
        self.unread(pull.ack)
        return ReplicaPulled(
            pull.replica_id,
            pull.capacity,
            pull.free_kv_tokens,
            pull.progress,
            pull.finished,
            pull.draining,
        )

    def ring(self) -> None:
        """Let the waiting call return."""
        if self._bell is not None:
            self._bell.set()

    async def wait(self, timeout_s: Seconds) -> bool:
        """Wait for a message; return whether no newer call has taken this one's place."""
        self.ring()
        bell = self._bell = asyncio.Event()
        if not self:
            # Not `wait_for`: Python 3.11's swallows a cancellation that comes as the bell rings.
            timer = asyncio.get_running_loop().call_later(timeout_s, bell.set)
            try:
                await bell.wait()
            finally:
                timer.cancel()
        if self._bell is not bell:
            return False
        self._bell = None
        return True
