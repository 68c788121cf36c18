"""Orders to replicas to keep contexts in their prefix caches between two inferences.

Each lease of an application that is expected to submit again is followed by a `HoldContext` with
the time for which the working set counts the context. When the application ends, the replicas that
got a hold receive a `ReleaseContexts`. Neither message wakes the replica's pull, and both wait for
one that does: a hold travels with its lease, and a release is not urgent, because the hold expires.

A new scheduler does not know the holds of its predecessor; these expire.
"""

from collections.abc import Sequence

from justitia_ray.core import SchedulerCore
from justitia_ray.core.actions import Action, EndApplication, Grant
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts
from justitia_ray.serve.scheduler.outboxes import Outboxes
from justitia_ray.units import ApplicationId, ReplicaId


class ContextHolds:
    """Decides how long replicas keep the contexts of open applications after an inference."""

    def __init__(self) -> None:
        self._replicas: dict[ApplicationId, dict[ReplicaId, None]] = {}
        """Ids of the replicas that hold a context of each application."""

    def post(self, actions: Sequence[Action], core: SchedulerCore, outboxes: Outboxes) -> None:
        """Add the orders to hold or release contexts that follow from the core's actions."""
        for action in actions:
            if isinstance(action, Grant):
                self._hold_for(action, core, outboxes)
            elif isinstance(action, EndApplication):
                for replica_id in self._replicas.pop(action.application_id, ()):
                    if replica_id in outboxes.replicas:
                        release = ReleaseContexts(action.application_id)
                        outboxes.replicas[replica_id].put(release)

    def _hold_for(self, grant: Grant, core: SchedulerCore, outboxes: Outboxes) -> None:
        replica = core.state.replicas.get(grant.replica_id)
        outbox = outboxes.replicas.get(grant.replica_id)
        if outbox is None or replica is None or not replica.capacity.holds_contexts:
            return
        for_s = core.context_kept_s(grant.request_id, grant.replica_id)
        if for_s <= 0:
            return
        application_id = core.state.inferences[grant.request_id].application_id
        self._replicas.setdefault(application_id, {})[grant.replica_id] = None
        outbox.put(HoldContext(grant.lease_id, application_id, for_s))
