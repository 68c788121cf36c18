"""Agents in virtual time: a scheduling core and modelled engines with prefix caches.

Engines compute iterations with vLLM's order and block pool (`sim.sessions.replica`). An agent's
turns repeat its context; the next turn is submitted a gap after the answer.
"""

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.cost import kv_token_time
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.replica import SessionReplica, TurnSequence
from justitia_ray.sim.sessions.trace import TextChain, TurnContent
from justitia_ray.sim.sessions.trace import Turn as RecordedTurn
from justitia_ray.units import KvTokenTime, Seconds, Tokens
from tests.core_driver import PATIENT

PROFILE = LongContextProfile(
    "test",
    kv_tokens=10_240,
    base_s=0.02,
    per_sequence_s=1e-4,
    per_context_token_s=1e-6,
    per_prompt_token_s=4e-4,
    per_pair_s=0.0,
    host_token_s=0.0,
)
"""Simulated engine with 10,240 KV tokens. Prefill takes 0.4 s for 1,000 tokens and 4.1 s for all
10,240; each output token takes 20 ms.
"""
_TICK_S: Seconds = 0.25
"""Seconds between two pulls of each replica."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One LLM call of an agent; its prompt repeats the agent's context and adds some tokens."""

    prompt: Tokens
    output: Tokens
    gap_s: Seconds = 0.0
    """Seconds from the previous turn's answer (at first, from the agent's arrival) to this turn's
    call.
    """
    is_aside: bool = False
    """Whether the agent goes on without waiting for this turn's answer."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Simulated agent; all its turns form one application."""

    name: str
    arrives_at: Seconds
    turns: tuple[Turn, ...]
    predicted: KvTokenTime | None = None
    """Predicted KV token-time of the application; None predicts the true cost."""
    kind: str = "agent"
    """Application class."""
    stays_s: Seconds | None = 0.0
    """Seconds from the last answer until the agent closes its application; None if it never does.
    """
    tenant: str = "tenant"
    context: str = ""
    """Name of a prompt prefix that several agents share; empty if the agent has a prefix of its
    own.
    """
    after: str = ""
    """Name of another agent; this agent arrives `arrives_at` seconds after that one's end."""

    @property
    def cost(self) -> KvTokenTime:
        return sum(kv_token_time(turn.prompt, turn.output) for turn in self.turns)


def agent(
    name: str,
    arrives_at: Seconds = 0.0,
    *,
    turns: int = 8,
    begin: Tokens = 1_000,
    grows: Tokens = 40,
    output: Tokens = 20,
    gap_s: Seconds = 0.5,
    **more: object,
) -> Agent:
    """Return an agent whose context grows from turn to turn, with random gaps around `gap_s`."""
    seed = sum(name.encode())
    own = tuple(
        Turn(begin + k * grows, output, gap_s * (0.5 + (37 * k + seed) % 11 / 10) if k else 0.0)
        for k in range(turns)
    )
    return Agent(name, arrives_at, own, **more)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class _Call:
    agent: Agent
    place: int
    content: TurnContent
    sequence: TurnSequence | None = None
    lease_id: str = ""

    @property
    def turn(self) -> Turn:
        return self.agent.turns[self.place]

    @property
    def name(self) -> str:
        return f"{self.agent.name}/{self.place}"


@dataclass(slots=True)
class Result:
    ended_at: dict[str, Seconds] = field(default_factory=dict)
    """Time of each agent's last answer."""
    completion_s: dict[str, Seconds] = field(default_factory=dict)
    """Time from each agent's arrival to its last answer."""
    prompt_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    running: list[tuple[Seconds, frozenset[str]]] = field(default_factory=list)
    """(time, agents with a running turn) at the start of each turn."""

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


class AgentWorld:
    """Simulates agents and replicas around a scheduler core.

    Args:
        replicas: Number of engines.
        options: Options of `justitia`.
        profile: Memory and times of an engine.
        watch: Called after each event with the time.
        restarts_at: Time at which another scheduler takes over, and all engines restart.
    """

    def __init__(
        self,
        replicas: int = 1,
        options: Mapping[str, object] | None = None,
        profile: LongContextProfile = PROFILE,
        watch: Callable[["AgentWorld", Seconds], None] = lambda world, now: None,
        restarts_at: Seconds | None = None,
    ) -> None:
        self._options = options or {}
        self._profile = profile
        self._watch = watch
        self._restarts_at = restarts_at
        self._replicas = {str(i): SessionReplica(i, profile, "priority") for i in range(replicas)}
        self.result = Result()
        self._due: list[tuple[Seconds, int, Callable[[Seconds], None]]] = []
        self._steps = 0
        self._waiting: dict[str, _Call] = {}
        self._leased: dict[str, dict[str, _Call]] = {name: {} for name in self._replicas}
        self._calls: dict[TurnSequence, _Call] = {}
        self._chains: dict[str, TextChain] = {}
        self._arrived: dict[str, Seconds] = {}
        self._followers: dict[str, list[Agent]] = {}
        self.core = self._new_core()
        for name in self._replicas:
            self._pull(name, 0.0)

    def run(self, agents: Sequence[Agent], until: Seconds = 1e5) -> Result:
        for one in agents:
            if one.after:
                self._followers.setdefault(one.after, []).append(one)
            else:
                self._at(one.arrives_at, partial(self._arrive, one))
        self._at(_TICK_S, self._tick)
        if self._restarts_at is not None:
            self._at(self._restarts_at, self._restart)
        left = len(agents)
        while len(self.result.ended_at) < left:
            ending = [one for one in self._replicas.values() if one.ends_at is not None]
            replica = min(ending, key=lambda one: one.ends_at or 0.0, default=None)
            ends_at = float("inf") if replica is None else replica.ends_at or 0.0
            now = min(self._due[0][0], ends_at)
            assert now < until, f"{left - len(self.result.ended_at)} agents have not ended"
            if replica is None or self._due[0][0] <= ends_at:
                heapq.heappop(self._due)[2](now)
            else:
                self._end(replica, now)
            self._watch(self, now)
        return self.result

    def _new_core(self) -> SchedulerCore:
        prefix = f"{self._steps}-"
        return SchedulerCore("justitia", self._options, "peak", PATIENT, lease_prefix=prefix)

    def _at(self, at: Seconds, act: Callable[[Seconds], None]) -> None:
        self._steps += 1
        heapq.heappush(self._due, (at, self._steps, act))

    def _tick(self, now: Seconds) -> None:
        for name in self._replicas:
            self._report(name, (), now)
        self._at(now + _TICK_S, self._tick)

    def _arrive(self, one: Agent, now: Seconds) -> None:
        self._arrived[one.name] = now
        self._chains.setdefault(one.context or one.name, TextChain())
        cost = one.cost if one.predicted is None else one.predicted
        self._handle(ev.ApplicationArrived(one.name, one.kind, one.tenant, 1.0, cost, "i"), now)
        self._at(now + one.turns[0].gap_s, partial(self._submit, one, 0))

    def _submit(self, one: Agent, place: int, now: Seconds) -> None:
        turn = one.turns[place]
        recorded = RecordedTurn(
            turn.prompt,
            turn.output,
            turn.gap_s,
            ((self._chain_of(one), turn.prompt),),
        )
        call = _Call(one, place, TurnContent(recorded, self._profile.block_size))
        self._waiting[call.name] = call
        self._handle(self._submission(call), now)
        if turn.is_aside:
            self._at(now + one.turns[place + 1].gap_s, partial(self._submit, one, place + 1))

    def _chain_of(self, one: Agent) -> TextChain:
        return self._chains[one.context or one.name]

    def _submission(self, call: _Call, lease_id: str | None = None) -> ev.InferenceSubmitted:
        turn, again = call.turn, lease_id is not None or bool(call.lease_id)
        return ev.InferenceSubmitted(
            call.name,
            call.agent.name,
            str(call.place),
            "i",
            turn.prompt,
            turn.output,
            turn.output,
            resubmitted=again,
            lease_id=lease_id,
        )

    def _end(self, replica: SessionReplica, now: Seconds) -> None:
        calls = [self._calls.pop(sequence) for sequence in replica.end(now)]
        for call in calls:
            assert call.sequence is not None
            self.result.prompt_tokens += call.turn.prompt
            self.result.cached_tokens += call.sequence.cached_tokens or 0
            del self._leased[replica.name][call.lease_id]
        if calls:
            self._report(replica.name, calls, now)
        for call in calls:
            self._go_on(call, now)

    def _go_on(self, call: _Call, now: Seconds) -> None:
        one, place = call.agent, call.place + 1
        if call.turn.is_aside:
            return
        if place < len(one.turns):
            self._at(now + one.turns[place].gap_s, partial(self._submit, one, place))
            return
        self.result.ended_at[one.name] = now
        self.result.completion_s[one.name] = now - self._arrived[one.name]
        if one.stays_s is not None:
            self._at(now + one.stays_s, partial(self._handle, ev.ApplicationClosed(one.name)))
        for follower in self._followers.pop(one.name, ()):
            self._at(now + follower.arrives_at, partial(self._arrive, follower))

    def _report(self, name: str, calls: Sequence[_Call], now: Seconds) -> None:
        progress, ends = self._progress(name), self._ends(calls)
        self._handle(ev.ReplicaReported(name, progress, ends, asks=True, withdraws=True), now)

    def _ends(self, calls: Sequence[_Call]) -> tuple[ev.LeaseFinished, ...]:
        return tuple(
            ev.LeaseFinished(
                call.lease_id,
                call.turn.prompt,
                call.turn.output,
                Outcome.FINISHED,
                cached_tokens=call.sequence.cached_tokens if call.sequence else None,
            )
            for call in calls
        )

    def _progress(self, name: str) -> tuple[ev.LeaseProgress, ...]:
        return tuple(
            ev.LeaseProgress(
                lease_id,
                call.turn.prompt,
                call.sequence.generated,
                running=True,
                cached_tokens=call.sequence.cached_tokens if call.sequence.generated else None,
            )
            for lease_id, call in self._leased[name].items()
            if call.sequence is not None
        )

    def _pull(self, name: str, now: Seconds) -> None:
        profile = self._profile
        capacity = ReplicaCapacity(
            profile.kv_tokens, profile.block_size, profile.max_num_seqs, caches_prefixes=True
        )
        free = self._replicas[name].free_tokens
        self._handle(ev.ReplicaPulled(name, capacity, free, self._progress(name)), now)

    def _handle(self, event: ev.Event, now: Seconds) -> None:
        self._carry_out(self.core.handle(event, now), now)

    def _carry_out(self, actions: Sequence[Action], now: Seconds) -> None:
        """Start every granted inference, and let each answered replica pull again."""
        grants = [action for action in actions if isinstance(action, Grant)]
        for grant in grants:
            self._start(grant, now)
        for name in dict.fromkeys(grant.replica_id for grant in grants):
            self._handle(ev.PullAnswered(name), now)
            self._handle(ev.ReplicaReported(name, asks=True), now)

    def _start(self, grant: Grant, now: Seconds) -> None:
        call = self._waiting.pop(grant.request_id)
        call.lease_id = grant.lease_id
        self._leased[grant.replica_id][grant.lease_id] = call
        self._steps += 1
        call.sequence = TurnSequence(
            content=call.content,
            arrival=self._steps,
            prompt_tokens=call.turn.prompt,
            max_tokens=call.turn.output,
            priority=grant.priority,
            path=((self._chain_of(call.agent), call.turn.prompt),),
        )
        self._calls[call.sequence] = call
        self._replicas[grant.replica_id].add(call.sequence, now)
        names = (one.agent.name for calls in self._leased.values() for one in calls.values())
        self.result.running.append((now, frozenset(names)))

    def _restart(self, now: Seconds) -> None:
        """Replace the scheduler by one that restores the stored state, and restart the engines."""
        stored = json.loads(json.dumps(snapshot(self.core)))
        self.core = self._new_core()
        self.core.recover((), now)
        restore(self.core, stored["clock"], stored["applications"])
        again = [call for calls in self._leased.values() for call in calls.values()]
        self._calls.clear()
        for name in self._replicas:
            self._replicas[name] = SessionReplica(int(name), self._profile, "priority")
            self._leased[name].clear()
        for call in [*again, *self._waiting.values()]:
            call.sequence = None
            call.lease_id = call.lease_id or "old"
            self._waiting[call.name] = call
            self._handle(self._submission(call), now)
        for name in self._replicas:
            self._pull(name, now)
