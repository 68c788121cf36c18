"""Suspects: inferences that ran on an engine when it died, one of which may have killed it.

An engine that hangs counts as dead until it makes steps again. So does the engine of a replica
whose own process crashes.

After one death the inference that caused it cannot be told from those that ran beside it, until it
kills another engine alone. So a suspect is *open* in a death until it has ended, or has run for
longer than it had run when its engine died: then it is cleared of that death. An open suspect waits
for an engine on which no other open suspect runs. A suspect open in two deaths also avoids the
engines of those that ran beside it in both.

An inference is *convicted* of killing engines if it was open in the allowed number of deaths and no
other inference ran in all of them. One more death is required if its last run was less than half as
long as its earlier runs: the last engine may have died for another reason. A death of which the
inference had been cleared counts a quarter. The other suspects are cleared of the deaths of a
convicted inference.

A caller that has lost its ingress submits its inference again, with another id. So one more death
is also required if an inference of the last death was submitted after a similar inference of each
earlier death had disappeared.

Suspects are leased to the replica with the fewest leases, other inferences preferably to replicas
without open suspects. All others overtake a suspect that may run on no replica now; it keeps its
position in the order.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from justitia_ray.core.entities import Inference, KnownReplica
from justitia_ray.core.records import Record, RecordReader
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.units import LeaseId, ReplicaId, RequestId, Seconds, Tokens

_MARGIN_S: Seconds = 0.5
"""Seconds added to the run after which an inference is no longer suspected of killing engines:
starts and deaths are reported late.
"""
_PAUSE_S: Seconds = 1.0
"""Delay before a suspected inference's next lease. Engines killed by other inferences of the same
burst have died by then.
"""
_CLEARED_COUNTS = 0.25
_MOST_CONVICTED = 20
_MOST_DEATHS = 1_000
"""Maximum number of remembered engine deaths; the oldest deaths are removed first."""
_ABSENT_DEADLINE: RequestId = ""
"""Name of the deadline for the removal of suspects that no ingress has resubmitted."""
RENAMED = "+"
"""Suffix that an ingress adds to the id of an inference to submit it under another id."""

CallName: TypeAlias = str
"""Id of an inference at its first submission, unchanged by resubmissions."""
FailureId: TypeAlias = str
_Shape: TypeAlias = tuple[str, Tokens, int]
"""Tenant, output limit and number of sequences: equal for an inference and its repetition by the
caller.
"""


def call_name(request_id: RequestId) -> CallName:
    """Return the id of an inference without the suffixes of its resubmissions."""
    return request_id.rstrip(RENAMED)


@dataclass(slots=True)
class Suspicion:
    """The engine deaths that an inference is suspected of."""

    inference: Inference | None = None
    """The suspected inference; None until an ingress submits it to this scheduler."""
    ran_s: dict[FailureId, Seconds] = field(default_factory=dict)
    """Seconds for which the inference had run when each engine died, in the order of the deaths."""
    cleared: set[FailureId] = field(default_factory=set)
    waits_until: Seconds = 0.0
    watched: LeaseId | None = None
    """Lease under which the suspected inference runs now; None until its payload has reached a
    replica.
    """
    cleared_at: Seconds = 0.0
    """Time at which the inference is no longer suspected if it still runs under the lease
    `watched`.
    """

    @property
    def open(self) -> list[FailureId]:
        """Return the engine deaths that the inference may have caused."""
        return [name for name in self.ran_s if name not in self.cleared]


class Suspects:
    """Keeps suspected inferences on separate engines, and finds those that kill engines."""

    def __init__(self, state: State, deaths_allowed: int) -> None:
        self.deaths_allowed = deaths_allowed
        self._state = state
        self.known: dict[CallName, Suspicion] = {}
        """Suspected inferences by name; a dispatch skips all checks of suspects while there are
        none.
        """
        self._members: dict[FailureId, frozenset[CallName]] = {}
        """Inferences that ran when each engine died."""
        self._shapes: dict[FailureId, dict[CallName, _Shape]] = {}
        """Tenant, output limit and number of sequences of the inferences of each engine death."""
        self.convicted: deque[Inference] = deque(maxlen=_MOST_CONVICTED)
        """Inferences found to kill engines, the latest last, for reading."""
        self._unclaimed: dict[LeaseId, tuple[FailureId, Seconds]] = {}
        """Leases of an earlier scheduler that ran at an engine's death, until their ingresses claim
        them.
        """

    def is_open(self, inference: Inference) -> bool:
        """Return whether an inference is suspected of killing engines and runs apart."""
        return bool(self._suspicion_of(inference).open)

    @property
    def open_count(self) -> int:
        """Return the number of suspected inferences that run apart from each other."""
        return sum(bool(suspicion.open) for suspicion in self.known.values())

    # --- deaths

    def note_death(
        self, failure_id: FailureId, ran: Iterable[tuple[Inference, Seconds]]
    ) -> Inference | None:
        """Suspect the inferences that ran on a dead engine; return the one found to kill engines.

        Call it while the inferences still hold the leases under which they ran. The call may be
        repeated. None: no inference is found guilty by this death.
        """
        new = [
            (inference, ran_s)
            for inference, ran_s in ran
            if failure_id not in self._suspicion_of(inference).ran_s
        ]
        if not self.deaths_allowed or not new:
            return None
        members = {call_name(inference.request_id) for inference, _ in new}
        self._members[failure_id] = self._members.get(failure_id, frozenset()) | members
        shapes = self._shapes.setdefault(failure_id, {})
        for inference, ran_s in new:
            shapes[call_name(inference.request_id)] = self._shape_of_call(inference)
            suspicion = self.known.setdefault(call_name(inference.request_id), Suspicion())
            suspicion.inference = inference
            suspicion.ran_s[failure_id] = ran_s
            suspicion.watched = None
            suspicion.waits_until = self._state.now + _PAUSE_S
            self._set_deadline(suspicion.waits_until, inference)
        while len(self._members) > _MOST_DEATHS:
            self._forget_death(next(iter(self._members)))
        guilty = [inference for inference, _ in new if self._is_guilty(inference)]
        if len(guilty) != 1:
            return None
        self.convicted.append(guilty[0])
        for name in list(self._suspicion_of(guilty[0]).ran_s):
            self._forget_death(name)
        return guilty[0]

    def await_claim(self, failure_id: FailureId, lease_id: LeaseId, ran_s: Seconds) -> None:
        """Record a lease on a dead engine whose inference no ingress has submitted yet."""
        if self.deaths_allowed:
            self._unclaimed[lease_id] = failure_id, ran_s
            members = self._members.get(failure_id, frozenset())
            self._members[failure_id] = members | {lease_id}  # the call's name is unknown yet
            self._await_ingresses()

    def claim(self, lease_id: LeaseId, inference: Inference) -> Inference | None:
        """Suspect the inference of a lease that ran on a dead engine.

        Return it if it is found guilty.
        """
        failure_id, ran_s = self._unclaimed.pop(lease_id, (None, 0.0))
        if failure_id is None:
            return None
        members = self._members.get(failure_id, frozenset())
        self._members[failure_id] = members - {lease_id}
        return self.note_death(failure_id, [(inference, ran_s)])

    def withdraw(self, failure_id: FailureId) -> None:
        """Suspect no inference of an engine failure, because the engine makes steps again."""
        self._forget_death(failure_id)

    # --- Suspected inferences

    def resume(self, inference: Inference) -> None:
        """Record that a suspected inference was submitted again."""
        suspicion = self.known.get(call_name(inference.request_id))
        if suspicion is not None:
            suspicion.inference = inference

    def note_running(self, inference: Inference) -> None:
        """Record that a suspected inference runs, and when it is cleared."""
        suspicion = self._suspicion_of(inference)
        if names := suspicion.open:
            suspicion.watched = inference.lease_id
            longest_s = max(suspicion.ran_s[name] for name in names)
            suspicion.cleared_at = self._state.now + longest_s + _MARGIN_S
            self._set_deadline(suspicion.cleared_at, inference)

    def expire(self, request_id: RequestId) -> None:
        """Suspect an inference no longer, because it has run for long enough.

        With the name `_ABSENT_DEADLINE`: remove the suspects that no ingress has submitted again.
        """
        if request_id == _ABSENT_DEADLINE:
            self._unclaimed.clear()
            for name, absent in list(self.known.items()):
                if absent.inference is None:
                    del self.known[name]
            self._drop_deaths(self._members)
            return
        suspicion = self.known.get(call_name(request_id))
        if suspicion is None or suspicion.inference is None or suspicion.watched is None:
            return
        is_same_run = suspicion.inference.lease_id == suspicion.watched
        if is_same_run and self._state.now >= suspicion.cleared_at:
            suspicion.cleared.update(suspicion.ran_s)

    def forget(self, inference: Inference, *, is_finished: bool) -> None:
        """Remove a suspected inference that has ended; its caller may submit it again."""
        name = call_name(inference.request_id)
        suspicion = self.known.get(name)
        if suspicion is not None and suspicion.inference is inference:
            del self.known[name]
            if is_finished:
                for failure_id in suspicion.ran_s:
                    self._shapes.get(failure_id, {}).pop(name, None)
            self._drop_deaths(suspicion.ran_s)

    # --- replicas for suspects

    def separate_suspects(self) -> None:
        """Set the replicas that each waiting suspect avoids now. O(suspects²) at most."""
        watched = self._replicas_of(s for s in self.known.values() if s.open)
        for name, suspicion in self.known.items():
            inference = suspicion.inference
            if inference is None or inference.lease_id is not None:
                continue
            kept_off: frozenset[ReplicaId] = frozenset()
            failures = suspicion.open
            if failures and suspicion.waits_until > self._state.now:
                kept_off = frozenset(self._state.replicas)
            elif failures:
                kept_off = watched
                if len(failures) > 1:
                    others = self._common_neighbours(name, suspicion)
                    kept_off |= self._replicas_of(
                        self.known[other] for other in others if other in self.known
                    )
            inference.exclude_suspect_replicas(kept_off)

    def waiting(self) -> Iterator[Inference]:
        """Yield the waiting suspected inferences, in no order."""
        for suspicion in self.known.values():
            inference = suspicion.inference
            if inference is not None and inference.lease_id is None:
                yield inference

    def ranked(
        self, replicas: Sequence[KnownReplica], inference: Inference
    ) -> Sequence[KnownReplica]:
        """Return the replicas in the order in which an engine's death would do least harm."""
        if self._suspicion_of(inference).open:
            return sorted(replicas, key=lambda replica: len(replica.leases))
        watched = self._replicas_of(s for s in self.known.values() if s.open)
        return sorted(replicas, key=lambda replica: replica.replica_id in watched)

    # --- durable state

    def record(self) -> Record:
        """Return the suspects and their engine deaths as JSON."""
        return {
            "deaths": {name: sorted(members) for name, members in self._members.items()},
            "suspects": {
                name: {"ran_s": {**suspicion.ran_s}, "cleared": sorted(suspicion.cleared)}
                for name, suspicion in self.known.items()
            },
        }

    def restore(self, record: Record) -> None:
        """Restore the suspects of an earlier scheduler, before any inference is submitted.

        Raises:
            ValueError: If a field is missing or has a wrong type.
        """
        if not record or not self.deaths_allowed:
            return
        reader = RecordReader(record, ("deaths", "suspects"), None)
        deaths = reader.table("deaths", RecordReader.items)
        self._members = {
            name: frozenset(str(member) for member in members) for name, members in deaths.items()
        }
        self.known = reader.table("suspects", _read_suspicion)
        self._await_ingresses()

    # --- internals

    def _suspicion_of(self, inference: Inference) -> Suspicion:
        return self.known.get(call_name(inference.request_id)) or Suspicion()

    def _is_guilty(self, inference: Inference) -> bool:
        name, suspicion = call_name(inference.request_id), self._suspicion_of(inference)
        *before_s, last_s = (suspicion.ran_s[failure_id] for failure_id in suspicion.open)
        needed = self.deaths_allowed
        if before_s and last_s < min(before_s) / 2:
            needed += 1
        counted = len(suspicion.open) + _CLEARED_COUNTS * len(suspicion.cleared)
        if counted < needed or self._common_neighbours(name, suspicion):
            return False
        return counted >= needed + self._may_be_one_repeated_call(name, suspicion)

    def _may_be_one_repeated_call(self, name: CallName, suspicion: Suspicion) -> bool:
        """Return whether one inference, under several ids, may be to blame for all deaths."""
        *earlier, last = suspicion.ran_s
        for other in self._members.get(last, frozenset()) - {name}:
            newcomer = self.known[other].inference if other in self.known else None
            if newcomer is not None and all(
                self._has_disappeared(failure_id, newcomer, {name, other}) for failure_id in earlier
            ):
                return True
        return False

    def _has_disappeared(
        self, failure_id: FailureId, newcomer: Inference, excepted: set[CallName]
    ) -> bool:
        """Return whether a similar inference of this engine death ended before the submission."""
        shape = self._shape_of_call(newcomer)
        for name, known_shape in self._shapes.get(failure_id, {}).items():
            if known_shape != shape or name in excepted:
                continue
            suspicion = self.known.get(name)
            if suspicion is None or suspicion.inference is None:
                return True
            ingress_id = suspicion.inference.ingress_id
            if self._state.ingresses.get(ingress_id, 0.0) < newcomer.submitted_at:
                return True  # the suspect's ingress was lost before
        return False

    def _shape_of_call(self, inference: Inference) -> _Shape:
        tenant = self._state.applications[inference.application_id].tenant
        return tenant, inference.max_output_tokens, inference.choices

    def _common_neighbours(self, name: CallName, suspicion: Suspicion) -> frozenset[CallName]:
        """Return the inferences that ran beside a suspect in all of its engine deaths."""
        members = [self._members.get(failure_id, frozenset()) for failure_id in suspicion.ran_s]
        return frozenset.intersection(*members) - {name}

    def _replicas_of(self, suspicions: Iterable[Suspicion]) -> frozenset[ReplicaId]:
        """Return the replicas on which suspects run."""
        return frozenset(
            self._state.leases[suspicion.inference.lease_id].replica_id
            for suspicion in suspicions
            if suspicion.inference is not None and suspicion.inference.lease_id is not None
        )

    def _forget_death(self, failure_id: FailureId) -> None:
        """Suspect no inference of an engine death any longer."""
        self._members.pop(failure_id, None)
        self._shapes.pop(failure_id, None)
        for name, suspicion in list(self.known.items()):
            suspicion.ran_s.pop(failure_id, None)
            suspicion.cleared.discard(failure_id)
            if not suspicion.ran_s:
                del self.known[name]
                if suspicion.inference is not None:
                    suspicion.inference.exclude_suspect_replicas(frozenset())

    def _drop_deaths(self, failure_ids: Iterable[FailureId]) -> None:
        """Drop engine deaths without suspects and without leases that may still be claimed."""
        unclaimed = {failure_id for failure_id, _ in self._unclaimed.values()}
        for failure_id in list(failure_ids):
            if failure_id not in unclaimed and not any(
                failure_id in suspicion.ran_s for suspicion in self.known.values()
            ):
                self._members.pop(failure_id, None)
                self._shapes.pop(failure_id, None)

    def _await_ingresses(self) -> None:
        due = self._state.now + self._state.timeouts.ingress_s
        self._state.deadlines.set(due, DeadlineKind.SUSPECT, _ABSENT_DEADLINE)

    def _set_deadline(self, at: Seconds, inference: Inference) -> None:
        self._state.deadlines.set(at, DeadlineKind.SUSPECT, inference.request_id)


def _read_suspicion(reader: RecordReader, name: str) -> Suspicion:
    own = RecordReader(reader.mapping(name), ("ran_s", "cleared"), None)
    cleared = {str(failure_id) for failure_id in own.items("cleared")}
    return Suspicion(ran_s=own.table("ran_s", RecordReader.not_negative), cleared=cleared)
