"""Sends a call to the replica that its lease names, or fails at once.

Serve pickles the module of a router by value, so it imports nothing but Serve's router and this
project's errors. The target travels as `session_id`, a public handle option that the called method
never sees. `_choose_replica_for_request` is private; Serve's own capacity-queue router overrides
the same hook. With the public `choose_replicas` alone, concurrent calls of one parent hang and an
unknown target is retried for ever.
"""

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import RequestRouter

from justitia_ray.errors import ReplicaGone


class LeaseRouter(RequestRouter):
    """Looks up the leased replica among those that take calls; other calls go anywhere."""

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
        """Return the leased replica.

        Raises:
            ReplicaGone: If it takes no calls any more, or has rejected this one.
        """
        target = pending_request.metadata.session_id
        if not target:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if not is_retry:
            for replica_id, replica in self.curr_replicas.items():
                if replica_id.unique_id == target:
                    return replica
        raise ReplicaGone("", target)
