"""A new scheduler in office: what is known of leases that it did not grant.

After a restart the ingresses submit again what they have outstanding, with the leases they hold,
and the replicas report what they run and what they lately finished. The two arrive in any order;
this room joins them. Nothing is granted before every known replica has reported, or a few seconds
have passed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.units import LeaseId, ReplicaId, RequestId, Seconds


@dataclass(frozen=True, slots=True)
class ReportedLease:
    """A lease that a replica says it holds, or has finished."""

    replica_id: ReplicaId
    last: LeaseProgress | LeaseFinished


class Recovery:
    """Leases reported but not claimed, and claimed but not reported."""

    def __init__(self) -> None:
        self._expected: set[ReplicaId] = set()
        self._until: Seconds | None = None
        self._reported: dict[LeaseId, ReportedLease] = {}
        self._claims: dict[LeaseId, RequestId] = {}

    def hold(self, expected: Iterable[ReplicaId], until: Seconds) -> None:
        """Hold grants until these replicas have reported, but no longer than `until`."""
        self._expected = set(expected)
        self._until = until

    @property
    def holding(self) -> bool:
        """Whether grants still wait."""
        return self._until is not None

    @property
    def reported(self) -> int:
        """Leases reported and not claimed."""
        return len(self._reported)

    def heard(self, replica_id: ReplicaId) -> None:
        """A replica has reported."""
        self._expected.discard(replica_id)

    def complete(self, now: Seconds) -> bool:
        """Return whether grants may go, having waited until now."""
        return self._until is not None and (not self._expected or now >= self._until)

    def finish(self) -> list[RequestId]:
        """Let the grants go; return the claims that no replica confirmed."""
        self._until = None
        lost = list(self._claims.values())
        self._claims.clear()
        return lost

    def report(
        self, replica_id: ReplicaId, last: LeaseProgress | LeaseFinished
    ) -> RequestId | None:
        """A replica names a lease unknown here; return the request that has claimed it, if any."""
        request_id = self._claims.pop(last.lease_id, None)
        if request_id is None:
            self._reported[last.lease_id] = ReportedLease(replica_id, last)
        return request_id

    def knows(self, lease_id: LeaseId) -> bool:
        """Return whether a replica reported the lease and nobody has claimed it."""
        return lease_id in self._reported

    def claim(self, lease_id: LeaseId, request_id: RequestId) -> ReportedLease | None:
        """An ingress holds the lease; return what a replica reported of it, if one has."""
        reported = self._reported.pop(lease_id, None)
        if reported is None and self.holding:
            self._claims[lease_id] = request_id
        return reported

    def unclaim(self, request_id: RequestId) -> None:
        """The request is gone."""
        for lease_id, claimant in list(self._claims.items()):
            if claimant == request_id:
                del self._claims[lease_id]

    def waits_for(self, lease_id: LeaseId) -> bool:
        """Return whether an ingress claims the lease and no replica has reported it."""
        return lease_id in self._claims

    def forget(self, lease_id: LeaseId) -> ReportedLease | None:
        """Nobody claimed the lease in time."""
        return self._reported.pop(lease_id, None)
