"""Sends a call to the replica that its lease names, or fails at once.

Serve pickles the module of a router by value, so it imports nothing but Serve's router and this
project's errors. The target travels as `session_id`, a public handle option that the called method
never sees. `_choose_replica_for_request` is private; Serve's own capacity-queue router overrides
the same hook. With the public `choose_replicas` alone, concurrent calls of one parent hang and an
unknown target is retried for ever.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import RequestRouter

from justitia_ray.errors import ReplicaGone

_LOOK_EVERY_S = 0.01
_LOOKS = 200
"""A replica pulls once it can serve; Serve tells routers of it later, 0.1 s after on two cores."""


class LeaseRouter(RequestRouter):
    """Looks up the leased replica among those that take calls; other calls go anywhere."""

    def initialize_state(self, **options: Any) -> None:
        """Begin, knowing no replica."""
        self._ever_known: set[str] = set()

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take in which replicas take calls now."""
        self._ever_known.update(replica.replica_id.unique_id for replica in replicas)
        super().update_replicas(replicas)

    async def choose_replicas(
        self, candidate_replicas: Sequence[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return the leased replica; all of them for a call without a lease."""
        target = pending_request.metadata.session_id if pending_request is not None else ""
        leased = [r for r in candidate_replicas if r.replica_id.unique_id == target]
        return [leased or list(candidate_replicas)]

    async def _choose_replica_for_request(
        self, pending_request: Any, *, is_retry: bool = False
    ) -> Any:
        """Return the leased replica; one that is not known here yet is waited for, 2 s at most.

        Raises:
            ReplicaGone: If it takes no calls any more, or has rejected this one.
        """
        target = pending_request.metadata.session_id
        if not target:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        for _ in range(0 if is_retry else _LOOKS):
            for replica_id, replica in self.curr_replicas.items():
                if replica_id.unique_id == target:
                    return replica
            if target in self._ever_known:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        raise ReplicaGone("", target)
