"""A simulated run of a constant number of concurrent sessions: when one ends, the next begins."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from justitia_ray.errors import ConfigError
from justitia_ray.sim.sessions.arm import NEVER, Start, TurnCall
from justitia_ray.sim.sessions.arms import ARMS
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.replica import SessionReplica, TurnSequence
from justitia_ray.sim.sessions.trace import Session, TurnContent
from justitia_ray.units import Seconds, Tokens

_ARRIVE_WITHIN_S: Seconds = 60.0
"""Time within which the first sessions begin, at random times."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Scheduler, engines and load of a simulated run of recorded sessions."""

    arm: str
    profile: LongContextProfile
    replicas: int
    load: float
    """Total context of the concurrent sessions, in multiples of the memory of all replicas."""
    seed: int = 0
    """Seed of the order of the sessions."""
    options: tuple[tuple[str, object], ...] = ()
    """Options of the scheduler, by name."""
    host: float = 0.0
    """Host memory of a replica, in multiples of its KV memory."""


@dataclass(slots=True)
class SessionRow:
    name: str
    turns: int
    began_at_s: Seconds
    ended_at_s: Seconds = 0.0
    gaps_s: Seconds = 0.0

    @property
    def served_s(self) -> Seconds:
        """Total duration of the session's turns: the completion time without tools and users."""
        return self.ended_at_s - self.began_at_s - self.gaps_s


@dataclass(slots=True)
class SessionResult:
    at_once: int
    sessions: list[SessionRow] = field(default_factory=list)
    turns: int = 0
    turns_under_load: int = 0
    """Number of turns that ended before the last session began."""
    under_load_s: Seconds = 0.0
    """Seconds from the start of the run until the last session began."""
    prompt_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    preemptions: int = 0


def mean_context(sessions: Iterable[Session]) -> float:
    """Return the mean length of a turn's prompt."""
    prompts = [turn.prompt_tokens for session in sessions for turn in session.turns]
    return sum(prompts) / len(prompts)


def fitting(sessions: Iterable[Session], profile: LongContextProfile) -> list[Session]:
    """Return the sessions, cut off before the first turn that exceeds a replica's memory."""
    cut = (session.until(profile.kv_tokens) for session in sessions)
    return [session for session in cut if session.turns]


def play_sessions(sessions: Sequence[Session], settings: SessionSettings) -> SessionResult:
    """Simulate recorded sessions; equal arguments give equal results.

    Raises:
        ConfigError: If the scheduler is unknown, or no session fits.
    """
    if settings.arm not in ARMS:
        raise ConfigError(f"arm is {settings.arm!r}; allowed: {', '.join(ARMS)}")
    fit = fitting(sessions, settings.profile)
    if not fit:
        raise ConfigError("no session has a turn that fits into a replica's memory")
    return _Play(fit, settings).run()


class _Play:
    def __init__(self, sessions: list[Session], settings: SessionSettings) -> None:
        self._random = Random(settings.seed)
        kind = ARMS[settings.arm]
        profile = settings.profile
        host_tokens = round(settings.host * profile.kv_tokens)
        self._replicas = [
            SessionReplica(index, profile, kind.engine_policy, host_tokens)
            for index in range(settings.replicas)
        ]
        self._arm = kind.make(self._replicas, sessions, **dict(settings.options))
        for replica in self._replicas:
            replica.before_plan = partial(self._hold, replica)
        memory = settings.replicas * profile.kv_tokens
        at_once = round(settings.load * memory / mean_context(sessions))
        self._to_come = self._random.sample(sessions, len(sessions))
        self._result = SessionResult(max(1, min(at_once, len(sessions))))
        self._rows: dict[str, SessionRow] = {}
        self._due: list[tuple[Seconds, int, Session, int]] = []
        self._calls: dict[TurnSequence, TurnCall] = {}
        self._arrivals = 0

    def run(self) -> SessionResult:
        for _ in range(self._result.at_once):
            self._begin_next(self._random.uniform(0.0, _ARRIVE_WITHIN_S))
        while self._rows:
            ending = [r for r in self._replicas if r.ends_at is not None]
            replica = min(ending, key=lambda r: r.ends_at or 0.0, default=None)
            ends_at = NEVER if replica is None else replica.ends_at
            assert ends_at is not None
            due_at = self._due[0][0] if self._due else NEVER
            wakes_at = self._arm.wakes_at
            if wakes_at < min(due_at, ends_at):
                self._start(self._arm.wake(wakes_at), wakes_at)
            elif due_at < ends_at:
                now, _, session, place = heapq.heappop(self._due)
                self._submit(session, place, now)
            else:
                assert replica is not None, "every session ends"
                self._end(replica, ends_at)
        self._result.preemptions = sum(r.steps.preemptions for r in self._replicas)
        return self._result

    def _begin_next(self, at: Seconds) -> None:
        if self._to_come:
            session = self._to_come.pop()
            self._rows[session.name] = SessionRow(session.name, len(session.turns), at)
            self._push(session, 0, at)
            if not self._to_come:
                self._result.under_load_s = at
                self._result.turns_under_load = self._result.turns

    def _push(self, session: Session, place: int, at: Seconds) -> None:
        self._arrivals += 1
        heapq.heappush(self._due, (at, self._arrivals, session, place))

    def _submit(self, session: Session, place: int, now: Seconds) -> None:
        if place == 0:
            self._arm.open(session, now)
        content = TurnContent(session.turns[place], self._replicas[0].profile.block_size)
        self._start(self._arm.submit(TurnCall(session, place, content), now), now)

    def _start(self, starts: Iterable[Start], now: Seconds) -> None:
        for replica, call, priority in starts:
            self._arrivals += 1
            call.sequence = TurnSequence(
                content=call.content,
                arrival=self._arrivals,
                prompt_tokens=call.turn.prompt_tokens,
                max_tokens=call.turn.output_tokens,
                priority=priority,
                path=call.turn.path,
            )
            self._calls[call.sequence] = call
            replica.add(call.sequence, now)

    def _hold(
        self, replica: SessionReplica, finished: Sequence[TurnSequence], now: Seconds
    ) -> None:
        for sequence in finished:
            self._arm.hold(replica, self._calls[sequence], now)

    def _end(self, replica: SessionReplica, now: Seconds) -> None:
        calls = [self._calls.pop(sequence) for sequence in replica.end(now)]
        for call in calls:
            self._result.turns += 1
            self._result.prompt_tokens += call.turn.prompt_tokens
            self._result.cached_tokens += call.cached_tokens
        if calls:
            self._start(self._arm.finish(replica, calls, now), now)
        for call in calls:
            self._go_on(call, now)

    def _go_on(self, call: TurnCall, now: Seconds) -> None:
        session, place = call.session, call.place + 1
        if place < len(session.turns):
            self._push(session, place, now + session.turns[place].gap_s)
            return
        row = self._rows.pop(session.name)
        row.ended_at_s, row.gaps_s = now, session.gaps_s
        self._result.sessions.append(row)
        self._start(self._arm.close(session, now), now)
        self._begin_next(now)
