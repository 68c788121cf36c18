"""Placement: the replica on which an inference starts, and the waiting line of each replica.

Replicas are matched by memory, then by locality (`locality`: the replica where computing the prompt
delays other inferences least, given the contexts in prefix caches), then by free KV. An inference
that could start may wait for the replica that holds its context (`holder_waits`): others may then
overtake it elsewhere, if they leave the memory that it needs to start there at once. Inferences
that an application submits at once, before any of them is finished, spread over the replicas.

An inference that waits for memory is *in line* for every replica that could hold it if the replica
were empty. A later inference may start on a replica for which no inference is in line: all that
wait are too large for this replica, so the later inference takes no memory from them. On a replica
with inferences in line only `backfill` allows a later one to overtake.
"""

from collections.abc import Collection, Iterable, Sequence

from justitia_ray.core.admission import Admission
from justitia_ray.core.entities import Application, Inference, KnownReplica, Refusals
from justitia_ray.core.locality import rank
from justitia_ray.core.state import State
from justitia_ray.core.suspects import Suspects
from justitia_ray.units import ReplicaId, RequestId, Tokens


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
        """Return whether any replica that asks for leases can start an inference now."""
        return any(self.fits(replica, inference) for replica in self.asking())

    def has_seat(self) -> bool:
        """Return whether any replica that asks for leases has a free seat, or is empty."""
        for replica in self._state.asking.values():
            leases = replica.leases
            if replica.takes_leases and (
                not leases or leases.sequences < replica.capacity.max_num_seqs
            ):
                return True
        return False

    def can_hold(self, replica: KnownReplica, inference: Inference) -> bool:
        """Return whether an inference could run to its end alone on this replica.

        An inference too large for every replica may run on the largest replica: otherwise it would
        wait for ever, and block all inferences behind it. False for a replica that the inference
        avoids.
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
        return not any(_line_capacity(other) > _line_capacity(replica) for other in others)

    def find(
        self,
        application: Application,
        inference: Inference,
        line: "Line",
    ) -> tuple[KnownReplica, Sequence[Inference]] | None:
        """Return an inference's replica and the inferences overtaken there; None: it must wait.

        If other inferences are in line for a replica, it may start there if by the predictions this
        does not delay the first of them, and none of them has been overtaken as often as `backfill`
        allows.

        Args:
            application: The application of the inference.
            inference: A waiting inference.
            line: The inferences before it in order that wait for memory.
        """
        asked = (inference.request_id, inference.prompt_tokens)
        may_fit = [
            replica
            for replica in self._state.asking.values()
            if replica.takes_leases
            and not (replica.refusals.inferences and self._has_refused(replica, asked))
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
                if len(line):  # remember the refusal only if others wait
                    self._record_refusal(replica, asked)
            elif (
                self.can_hold(replica, inference)
                and (not line.kept or self._leaves_reserved_room(replica, inference, line))
                and not (passed and self._would_delay(replica, passed[0], inference))
            ):
                return replica, passed
        return None

    def _holder_between_pulls(self, application: Application) -> KnownReplica | None:
        """Return the replica with the application's context if it will soon ask for leases.

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

    def _would_delay(self, replica: KnownReplica, first: Inference, later: Inference) -> bool:
        """Return whether `first` would start later on a replica if `later` started there now.

        Based on the predicted lengths, at one token per iteration and sequence, if no other
        inference is admitted.
        """
        block, kv_tokens = replica.capacity.block_size, replica.leasable_tokens
        alone = replica.leases.forecast(block)
        wanted, extension = replica.footprint_beside(later), replica.extension_by(later)
        both = replica.leases.forecast_with(wanted, block, extension)
        start = self.admission.start
        return start(replica, first, both, kv_tokens) > start(replica, first, alone, kv_tokens)

    def _leaves_reserved_room(
        self, replica: KnownReplica, inference: Inference, line: "Line"
    ) -> bool:
        """Return whether a start leaves the memory and seats that a replica keeps for others.

        Otherwise it must not start on this replica.
        """
        kept = line.kept.get(replica.replica_id)
        if not kept:
            return True
        capacity = replica.capacity
        footprints = (replica.footprint_beside(one) for one in kept)
        tokens = sum(one.most_tokens(capacity.block_size) for one in footprints)
        seats = replica.leases.sequences + sum(one.choices for one in (*kept, inference))
        left = replica.leasable_tokens - tokens
        return seats <= capacity.max_num_seqs and self.admission.fits(replica, inference, left)

    def _has_memory(self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens) -> bool:
        """Return whether a replica has KV memory for an inference beside its leases."""
        return not replica.leases or self.admission.fits(replica, inference, kv_tokens)

    def _has_refused(self, replica: KnownReplica, asked: tuple[RequestId, Tokens]) -> bool:
        """Return whether an unchanged replica was found to lack memory for this inference."""
        state, refused = replica.refusals
        return asked in refused and state == self._refusal_key(replica)

    def _record_refusal(self, replica: KnownReplica, asked: tuple[RequestId, Tokens]) -> None:
        """Record that a replica has no memory for an inference until the replica changes."""
        state = self._refusal_key(replica)
        if replica.refusals.state != state:
            replica.refusals = Refusals(state, set())
        replica.refusals.inferences.add(asked)

    def _refusal_key(self, replica: KnownReplica) -> tuple[object, ...]:
        """Return the state of a replica on which a cached refusal depends."""
        leases, capacity = replica.leases, replica.capacity
        return leases.changes, replica.leasable_tokens, capacity, self.admission

    def asking_replica_ids(self) -> set[ReplicaId]:
        """Return the ids of the replicas that ask for work and may get leases."""
        return {replica.replica_id for replica in self.asking()}

    def asking(self) -> list[KnownReplica]:
        """Return the replicas that ask for work and may get leases."""
        return [r for r in self._state.asking.values() if r.takes_leases]


class Line:
    """Inferences that wait for memory, in order, at each replica that could run them.

    Each inference is checked once against each replica, when it joins the line.
    """

    def __init__(self, placement: Placement, backfill: int | None) -> None:
        self._placement = placement
        self._backfill = backfill
        self._inferences: list[Inference] = []
        self._at: dict[ReplicaId, list[Inference]] = {}
        self._most_passes: dict[ReplicaId, int] = {}
        """Most overtakings of any waiting inference, by replica."""
        self.kept: dict[ReplicaId, list[Inference]] = {}
        """Inferences that wait for another replica, by the replica with memory and seats reserved
        for them.
        """

    def __len__(self) -> int:
        return len(self._inferences)

    def join(self, inference: Inference) -> None:
        """Add an inference at the end of the line. O(replicas)."""
        self._inferences.append(inference)
        for replica in self._placement.asking():
            if self._placement.can_hold(replica, inference):
                name = replica.replica_id
                self._at.setdefault(name, []).append(inference)
                self._most_passes[name] = max(inference.passes, self._most_passes.get(name, 0))

    def wait_for(
        self, inference: Inference, holder: KnownReplica, alternative: KnownReplica
    ) -> None:
        """Add an inference that waits for one replica only, at the end of the line.

        Args:
            inference: The inference.
            holder: The replica for which the inference waits.
            alternative: A replica on which the inference could start now; this replica keeps memory
                for it.
        """
        self._inferences.append(inference)
        name = holder.replica_id
        self._at.setdefault(name, []).append(inference)
        self._most_passes[name] = max(inference.passes, self._most_passes.get(name, 0))
        self.kept.setdefault(alternative.replica_id, []).append(inference)

    def with_inferences_behind(self, inferences: Collection[Inference]) -> "Line":
        """Return a copy of this line with more inferences at its end."""
        longer = Line(self._placement, self._backfill)
        longer._inferences = [*self._inferences]
        longer._at = {name: [*at] for name, at in self._at.items()}
        longer._most_passes = {**self._most_passes}
        longer.kept = {name: [*kept] for name, kept in self.kept.items()}
        for inference in inferences:
            longer.join(inference)
        return longer

    def __contains__(self, inference: Inference) -> bool:
        return inference in self._inferences

    def at(self, replica: KnownReplica) -> Sequence[Inference]:
        """Return the inferences that wait for memory of a replica."""
        return self._at.get(replica.replica_id, ())

    def lets_pass(self, replica: KnownReplica) -> bool:
        """Return whether every inference that waits for a replica may be overtaken once more."""
        return (
            self._backfill is None or self._most_passes.get(replica.replica_id, -1) < self._backfill
        )

    def count_overtaking(self, inferences: Iterable[Inference]) -> None:
        """Count one more overtaking for each of these inferences. O(line)."""
        for inference in inferences:
            inference.passes += 1
        for name, at in self._at.items():
            self._most_passes[name] = max(inference.passes for inference in at)

    def is_open(self) -> bool:
        """Return whether an inference behind this line may use any replica."""
        return any(map(self.lets_pass, self._placement.asking()))


def _line_capacity(replica: KnownReplica) -> tuple[Tokens, int]:
    return (replica.capacity.kv_tokens, replica.capacity.max_num_seqs)
