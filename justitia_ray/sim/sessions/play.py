"""A simulated run of sessions.

Either the number of concurrent sessions is constant, and when one ends the next begins, or each
session begins at its own time.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from justitia_ray.errors import ConfigError
from justitia_ray.sim.sessions.arm import NEVER, Start, TurnCall
from justitia_ray.sim.sessions.arms import APPLICATION_ARMS
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
    load: float | None
    """Total context of the concurrent sessions, over the memory of all replicas; None: sessions
    begin at their own times.
    """
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
    def completion_s(self) -> Seconds:
        return self.ended_at_s - self.began_at_s

    @property
    def served_s(self) -> Seconds:
        """Total duration of the session's turns: the completion time without tools and users."""
        return self.completion_s - self.gaps_s


@dataclass(slots=True)
class SessionResult:
    at_once: int
    """Constant number of concurrent sessions; 0: sessions begin at their own times."""
    sessions: list[SessionRow] = field(default_factory=list)
    turns: int = 0
    turns_under_load: int = 0
    """Number of turns that ended before the last session began."""
    under_load_s: Seconds = 0.0
    """Seconds from the start of the run until the last session began."""
    prompt_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    preemptions: int = 0


def mean_prompt_tokens(sessions: Iterable[Session]) -> float:
    """Return the mean length of a turn's prompt."""
    prompts = [turn.prompt_tokens for session in sessions for turn in session.turns]
    return sum(prompts) / len(prompts)


def sessions_that_fit(sessions: Iterable[Session], profile: LongContextProfile) -> list[Session]:
    """Return the sessions, cut off before the first turn that exceeds a replica's memory."""
    cut = (session.until(profile.kv_tokens) for session in sessions)
    return [session for session in cut if session.turns]


def play_sessions(sessions: Sequence[Session], settings: SessionSettings) -> SessionResult:
    """Simulate recorded sessions; equal arguments give equal results.

    Raises:
        ConfigError: If the scheduler is unknown, no session fits, or a turn of a session that
            begins at its own time does not fit.
    """
    if settings.arm not in APPLICATION_ARMS:
        raise ConfigError(f"arm is {settings.arm!r}; allowed: {', '.join(APPLICATION_ARMS)}")
    fit = sessions_that_fit(sessions, settings.profile)
    if not fit:
        raise ConfigError("no session has a turn that fits into a replica's memory")
    if settings.load is None and any(
        session.until(settings.profile.kv_tokens) is not session for session in sessions
    ):
        raise ConfigError("a turn does not fit into a replica's memory")
    return _SessionPlay(fit, settings).run()


class _Progress:
    """The turns of a session that are still to come."""

    __slots__ = ("_followers", "_missing", "is_open", "left", "row")

    def __init__(self, session: Session, row: SessionRow) -> None:
        self.row = row
        self.left = len(session.turns)
        """Number of turns that have not ended."""
        self.is_open = False
        self._missing = [len(turn.after) for turn in session.turns]
        """Number of turns that each turn still waits for."""
        self._followers: list[list[int]] = [[] for _ in session.turns]
        for place, turn in enumerate(session.turns):
            for before in turn.after:
                self._followers[before].append(place)

    def end(self, place: int) -> list[int]:
        """Count an ended turn; return the turns that waited only for this one."""
        self.left -= 1
        ready = []
        for follower in self._followers[place]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                ready.append(follower)
        return ready


class _SessionPlay:
    def __init__(self, sessions: list[Session], settings: SessionSettings) -> None:
        self._random = Random(settings.seed)
        kind = APPLICATION_ARMS[settings.arm]
        profile = settings.profile
        host_tokens = round(settings.host * profile.kv_tokens)
        self._replicas = [
            SessionReplica(index, profile, kind.engine_policy, host_tokens)
            for index in range(settings.replicas)
        ]
        self._arm = kind.make(self._replicas, sessions, **dict(settings.options))
        for replica in self._replicas:
            replica.before_plan = partial(self._hold_finished_contexts, replica)
        self._to_come: list[Session] = []
        if settings.load is None:
            self._result = SessionResult(at_once=0)
        else:
            memory = settings.replicas * profile.kv_tokens
            at_once = round(settings.load * memory / mean_prompt_tokens(sessions))
            self._to_come = self._random.sample(sessions, len(sessions))
            self._result = SessionResult(max(1, min(at_once, len(sessions))))
        self._sessions = sessions
        self._live: dict[str, _Progress] = {}
        self._due: list[tuple[Seconds, int, Session, int]] = []
        self._calls: dict[TurnSequence, TurnCall] = {}
        self._arrivals = 0

    def run(self) -> SessionResult:
        for _ in range(self._result.at_once):
            self._begin_next_session(self._random.uniform(0.0, _ARRIVE_WITHIN_S))
        if not self._result.at_once:
            for session in self._sessions:
                self._begin(session, session.begins_at_s)
        while self._live:
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

    def _begin_next_session(self, at: Seconds) -> None:
        if self._to_come:
            session = self._to_come.pop()
            self._begin(session, at)
            if not self._to_come:
                self._result.under_load_s = at
                self._result.turns_under_load = self._result.turns

    def _begin(self, session: Session, at: Seconds) -> None:
        row = SessionRow(session.name, len(session.turns), at)
        self._live[session.name] = _Progress(session, row)
        for place, turn in enumerate(session.turns):
            if not turn.after:
                self._schedule_turn(session, place, at)

    def _schedule_turn(self, session: Session, place: int, after: Seconds) -> None:
        """Submit a turn its gap later than a time."""
        self._arrivals += 1
        at = after + session.turns[place].gap_s
        heapq.heappush(self._due, (at, self._arrivals, session, place))

    def _submit(self, session: Session, place: int, now: Seconds) -> None:
        progress = self._live[session.name]
        if not progress.is_open:
            progress.is_open = True
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

    def _hold_finished_contexts(
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
            self._continue_session(call, now)

    def _continue_session(self, call: TurnCall, now: Seconds) -> None:
        session = call.session
        progress = self._live[session.name]
        for place in progress.end(call.place):
            self._schedule_turn(session, place, now)
        if progress.left:
            return
        row = self._live.pop(session.name).row
        row.ended_at_s, row.gaps_s = now, session.gaps_s
        self._result.sessions.append(row)
        self._start(self._arm.close(session, now), now)
        self._begin_next_session(now)
