"""This project's scheduling core as a scheduler of sessions; it grants leases by its ledger."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Timeouts
from justitia_ray.cost import kv_token_time
from justitia_ray.sim.sessions.arm import NEVER, SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import KvTokenTime, Seconds, Tokens

_INGRESS = "simulation"

Predictions = Literal["truth", "class mean"]


class CoreArm(SessionArm):
    """Schedules recorded sessions with the service's own scheduling core.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run, for the means of their class.
        options: Options of the policy `justitia`.
        with_prefill: Whether computed prompt tokens are charged.
        predictions: Known cost of a session that begins and known output of a turn: true values, or
            means over all sessions of its kind.
        policy: Name of the policy.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        options: Mapping[str, object] | None = None,
        *,
        with_prefill: bool = False,
        predictions: Predictions = "truth",
        policy: str = "justitia",
    ) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._waiting: dict[str, TurnCall] = {}
        self._leased: dict[str, dict[str, TurnCall]] = {replica.name: {} for replica in replicas}
        self._early: list[Grant] = []
        """Leases that a due timer of the core granted when a session arrived; they start with the
        session's first turn.
        """
        self._means: dict[str, _SessionMeans] = {}
        if predictions == "class mean":
            for kind in {session.kind for session in sessions}:
                self._means[kind] = _SessionMeans([one for one in sessions if one.kind == kind])
        self.core = SchedulerCore(
            policy,
            options or {},
            "peak",
            Timeouts(NEVER, NEVER, NEVER, NEVER, NEVER),
            prefill_cost=replicas[0].profile.prefill_cost if with_prefill else None,
        )
        for replica in replicas:
            profile = replica.profile
            capacity = ReplicaCapacity(
                profile.kv_tokens,
                profile.block_size,
                profile.max_num_seqs,
                caches_prefixes=True,
                host_kv_tokens=replica.host.room,
            )
            self.core.handle(ev.ReplicaPulled(replica.name, capacity, profile.kv_tokens), 0.0)

    def open(self, session: Session, now: Seconds) -> None:
        true = _cost(session)
        means = self._means.get(session.kind)
        cost = true if means is None else means.cost
        arrived = ev.ApplicationArrived(
            session.name, session.kind, "agents", 1.0, cost, _INGRESS, true_kv_token_time=true
        )
        self._early += self._handle_and_select_grants(arrived, now)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Submit a turn as an inference."""
        turn, means = call.turn, self._means.get(call.session.kind)
        self._waiting[call.name] = call
        submitted = ev.InferenceSubmitted(
            call.name,
            call.session.name,
            str(call.place),
            _INGRESS,
            turn.prompt_tokens,
            turn.output_tokens if means is None else means.output_tokens,
            turn.output_tokens if means is None else means.longest_output_tokens,
            true_output_tokens=turn.output_tokens,
            prefixes=turn.prefixes,
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
                cached_tokens=call.cached_tokens,
                recomputed_tokens=call.recomputed_tokens,
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
                cached_tokens=call.cached_tokens if call.sequence.generated else None,
                recomputed_tokens=call.recomputed_tokens,
            )
            for lease_id, call in leased.items()
            if call.sequence is not None
        )
        reported = ev.ReplicaReported(replica.name, progress, finished, asks=True, withdraws=True)
        return self._handle(reported, now)

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        return self._handle(ev.ApplicationClosed(session.name), now)

    def _handle(self, event: ev.Event, now: Seconds) -> Iterable[Start]:
        """Send an event to the scheduler core; yield the turns that it grants.

        Each replica requests work again as soon as it has an answer, as the service's replicas do.
        """
        grants = [*self._early, *self._handle_and_select_grants(event, now)]
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
                grants += self._handle_and_select_grants(ev.PullAnswered(name), now)
                grants += self._handle_and_select_grants(ev.ReplicaReported(name, asks=True), now)

    def _handle_and_select_grants(self, event: ev.Event, now: Seconds) -> list[Grant]:
        return [a for a in self.core.handle(event, now) if isinstance(a, Grant)]


class _SessionMeans:
    """Mean cost and length over all sessions, which a service without a model would predict."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        outputs = [turn.output_tokens for session in sessions for turn in session.turns]
        self.cost: KvTokenTime = round(sum(map(_cost, sessions)) / len(sessions))
        self.output_tokens: Tokens = round(sum(outputs) / len(outputs))
        self.longest_output_tokens: Tokens = max(outputs)
        """Output limit in tokens that clients set for every turn."""


def _cost(session: Session) -> KvTokenTime:
    return sum(kv_token_time(turn.prompt_tokens, turn.output_tokens) for turn in session.turns)
