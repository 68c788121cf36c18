"""Granting: selects replicas for inferences, decides which may overtake, and keeps the leases.

Replicas are matched by memory, then by locality (`locality`: where computing the prompt delays
least, given the contexts in prefix caches), then by free KV. Locality decides only between replicas
that have the memory: no inference waits for a certain replica, and none is overtaken because of
one. Inferences that an application submits at once, before any of them is finished, spread over the
replicas.

An inference *avoids* the replicas that its ingress could not reach: it is neither leased to them
nor in line for them, and others start there, those of its application first. Every two seconds the
inference may use the avoided replicas again if no other replica could hold it.

Inferences suspected of killing an engine avoid replicas, too (`suspects`).

An inference that waits for memory is *in line* for every replica that could hold it if the replica
were empty. A later inference may start on a replica for which no inference is in line (the replica
is too small for all that wait), for it uses no memory that they could use. On a replica with
inferences in line only `backfill` allows a later one to overtake.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.admission import Admission
from justitia_ray.core.entities import (
    Application,
    Inference,
    KnownReplica,
    Lease,
    Refusals,
    move,
)
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.locality import leave_context, rank, take_context
from justitia_ray.core.queue import Key
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import InferenceState, LeaseState
from justitia_ray.core.suspects import Suspects
from justitia_ray.units import ApplicationId, ClientId, LeaseId, ReplicaId, RequestId, Tokens

_MAXIMUM_UNSCHEDULED = 16
"""Maximum blocked applications scanned past in one dispatch."""


class Placement:
    """Selects a replica with enough memory for an inference."""

    def __init__(self, state: State, admission: Admission, suspects: Suspects) -> None:
        self._state = state
        self._suspects = suspects
        self.admission = admission

    def fits(
        self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens | None = None
    ) -> bool:
        """Return whether a replica has the memory and the seats for an inference to start now.

        Args:
            replica: The replica.
            inference: The inference.
            kv_tokens: KV that leases may use; None: as the replica last reported.
        """
        if kv_tokens is None:
            kv_tokens = replica.leasable_tokens
        return self._has_memory(replica, inference, kv_tokens) and self.can_hold(replica, inference)

    def fits_anywhere(self, inference: Inference) -> bool:
        """Return whether any replica that pulls for work has the memory and the seats now."""
        return any(self.fits(replica, inference) for replica in self.asking())

    def has_seat(self) -> bool:
        """Return whether any replica that pulls for work has a free seat; an empty one has."""
        for replica in self._state.asking.values():
            leases = replica.leases
            if replica.takes_leases and (
                not leases or leases.sequences < replica.capacity.max_num_seqs
            ):
                return True
        return False

    def can_hold(self, replica: KnownReplica, inference: Inference) -> bool:
        """Return whether an inference could run to its end on this replica if it ran there alone.

        An inference too large for every replica is given the largest: otherwise it would wait for
        ever, and block all inferences behind it. False for a replica that the inference avoids.
        """
        if replica.replica_id in inference.avoided:
            return False
        capacity = replica.capacity
        if (
            inference.kv_need_tokens(capacity.block_size) <= capacity.kv_tokens
            and inference.choices <= capacity.max_num_seqs
        ):
            return True
        others = (r for r in self._state.replicas.values() if not r.draining)
        return not any(_size(other) > _size(replica) for other in others)

    def find(
        self,
        application: Application,
        inference: Inference,
        share_cap: float,
        line: "Line",
    ) -> tuple[KnownReplica, Sequence[Inference]] | None:
        """Return an inference's replica and the inferences overtaken there; None: it must wait.

        On a replica with others in line it may start if the predictions say that this does not
        delay the first of them, and none of them has been overtaken as often as `backfill` allows.

        Args:
            application: The application of the inference.
            inference: A waiting inference.
            share_cap: Share of a replica's KV that the application may hold; 1 is no limit.
            line: The inferences before it in order that wait for memory.
        """
        asked = (inference.request_id, inference.prompt_tokens)
        may_fit = [
            replica
            for replica in self._state.asking.values()
            if replica.takes_leases and not self._refuses(replica, asked)
        ]
        holder = None if len(line) else self._holder_between_pulls(application)
        if holder is not None:
            may_fit.append(holder)
        ranked: Sequence[KnownReplica] = may_fit
        if len(may_fit) > 1:
            ranked = rank(may_fit, application, inference)
            if self._suspects.known:
                ranked = self._suspects.ranked(ranked, inference)
        for replica in ranked:
            passed = line.at(replica)
            if not line.lets_pass(replica) or (
                replica.prompt_budget is not None
                and inference.prompt_tokens > replica.prompt_budget
            ):
                continue
            if not self._has_memory(replica, inference, replica.leasable_tokens):
                if len(line):  # with an empty line this refusal would hardly be looked up again
                    self._refuse(replica, asked)
            elif (
                self.can_hold(replica, inference)
                and _is_within_share(replica, inference, share_cap)
                and not (passed and self._delays(replica, passed[0], inference))
            ):
                return replica, passed
        return None

    def _holder_between_pulls(self, application: Application) -> KnownReplica | None:
        """Return the replica that holds the application's context, if it is about to pull.

        Otherwise the turn would lose its context by starting on another replica some milliseconds
        earlier. If the replica dies before it pulls, the grant is lost like any grant to a lost
        replica.
        """
        if application.in_flight or not application.replicas:
            return None
        replica = self._state.replicas.get(next(reversed(application.replicas)))
        if replica is None or not (replica.connected and replica.takes_leases):
            return None
        return replica if self._state.now < replica.pulls_again_by else None

    def is_capped(self, inference: Inference, share_cap: float) -> bool:
        """Return whether only the cap keeps an inference from every replica."""
        if share_cap >= 1:
            return False
        fitting = [replica for replica in self.asking() if self.fits(replica, inference)]
        return bool(fitting) and not any(
            _is_within_share(replica, inference, share_cap) for replica in fitting
        )

    def _delays(self, replica: KnownReplica, first: Inference, later: Inference) -> bool:
        """Return whether `first` would start later on this replica if `later` started now.

        Based on the predicted lengths, at one token per iteration and sequence, if nothing else is
        admitted.
        """
        block, kv_tokens = replica.capacity.block_size, replica.leasable_tokens
        alone = replica.leases.forecast(block)
        wanted, extension = replica.footprint_beside(later), replica.extension_by(later)
        both = replica.leases.forecast_with(wanted, block, extension)
        start = self.admission.start
        return start(replica, first, both, kv_tokens) > start(replica, first, alone, kv_tokens)

    def _has_memory(self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens) -> bool:
        """Return whether a replica has `kv_tokens` enough for an inference besides its leases."""
        return not replica.leases or self.admission.fits(replica, inference, kv_tokens)

    def _refuses(self, replica: KnownReplica, asked: tuple[RequestId, Tokens]) -> bool:
        """Return whether a replica, unchanged since, was found to lack memory for an inference."""
        state, refused = replica.refusals
        return asked in refused and state == self._state_of(replica)

    def _refuse(self, replica: KnownReplica, asked: tuple[RequestId, Tokens]) -> None:
        """Record that a replica has no memory for an inference until the replica changes."""
        state = self._state_of(replica)
        if replica.refusals.state != state:
            replica.refusals = Refusals(state, set())
        replica.refusals.inferences.add(asked)

    def _state_of(self, replica: KnownReplica) -> tuple[object, ...]:
        """Return the key of a replica's refusals: lease version, free KV, capacity, rule."""
        leases, capacity = replica.leases, replica.capacity
        return leases.changes, replica.leasable_tokens, capacity, self.admission

    def asking_ids(self) -> set[ReplicaId]:
        """Return the ids of the replicas that pull for work and may be given leases."""
        return {replica.replica_id for replica in self.asking()}

    def asking(self) -> list[KnownReplica]:
        """Return the replicas that pull for work and may be given leases."""
        return [r for r in self._state.asking.values() if r.takes_leases]


class Line:
    """The inferences that wait for memory, in order, at each replica that could hold them.

    Each inference is checked once against each replica, when it joins, however often the line is
    read.
    """

    def __init__(self, placement: Placement, backfill: int | None) -> None:
        self._placement = placement
        self._backfill = backfill
        self._inferences: list[Inference] = []
        self._at: dict[ReplicaId, list[Inference]] = {}
        self._most_passes: dict[ReplicaId, int] = {}
        """Highest number of times that any inference in line for a replica has been overtaken."""

    def __len__(self) -> int:
        return len(self._inferences)

    def join(self, inference: Inference) -> None:
        """Add an inference at the end. O(replicas)."""
        self._inferences.append(inference)
        for replica in self._placement.asking():
            if self._placement.can_hold(replica, inference):
                name = replica.replica_id
                self._at.setdefault(name, []).append(inference)
                self._most_passes[name] = max(inference.passes, self._most_passes.get(name, 0))

    def followed_by(self, inferences: Collection[Inference]) -> "Line":
        """Return a line with more inferences behind these; the same line if there are none."""
        if not inferences:
            return self
        longer = Line(self._placement, self._backfill)
        for inference in (*self._inferences, *inferences):
            longer.join(inference)
        return longer

    def at(self, replica: KnownReplica) -> Sequence[Inference]:
        """Return the inferences that are in line for a replica."""
        return self._at.get(replica.replica_id, ())

    def lets_pass(self, replica: KnownReplica) -> bool:
        """Return whether every inference in line for a replica may be overtaken once more."""
        return (
            self._backfill is None or self._most_passes.get(replica.replica_id, -1) < self._backfill
        )

    def pass_by(self, inferences: Iterable[Inference]) -> None:
        """Count one more overtaking for each of these inferences. O(line)."""
        for inference in inferences:
            inference.passes += 1
        for name, at in self._at.items():
            self._most_passes[name] = max(inference.passes for inference in at)

    def is_open(self) -> bool:
        """Return whether any replica may be given to an inference behind this line."""
        return any(map(self.lets_pass, self._placement.asking()))


class _Candidates:
    """Applications in order, to be granted, without those of tiers at their share."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left_out: dict[str, None] = {}
        self._others: list[tuple[tuple[Key, Key], ApplicationId, Application]] = []
        """Applications of other tiers, by place; filled when the first tier is left out."""

    def next(self) -> Application | None:
        """Return the first application that may be granted, or None."""
        if not self._left_out:
            return self._ledger.queue.claim_first()
        queue = self._ledger.queue
        while self._others:
            place, name, application = self._others[0]
            if name not in queue:
                heapq.heappop(self._others)
            elif place != (now := queue.place(application)):  # a grant has moved it
                heapq.heapreplace(self._others, (now, name, application))
            else:
                return application
        return None

    def leave_out(self, tier: str) -> None:
        """Exclude a tier until the end of this dispatch.

        Applications of the other tiers are then taken by their keys, without overtaking, because
        the policy's rules of overtaking cover all tiers together.
        """
        self._left_out[tier] = None
        queue = self._ledger.queue
        self._others = [
            (queue.place(one), one.application_id, one)
            for one in queue.of_other_tiers(self._left_out)
        ]
        heapq.heapify(self._others)

    def hide_first(self) -> None:
        """Exclude the application that `next` returned; its node is hidden from the queue."""
        if self._left_out:
            heapq.heappop(self._others)


class Leases:
    """Grants leases in order, and releases them; each inference has at most one."""

    def __init__(
        self, state: State, ledger: Ledger, admission: Admission, suspects: Suspects
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._suspects = suspects
        self.placement = Placement(state, admission, suspects)
        self.shares = KvShares(state.tenants, state.tiers)
        """Shares of the KV memory by node of the tree of tenants, and by tier."""
        self._blocked: tuple[Inference, int] | None = None
        """First inference in order that fitted nowhere and that no other may overtake, with the
        value of `State.headroom_changes` at that time. Every replica that pulled could hold it, so
        the loss of another replica changes nothing for it.
        """

    def grant_all(self) -> None:
        """Grant leases in order while the first inference fits, or others may overtake it.

        All others may overtake an inference at its application's share of the KV. A node of the
        tree of tenants at its share, with everything below it, is left out until the next call; so
        is a tier. `Placement.find` decides which inferences may overtake one that waits for memory.
        An application that may run on no replica now is left out, without a limit on their number.
        """
        if not self._state.asking:
            return
        if self._suspects.known:
            self._suspects.keep_apart()
            if self._only_suspects_wait():
                return
        ledger, placement = self._ledger, self.placement
        queue, options, gate = ledger.queue, ledger.options, ledger.gate
        unscheduled: list[Application] = []
        held_back: list[Application] = []
        kept_off: list[Application] = []
        line = Line(placement, options.backfill)
        candidates = _Candidates(ledger)
        has_seat = placement.has_seat()
        while (
            len(unscheduled) + len(held_back) <= _MAXIMUM_UNSCHEDULED
            and has_seat
            and (application := candidates.next()) is not None
        ):
            inference = application.waiting.first
            if self.shares.limits_tiers and self.tier_refuses(application, inference):
                candidates.leave_out(application.tier)
                continue
            if inference.avoided and _avoids(application, placement.asking_ids()):
                kept_off.append(application)
                queue.unschedule(application)
                continue
            if self._is_blocked(inference):
                break  # another search of the replicas would fail again
            if self.shares.limits_nodes and (node := self._over_share(application, inference)):
                if queue.hide(node, application):
                    candidates.hide_first()
                else:
                    held_back.append(application)
                    queue.unschedule(application)
                continue
            if gate is not None and not gate.admits(application, inference):
                break
            others_wait = len(queue) + len(unscheduled) + len(kept_off) > 1
            cap = options.kv_share_cap if others_wait else 1.0
            if self._grant_one(application, cap, line):
                has_seat = placement.has_seat()
                continue
            if not placement.is_capped(inference, cap):
                line.join(inference)
                if not line.is_open():
                    if not unscheduled:
                        self._blocked = (inference, self._state.headroom_changes)
                    break
            unscheduled.append(application)
            queue.unschedule(application)
        queue.show_hidden()
        for application in (*unscheduled, *held_back, *kept_off):
            queue.touch(application)
        if len(unscheduled) > len(line) and len(queue) == 1:
            self.grant_all()  # all others have started, so the cap does not apply

    def _only_suspects_wait(self) -> bool:
        """Return whether every waiting inference avoids every replica that pulls. O(suspects)."""
        state, queue = self._state, self._ledger.queue
        waiting = {inference.application_id for inference in self._suspects.waiting()}
        names = [name for name in waiting if name in queue]  # the other applications are suspended
        if len(queue) > len(names):
            return False
        asking = self.placement.asking_ids()
        return all(_avoids(state.applications[name], asking) for name in names)

    def stays_blocked(self, submitted: Inference) -> bool:
        """Return whether a new submission stays behind the first in order, which fitted nowhere.

        True only if no memory has become free since. Whether another application now comes before
        the first is not checked: the dispatch after the next report does.
        """
        applications = self._state.applications
        name = None if self._blocked is None else self._blocked[0].application_id
        first = None if name is None else applications.get(name)
        if first is None or not len(first.waiting) or not self._is_blocked(first.waiting.first):
            return False
        own = applications[submitted.application_id]
        return own is first or not self._ledger.queue.may_precede(own, first)

    def _is_blocked(self, inference: Inference) -> bool:
        """Return whether this inference was first and fitted nowhere, with nothing freed since."""
        return self._blocked == (inference, self._state.headroom_changes)

    def _over_share(self, application: Application, inference: Inference) -> ClientId | None:
        """Return the node of the tree of tenants whose share forbids this inference, or None."""
        tokens = self._most_tokens(inference)
        kv_tokens = self._state.kv_tokens()
        return self.shares.refuses(application.tenant, tokens, kv_tokens, application.tier)

    def tier_refuses(self, application: Application, inference: Inference) -> bool:
        """Return whether the share of an application's tier forbids this inference now."""
        tokens = self._most_tokens(inference)
        return self.shares.tier_refuses(application.tier, tokens, self._state.kv_tokens())

    def _most_tokens(self, inference: Inference) -> Tokens:
        """Return the most KV that an inference may add, over the replicas that pull."""
        most = inference.expected_footprint().full_tokens
        if not inference.shares:
            return most
        beside = (one.footprint_beside(inference) for one in self.placement.asking())
        return max((footprint.full_tokens for footprint in beside), default=most)

    def _grant_one(self, application: Application, cap: float, line: Line) -> bool:
        """Grant the first of an application's inferences that can start; return whether one can.

        A later inference can start only where those before it avoid the replica.

        Args:
            application: The first in order.
            cap: Share of a replica's KV that it may hold.
            line: The inferences before it in order that wait for memory.
        """
        refused: dict[frozenset[ReplicaId], Inference] = {}
        first = application.waiting.first
        for inference in application.waiting if first.avoided else (first,):
            if inference.avoided in refused:
                continue
            before = line.followed_by(refused.values())
            found = self.placement.find(application, inference, cap, before)
            if found is not None:
                replica, passed = found
                line.pass_by(passed)
                self._grant(application, inference, replica)
                return True
            refused[inference.avoided] = inference
        return False

    def _grant(self, application: Application, inference: Inference, replica: KnownReplica) -> None:
        state, ledger = self._state, self._ledger
        state.grants += 1
        lease_id = f"{state.lease_prefix}{state.grants}"
        priority = ledger.policy.engine_priority(application, inference, state.grants)
        ledger.remove_waiting(application, inference)
        self._bind(inference, replica, lease_id, priority)
        if replica.prompt_budget is not None:
            replica.prompt_budget -= inference.prompt_tokens
        if application.first_dispatched_at is None:
            application.first_dispatched_at = state.now
            state.changed[application.application_id] = None
        application.last_start = (ledger.history.served, state.now)
        ledger.queue.touch(application)
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
        """Adopt a lease that an earlier scheduler granted."""
        application = self._state.applications[inference.application_id]
        grants = self._state.grants
        priority = self._ledger.policy.engine_priority(application, inference, grants)
        self._bind(inference, replica, lease_id, priority)
        self._ledger.adopted(application, inference)

    def release(self, inference: Inference) -> Lease:
        """Remove the lease of an inference, and return it."""
        assert inference.lease_id is not None
        self._state.headroom_changes += 1
        self._state.memory_releases += 1
        lease = self._state.leases.pop(inference.lease_id)
        replica = self._state.replicas[lease.replica_id]
        leases = replica.leases
        self.shares.release(lease.lease_id)
        if inference.prefixes:
            for heir, tokens in leases.heirs(lease.lease_id):
                self.shares.hold_more(heir, tokens)
        leases.pop(lease.lease_id)
        if lease.uncomputed_tokens or lease.context is not None:
            leave_context(replica, inference, lease, self._state.now)
        self._state.applications[inference.application_id].in_flight.discard(inference.request_id)
        inference.lease_id = None
        return lease

    def abort(self, lease: Lease) -> None:
        """Send the replica the command to stop the sequences of a lease."""
        self._state.actions.append(Abort(lease.replica_id, lease.lease_id))

    def expire(self, lease_id: LeaseId) -> Inference | None:
        """Abort a lease whose payload never arrived; return its inference, or None if it arrived.

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
        """Allow an inference to use all replicas again, unless another replica could hold it."""
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

    def _bind(
        self, inference: Inference, replica: KnownReplica, lease_id: LeaseId, priority: int
    ) -> None:
        """Create the lease of a waiting inference on a replica."""
        state = self._state
        move(inference, InferenceState.LEASED)
        inference.lease_id = lease_id
        inference.attempts += 1
        lease = Lease(lease_id, inference.request_id, replica.replica_id, state.now, priority)
        if not state.leases:
            self._ledger.history.rise_from(state.now)
        state.leases[lease_id] = lease
        application = state.applications[inference.application_id]
        inference.found_tokens = None
        if replica.capacity.caches_prefixes:
            take_context(replica, application, inference, lease)
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
            self._suspects.keep_apart()


def _avoids(application: Application, replicas: set[ReplicaId]) -> bool:
    """Return whether every waiting inference of an application avoids all of some replicas."""
    return all(replicas <= inference.avoided for inference in application.waiting.values())


def _size(replica: KnownReplica) -> tuple[Tokens, int]:
    return (replica.capacity.kv_tokens, replica.capacity.max_num_seqs)


def _is_within_share(replica: KnownReplica, inference: Inference, share_cap: float) -> bool:
    """Return whether the application stays within its share of a replica with this inference.

    Prompts and expected outputs count. An application without leases on the replica may always have
    one inference there.
    """
    if share_cap >= 1:
        return True
    held = replica.leases.held_by(inference.application_id)
    wanted = replica.footprint_beside(inference).full_tokens
    return held == 0 or held + wanted <= share_cap * replica.capacity.kv_tokens
