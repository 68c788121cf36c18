"""Arms that decide where and when a turn runs: this project's core, and other schedulers.

`pinned`: independent vLLM servers; each session stays on the one that had the fewest sessions;
first come, first served. `lmetric`: each turn goes to the replica with the least product of the
prompt tokens that it would have to compute and the number of requests there (a re-implementation of
arXiv 2603.15202); then first come, first served. `justitia`: the service's scheduling core, which
grants leases that fit by its ledger.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Timeouts
from justitia_ray.cost import kv_token_time
from justitia_ray.engine_model.steps import EnginePolicy, EngineSequence
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session, Turn, TurnContent
from justitia_ray.units import Seconds


@dataclass(slots=True, eq=False)
class TurnCall:
    """A submitted turn."""

    session: Session
    place: int
    content: TurnContent
    sequence: EngineSequence | None = None
    """Sequence of the turn in an engine; None until it starts."""
    lease_id: str = ""

    @property
    def turn(self) -> Turn:
        """The recorded turn that is submitted."""
        return self.session.turns[self.place]

    @property
    def name(self) -> str:
        """Unique name of the turn: session and index."""
        return f"{self.session.name}/{self.place}"


class Start(NamedTuple):
    """A turn that starts in an engine now."""

    replica: SessionReplica
    call: TurnCall
    priority: int = 0


class SessionArm(Protocol):
    """Decides where and when turns run."""

    def open(self, session: Session, now: Seconds) -> None:
        """Register a session that begins."""

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Submit a turn; return the turns that start now."""

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Report ended turns of a replica; return the turns that start now."""

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Report an ended session; return the turns that start now."""


class PinnedArm:
    """Each session stays on one replica."""

    def __init__(self, replicas: Sequence[SessionReplica]) -> None:
        self._replicas = replicas
        self._sessions = [0] * len(replicas)
        self._of: dict[str, int] = {}

    def open(self, session: Session, now: Seconds) -> None:
        """Pin a session to the replica with the fewest sessions."""
        index = min(range(len(self._replicas)), key=self._sessions.__getitem__)
        self._sessions[index] += 1
        self._of[session.name] = index

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Send a turn to its session's replica."""
        return [Start(self._replicas[self._of[call.session.name]], call)]

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Return nothing: waiting turns are already in the engines."""
        return ()

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Drop a session."""
        self._sessions[self._of.pop(session.name)] -= 1
        return ()


class LMetricArm:
    """Each turn goes to the replica with the least tokens to compute times requests."""

    def __init__(self, replicas: Sequence[SessionReplica]) -> None:
        self._replicas = replicas

    def open(self, session: Session, now: Seconds) -> None:
        """Do nothing: each turn is placed independently."""

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Send a turn to the replica with the least product."""
        prompt = call.turn.prompt_tokens

        def product(replica: SessionReplica) -> tuple[int, int]:
            size = replica.profile.block_size
            cached = replica.steps.pool.find(call.content, (prompt - 1) // size).blocks * size
            uncomputed = prompt - cached + replica.uncomputed_tokens
            return uncomputed * (replica.sequences + 1), replica.index

        return [Start(min(self._replicas, key=product), call)]

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Return nothing: waiting turns are already in the engines."""
        return ()

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Do nothing: sessions have no state here."""
        return ()


_NEVER = float("inf")
_INGRESS = "simulation"


class CoreArm:
    """The service's scheduling core, with true costs and lengths (`oracle`)."""

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        options: Mapping[str, object] | None = None,
        *,
        with_prefill: bool = False,
    ) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._waiting: dict[str, TurnCall] = {}
        self._leased: dict[str, dict[str, TurnCall]] = {replica.name: {} for replica in replicas}
        self._early: list[Grant] = []
        """Grants of deadlines that were due when a session began; its first turn returns them."""
        self.core = SchedulerCore(
            "justitia",
            options or {},
            "peak",
            Timeouts(_NEVER, _NEVER, _NEVER, _NEVER, _NEVER),
            prefill_cost=replicas[0].profile.prefill_cost if with_prefill else None,
        )
        for replica in replicas:
            profile = replica.profile
            capacity = ReplicaCapacity(
                profile.kv_tokens, profile.block_size, profile.max_num_seqs, caches_prefixes=True
            )
            self.core.handle(ev.ReplicaPulled(replica.name, capacity, profile.kv_tokens), 0.0)

    def open(self, session: Session, now: Seconds) -> None:
        """Open an application with its true cost."""
        cost = sum(kv_token_time(t.prompt_tokens, t.output_tokens) for t in session.turns)
        arrived = ev.ApplicationArrived(
            session.name, "agent", "agents", 1.0, cost, _INGRESS, true_kv_token_time=cost
        )
        self._early += self._grants(arrived, now)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Submit a turn as an inference."""
        turn = call.turn
        self._waiting[call.name] = call
        submitted = ev.InferenceSubmitted(
            call.name,
            call.session.name,
            str(call.place),
            _INGRESS,
            turn.prompt_tokens,
            turn.output_tokens,
            turn.output_tokens,
            true_output_tokens=turn.output_tokens,
        )
        return self._handle(submitted, now)

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Report the ended turns of a replica, and the progress of its other leases."""
        finished = tuple(
            ev.LeaseFinished(
                call.lease_id,
                call.turn.prompt_tokens,
                call.turn.output_tokens,
                Outcome.FINISHED,
                cached_tokens=call.sequence.cached_tokens if call.sequence else None,
            )
            for call in calls
        )
        leased = self._leased[replica.name]
        for call in calls:
            del leased[call.lease_id]
        progress = tuple(
            ev.LeaseProgress(
                lease_id,
                call.turn.prompt_tokens,
                call.sequence.generated,
                running=True,
                cached_tokens=call.sequence.cached_tokens if call.sequence.generated else None,
            )
            for lease_id, call in leased.items()
            if call.sequence is not None
        )
        reported = ev.ReplicaReported(replica.name, progress, finished, asks=True, withdraws=True)
        return self._handle(reported, now)

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Close an application."""
        return self._handle(ev.ApplicationClosed(session.name), now)

    def _handle(self, event: ev.Event, now: Seconds) -> Iterable[Start]:
        """Send an event to the core; yield the turns that it grants.

        Each replica requests again as soon as it was answered, as the service's replicas do.
        """
        grants = [*self._early, *self._grants(event, now)]
        self._early = []
        while grants:
            for grant in grants:
                call = self._waiting.pop(grant.request_id)
                call.lease_id = grant.lease_id
                self._leased[grant.replica_id][grant.lease_id] = call
                yield Start(self._replicas[grant.replica_id], call, grant.priority)
            answered = dict.fromkeys(grant.replica_id for grant in grants)
            grants = []
            for name in answered:
                grants += self._grants(ev.PullAnswered(name), now)
                grants += self._grants(ev.ReplicaReported(name, asks=True), now)

    def _grants(self, event: ev.Event, now: Seconds) -> list[Grant]:
        return [a for a in self.core.handle(event, now) if isinstance(a, Grant)]


@dataclass(frozen=True, slots=True)
class ArmKind:
    """An arm, and the order in which its engines serve waiting turns."""

    make: Callable[[Sequence[SessionReplica]], SessionArm]
    engine_policy: EnginePolicy


ARMS: Mapping[str, ArmKind] = {
    "justitia": ArmKind(CoreArm, "priority"),
    "justitia-no-working-set": ArmKind(
        partial(CoreArm, options={"working_set": False}), "priority"
    ),
    "pinned": ArmKind(PinnedArm, "fcfs"),
    "lmetric": ArmKind(LMetricArm, "fcfs"),
}
