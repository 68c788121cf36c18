"""The request router of deployments of release 0.1.0, while this release replaces them.

Serve's controller imports it by this name and sends it by value to processes of 0.1.0, whose calls
name the replica of their lease as `session_id`. This release routes no calls by it: its ingresses
have connections to replicas.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import RequestRouter

_LOOK_EVERY_S = 0.01
_LOOKS = 200
"""A replica pulls once it can serve; Serve tells routers of it later, 0.1 s after on two cores."""


class LeaseRouter(RequestRouter):
    """Looks up the leased replica among those that take calls; other calls go anywhere."""

    def initialize_state(self, **options: Any) -> None:
        """Begin, knowing no replica."""
        self._ever_known: set[str] = set()

    def update_replicas(self, replicas: list[Any]) -> None:
        """Note which replicas take calls now."""
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
        """Return the leased replica, waiting 2 s at most for one that is not known here yet."""
        from justitia_ray import errors  # of 0.1.0

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
        raise errors.ReplicaGone("", target)  # type: ignore[attr-defined]
