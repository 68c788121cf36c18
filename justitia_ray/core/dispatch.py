"""Grants leases: selects the waiting inferences that start now.

`placement` selects the replica of each inference, and decides which inferences may overtake there.

An inference *avoids* the replicas that its ingress could not reach: it neither starts nor waits
there, and other inferences start there, those of its application first. Every two seconds the
inference may use the avoided replicas again if no other replica could hold it.

Inferences suspected of killing an engine avoid replicas, too (`suspects`).
"""

import heapq
from collections.abc import Iterable

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.admission import Admission
from justitia_ray.core.entities import Application, Inference, KnownReplica, Lease, move
from justitia_ray.core.holder_waits import HolderWaits
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.locality import cache_left_context, use_continued_context
from justitia_ray.core.placement import Line, Placement
from justitia_ray.core.prefill import place_prefill
from justitia_ray.core.queue import Key
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import InferenceState, LeaseState
from justitia_ray.core.suspects import Suspects
from justitia_ray.core.tenants import ancestors
from justitia_ray.units import ApplicationId, ClientId, LeaseId, ReplicaId, RequestId, Tokens

_MAXIMUM_UNSCHEDULED = 16
"""Maximum number of applications without a suitable replica that one dispatch passes over; it ends
at the next one.
"""


class _GrantCandidates:
    """Applications to which one dispatch may grant leases, in order.

    The order is the queue's until an application, a tier or a tenant node is left out; the
    remaining applications then follow by their keys.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tiers: dict[str, None] = {}
        """Service tiers whose applications this dispatch does not start."""
        self._nodes: dict[ClientId, None] = {}
        """Tenant nodes below which this dispatch starts no application."""
        self._others: list[tuple[tuple[Key, Key], ApplicationId, Application]] = []
        """Applications that may start, by position in the order. Filled when a tier or a tenant is
        excluded for the first time.
        """
        self.leaves_out = False
        """Whether any waiting application is excluded from this dispatch."""
        self.is_kept_to_some = False
        """Whether only some applications may start, because the first in order waits for cached
        contexts.
        """

    def next(self) -> Application | None:
        if not self.leaves_out:
            return self._ledger.queue.claim_first()
        queue = self._ledger.queue
        while self._others:
            place, name, application = self._others[0]
            if name not in queue:
                heapq.heappop(self._others)
            elif place != (now := queue.place(application)):  # it has moved in the order
                heapq.heapreplace(self._others, (now, name, application))
            else:
                return application
        return None

    def leave_out_tier(self, tier: str) -> None:
        """Exclude the applications of a service tier until the end of this dispatch.

        The other applications are then taken by their keys, without overtaking, because the
        policy's rules of overtaking cover all applications together.
        """
        self._tiers[tier] = None
        self._set_applications(self._remaining_applications())

    def leave_out_node(self, node: ClientId) -> None:
        """Exclude a tenant, with all tenants below it, until the end of this dispatch."""
        self._nodes[node] = None
        self._set_applications(self._remaining_applications())

    def restrict_to(self, applications: Iterable[Application]) -> None:
        """Exclude all applications but these until the end of this dispatch."""
        self.is_kept_to_some = True
        self._set_applications(applications)

    def skip_current(self) -> None:
        """Exclude the application that `next` returned from the rest of this dispatch."""
        if self.leaves_out:
            heapq.heappop(self._others)

    def _remaining_applications(self) -> list[Application]:
        queue = self._ledger.queue
        if not self.leaves_out:
            return queue.of_other_tiers(self._tiers)
        return [one for _, name, one in self._others if name in queue]

    def _set_applications(self, applications: Iterable[Application]) -> None:
        queue = self._ledger.queue
        queue.is_partial = self.leaves_out = True
        nodes = self._nodes
        self._others = [
            (queue.place(one), one.application_id, one)
            for one in applications
            if one.tier not in self._tiers
            and not (nodes and any(node in nodes for node in ancestors(one.tenant)))
        ]
        heapq.heapify(self._others)


class Leases:
    """Grants and releases leases in order; each inference has at most one lease."""

    def __init__(
        self, state: State, ledger: Ledger, admission: Admission, suspects: Suspects
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._suspects = suspects
        self.placement = Placement(state, admission, suspects)
        self._holder_waits = HolderWaits(state, ledger, self.placement)
        self.shares = KvShares(state.tenants, state.tiers)
        """Shares of the KV memory, by node of the tenant tree and by service tier."""
        self._blocked: tuple[Inference, int] | None = None
        """First inference in order when no replica had memory for it and no other inference could
        overtake it, with `State.headroom_changes` at that time. Losing another replica changes
        nothing, because every replica that pulled could hold the inference.
        """

    def grant_all(self) -> None:
        """Grant leases in order while the first inference fits a replica, or may be overtaken.

        A tenant node that has reached its share of the KV memory is left out until the next call,
        with everything below it; so is a tier. `Placement.find` decides which inferences may
        overtake an inference that waits for memory. Applications that may run on no replica now are
        left out, without a limit on their number.
        """
        if not self._state.asking:
            return
        if self._suspects.known:
            self._suspects.separate_suspects()
            if self._only_suspects_wait():
                return
        ledger, placement = self._ledger, self.placement
        queue, options, gate = ledger.queue, ledger.options, ledger.gate
        if not len(queue):
            return
        unscheduled: list[Application] = []
        kept_off: list[Application] = []
        line = Line(placement, options.backfill)
        candidates = _GrantCandidates(ledger)
        has_seat = placement.has_seat()
        while (
            len(unscheduled) <= _MAXIMUM_UNSCHEDULED
            and has_seat
            and (application := candidates.next()) is not None
        ):
            inference = application.waiting.first
            if self.shares.limits_tiers and self.tier_refuses(application, inference):
                candidates.leave_out_tier(application.tier)
                continue
            if inference.avoided and _application_avoids(
                application, placement.asking_replica_ids()
            ):
                kept_off.append(application)
                queue.unschedule(application)
                continue
            if self._blocked is not None and self._is_blocked(inference):
                break  # no memory was freed since this inference fitted on no replica
            if self.shares.limits_nodes and (node := self._node_over_share(application, inference)):
                if queue.hide(node, application):
                    candidates.skip_current()
                else:
                    candidates.leave_out_node(node)
                continue
            if gate is not None and not gate.admits(application, inference):
                candidates.restrict_to(gate.earlier_started_applications(application))
                continue
            if self._grant_first_possible(application, line):
                if gate is not None and not gate.has_place:
                    gate.start(application)
                has_seat = placement.has_seat()
                continue
            if inference not in line:
                line.join(inference)
                if not line.is_open():
                    if not (unscheduled or candidates.is_kept_to_some):
                        self._blocked = (inference, self._state.headroom_changes)
                    break
            unscheduled.append(application)
            queue.unschedule(application)
        queue.show_hidden()
        for application in (*unscheduled, *kept_off):
            queue.touch(application)

    def _only_suspects_wait(self) -> bool:
        """Return whether no replica that asks may run any waiting inference. O(suspects)."""
        state, queue = self._state, self._ledger.queue
        waiting = {inference.application_id for inference in self._suspects.waiting()}
        names = [name for name in waiting if name in queue]  # other inferences are suspended
        if len(queue) > len(names):
            return False
        asking = self.placement.asking_replica_ids()
        return all(_application_avoids(state.applications[name], asking) for name in names)

    def stays_blocked(self, submitted: Inference) -> bool:
        """Return whether a new inference must wait behind one that fits on no replica.

        True only if no memory has become free since the first application was tried. Whether
        another application now comes before the first is not checked: the dispatch after the next
        report does.
        """
        applications = self._state.applications
        name = None if self._blocked is None else self._blocked[0].application_id
        first = None if name is None else applications.get(name)
        if first is None or not len(first.waiting) or not self._is_blocked(first.waiting.first):
            return False
        own = applications[submitted.application_id]
        return own is first or not self._ledger.queue.may_precede(own, first)

    def _is_blocked(self, inference: Inference) -> bool:
        """Return whether this inference fitted on no replica and no memory has been freed since."""
        return self._blocked == (inference, self._state.headroom_changes)

    def _node_over_share(self, application: Application, inference: Inference) -> ClientId | None:
        """Return the tenant whose share of the KV memory forbids this inference, or None."""
        tokens = self._most_tokens(inference)
        kv_tokens = self._state.kv_tokens()
        return self.shares.refuses(application.tenant, tokens, kv_tokens, application.tier)

    def tier_refuses(self, application: Application, inference: Inference) -> bool:
        """Return whether the KV share of an application's tier forbids this inference now."""
        tokens = self._most_tokens(inference)
        return self.shares.tier_refuses(application.tier, tokens, self._state.kv_tokens())

    def _most_tokens(self, inference: Inference) -> Tokens:
        """Return the most KV tokens that an inference may add on any replica asking for leases."""
        most = inference.expected_footprint().full_tokens
        if not inference.shares:
            return most
        beside = (one.footprint_beside(inference) for one in self.placement.asking())
        return max((footprint.full_tokens for footprint in beside), default=most)

    def _grant_first_possible(self, application: Application, line: Line) -> bool:
        """Grant an application's first inference that can start; return whether one could.

        An inference that waits for the replica that holds its context is added to `line`.

        A later inference can start only on replicas that the inferences before it avoid.

        Args:
            application: The first application in order.
            line: The inferences before the application in order that wait for memory.
        """
        refused: dict[frozenset[ReplicaId], Inference] = {}
        first = application.waiting.first
        for inference in application.waiting if first.avoided else (first,):
            if inference.avoided in refused:
                continue
            before = line.with_inferences_behind(refused.values()) if refused else line
            found = self.placement.find(application, inference, before)
            if found is not None:
                replica, passed = found
                if replica.capacity.caches_prefixes and not (refused or passed):
                    holder = self._holder_waits.holder(application, inference, replica)
                    if holder is not None:
                        line.wait_for(inference, holder, replica)
                        return False
                if passed:
                    line.count_overtaking(passed)
                self._grant_lease(application, inference, replica)
                return True
            refused[inference.avoided] = inference
        return False

    def _grant_lease(
        self, application: Application, inference: Inference, replica: KnownReplica
    ) -> None:
        state, ledger = self._state, self._ledger
        state.grants += 1
        lease_id = f"{state.lease_prefix}{state.grants}"
        priority = ledger.policy.engine_priority(application, inference, state.grants)
        ledger.remove_waiting(application, inference)
        self._create_lease(inference, replica, lease_id, priority)
        if replica.prompt_budget is not None:
            replica.prompt_budget -= inference.prompt_tokens
        if application.first_dispatched_at is None:
            application.first_dispatched_at = state.now
            state.changed[application.application_id] = None
        application.last_start = (ledger.history.served, state.now)
        ledger.queue.touch(application)
        if ledger.notifies:
            ledger.dispatched(application, inference)
        state.actions.append(
            Grant(
                inference.request_id,
                inference.ingress_id,
                lease_id,
                replica.replica_id,
                priority,
                inference.kv_need_tokens(replica.capacity.block_size),
                state.now - inference.submitted_at,
            )
        )

    def adopt(self, inference: Inference, lease_id: LeaseId, replica: KnownReplica) -> None:
        """Record a lease that an earlier scheduler granted."""
        application = self._state.applications[inference.application_id]
        grants = self._state.grants
        priority = self._ledger.policy.engine_priority(application, inference, grants)
        self._create_lease(inference, replica, lease_id, priority)
        self._ledger.adopted(application, inference)

    def release(self, inference: Inference) -> Lease:
        assert inference.lease_id is not None
        self._state.headroom_changes += 1
        self._state.memory_releases += 1
        lease = self._state.leases.pop(inference.lease_id)
        replica = self._state.replicas[lease.replica_id]
        leases = replica.leases
        self.shares.release(lease.lease_id)
        if inference.prefixes:
            for heir, tokens in leases.leases_taking_over(lease.lease_id):
                self.shares.take_over_memory(heir, tokens)
        del leases[lease.lease_id]
        if lease.uncomputed_tokens or lease.context is not None:
            state = self._state
            cache_left_context(replica, inference, lease, state.now, state.context_growth)
        self._state.applications[inference.application_id].in_flight.discard(inference.request_id)
        inference.lease_id = None
        return lease

    def abort(self, lease: Lease) -> None:
        """Tell a replica to stop the sequences of a lease."""
        self._state.actions.append(Abort(lease.replica_id, lease.lease_id))

    def expire(self, lease_id: LeaseId) -> Inference | None:
        """Abort a lease because the payload of its inference never arrived.

        Return the inference, or None if the payload arrived.

        A replica that is connected and silent may have the payload: the lease is checked again
        later.
        """
        lease = self._state.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.GRANTED:
            return None
        replica, now = self._state.replicas[lease.replica_id], self._state.now
        quiet_s = min(self._state.timeouts.lease_s, self._state.timeouts.replica_s) / 2
        if replica.connected and now - replica.last_seen_at > quiet_s:
            self._state.deadlines.set(now + quiet_s, DeadlineKind.LEASE, lease_id)
            return None
        self.abort(lease)
        return self._state.inferences[lease.request_id]

    def avoid(self, inference: Inference, replica_id: ReplicaId) -> None:
        """Exclude a replica that the ingress of an inference could not reach."""
        inference.miss(inference.unreached | {replica_id})
        self._retry_connections_later(inference)

    def retry_connections(self, request_id: RequestId) -> None:
        """Allow all replicas again for an inference that no other replica could hold."""
        state = self._state
        inference = state.inferences.get(request_id)
        if inference is None:
            return
        replicas = (replica for replica in state.replicas.values() if replica.takes_leases)
        if any(self.placement.can_hold(replica, inference) for replica in replicas):
            self._retry_connections_later(inference)
        else:
            inference.miss(frozenset())

    def _retry_connections_later(self, inference: Inference) -> None:
        due = self._state.now + self._state.timeouts.reconnect_s
        self._state.deadlines.set(due, DeadlineKind.RECONNECT, inference.request_id)

    def _create_lease(
        self, inference: Inference, replica: KnownReplica, lease_id: LeaseId, priority: int
    ) -> None:
        state = self._state
        move(inference, InferenceState.LEASED)
        inference.lease_id = lease_id
        inference.attempts += 1
        lease = Lease(lease_id, inference.request_id, replica.replica_id, state.now, priority)
        if not state.leases:
            self._ledger.history.record_service_restart(state.now)
        state.leases[lease_id] = lease
        application = state.applications[inference.application_id]
        inference.found_tokens = None
        if replica.capacity.caches_prefixes:
            use_continued_context(replica, application, inference, lease)
        if application.prefill is not None:
            missing = lease.uncomputed_tokens if replica.capacity.caches_prefixes else None
            place_prefill(application.prefill, application, inference, missing)
        if inference.shares and replica.capacity.caches_prefixes:
            tokens = replica.footprint_beside(inference).full_tokens
            if inference.prefixes:
                replica.leases.join(lease_id, inference.prefixes)
            replica.leases[lease_id] = replica.footprint_alone(inference)
        else:
            footprint = replica.leases[lease_id] = inference.expected_footprint()
            tokens = footprint.full_tokens
        if replica.capacity.caches_prefixes:
            replica.contexts.shrink(replica.unleased_tokens)
        application.in_flight.add(inference.request_id)
        self.shares.hold(lease_id, application.tenant, tokens, application.tier)
        state.deadlines.set(state.now + state.timeouts.lease_s, DeadlineKind.LEASE, lease_id)
        if self._suspects.known:
            self._suspects.separate_suspects()


def _application_avoids(application: Application, replicas: set[ReplicaId]) -> bool:
    """Return whether all waiting inferences of an application exclude these replicas."""
    return all(replicas <= inference.avoided for inference in application.waiting.values())
