"""Plan of starts: where and when the waiting inferences would start if predictions came true.

The inferences start in the order of the core's queue, and never before the previous one. Each takes
its largest expected KV, by the core's own footprints, from its start to its end. It runs on a
replica with that much free memory: the one that its application used last, or else the one with
most free memory. Arrivals, later stages and reserved shares of memory are left out.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.outlook import WALK_KEPT_S
from justitia_ray.protocol.console import PLANNED, PlannedBar
from justitia_ray.units import ReplicaId, Seconds, Tokens


@dataclass(slots=True)
class _ReplicaRoom:
    """Free KV memory and free sequences of a replica, as predicted for a later time."""

    replica: KnownReplica
    free_tokens: Tokens
    free_seats: int
    ends: list[tuple[Seconds, Tokens, int]] = field(default_factory=list)
    """Heap of predicted ends of leases: time, and the KV tokens and sequences that become free."""

    def advance_to(self, now: Seconds) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, tokens, seats = heapq.heappop(self.ends)
            self.free_tokens += tokens
            self.free_seats += seats

    def occupy(self, until: Seconds, tokens: Tokens, seats: int) -> None:
        self.free_tokens -= tokens
        self.free_seats -= seats
        heapq.heappush(self.ends, (until, tokens, seats))

    def admits(self, inference: Inference, tokens: Tokens) -> bool:
        if self.replica.replica_id in inference.avoided:
            return False
        fits = tokens <= self.free_tokens and inference.choices <= self.free_seats
        return fits or not self.ends  # An empty replica accepts any inference.


def planned_bars(core: SchedulerCore, now: Seconds, most: int = PLANNED) -> list[PlannedBar]:
    """Predict on which replica and when the first waiting inferences will run.

    O(most · replicas + leases).
    """
    iteration_s = core.outlooks.iteration_s
    rooms = {
        name: _replica_room(replica, now, iteration_s)
        for name, replica in core.state.replicas.items()
        if replica.takes_leases
    }
    found: list[PlannedBar] = []
    start = now
    for application, inference in islice(_waiting_inferences(core), most):
        footprint = inference.expected_footprint(inference.output_tokens)
        while True:
            for room in rooms.values():
                room.advance_to(start)
            best = _choose_replica_room(rooms, application, inference, footprint.full_tokens)
            if best is not None:
                break
            ends = [room.ends[0][0] for room in rooms.values() if room.ends]
            if not ends:
                return found  # No replica can run this inference.
            start = min(ends)
        tokens = footprint.most_tokens(best.replica.capacity.block_size)
        end = start + max(1, footprint.iterations) * iteration_s
        best.occupy(end, tokens, inference.choices)
        found.append(
            PlannedBar(best.replica.replica_id, application.application_id, start, end, int(tokens))
        )
    return found


def _waiting_inferences(core: SchedulerCore) -> Iterator[tuple[Application, Inference]]:
    applications = core.state.applications
    for name in core.outlooks.queue_profile(WALK_KEPT_S).names:
        application = applications.get(name)
        if application is not None:  # An application may end after its id was listed.
            yield from ((application, one) for one in application.waiting)


def _replica_room(replica: KnownReplica, now: Seconds, iteration_s: Seconds) -> _ReplicaRoom:
    room = _ReplicaRoom(replica, replica.leasable_tokens, replica.capacity.max_num_seqs)
    block_size = replica.capacity.block_size
    for part in replica.leases.parts():
        tokens = part.most_tokens(block_size)
        room.occupy(now + part.iterations * iteration_s, tokens, part.choices)
    return room


def _choose_replica_room(
    rooms: dict[ReplicaId, _ReplicaRoom],
    application: Application,
    inference: Inference,
    tokens: Tokens,
) -> _ReplicaRoom | None:
    for name in reversed(application.replicas):
        room = rooms.get(name)
        if room is not None and room.admits(inference, tokens):
            return room
    fitting = [room for room in rooms.values() if room.admits(inference, tokens)]
    return max(fitting, key=lambda room: room.free_tokens, default=None)
