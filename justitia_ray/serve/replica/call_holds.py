"""Holds of contexts that the scheduler has ordered, kept until the calls of their leases begin."""

from collections.abc import Iterable

from justitia_ray.protocol.engine import Hold
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts, ReplicaMessage
from justitia_ray.units import ApplicationId, LeaseId

_MOST = 4096
"""Maximum number of stored orders to hold contexts, and of orders to release them, because some
leases never get a call.
"""


class CallHolds:
    """Orders to hold contexts, by lease, and applications that have ended since the last call."""

    def __init__(self) -> None:
        self._of: dict[LeaseId, HoldContext] = {}
        self._ended: dict[ApplicationId, None] = {}

    def read(self, messages: Iterable[ReplicaMessage]) -> None:
        """Store the orders about contexts among the scheduler's messages."""
        for message in messages:
            if isinstance(message, HoldContext):
                self._of[message.lease_id] = message
                if len(self._of) > _MOST:
                    del self._of[next(iter(self._of))]
            elif isinstance(message, ReleaseContexts):
                self._ended[message.application_id] = None
                if len(self._ended) > _MOST:
                    del self._ended[next(iter(self._ended))]

    def take(self, lease_id: LeaseId) -> Hold | None:
        """Return the order to hold a context and all releases for a call; None without them."""
        ordered = self._of.pop(lease_id, None)
        if ordered is None and not self._ended:
            return None
        ended = tuple(self._ended)
        self._ended.clear()
        if ordered is None:
            return Hold("", 0.0, ended)
        return Hold(ordered.application_id, ordered.for_s, ended)
