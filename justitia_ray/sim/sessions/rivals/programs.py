"""Common part of ThunderAgent and MORI: programs that are paused between turns, outside engines.

A program (a session) has a place on a replica, or none. Turns of a program without a place wait
until the program gets a place. Places are given in the control loop, which runs every few seconds,
and in this implementation also when a program submits a turn or ends.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from justitia_ray.sim.sessions.arm import SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds, Tokens

_EVERY_S: Seconds = 5.0
_LONGEST_WAIT_S: Seconds = 1800.0
"""Seconds after which a waiting agent gets a replica in any case."""
_BUFFER: Tokens = 100
"""Tokens reserved for the growth of each agent's context."""


@dataclass(slots=True, eq=False)
class Program:
    """State of an agent's session in a scheduler that pauses and resumes agents."""

    name: str
    since: Seconds
    """Time since which the agent runs, waits for a tool, or waits for a replica."""
    tokens: Tokens = 0
    """Length of the agent's context at its last turn, in tokens."""
    replica: SessionReplica | None = None
    """Replica of the agent; None: the agent is new or paused."""
    pending: TurnCall | None = None
    """Turn that waits until the agent has a replica."""
    is_running: bool = False
    is_marked: bool = False
    """Whether the agent leaves its replica when its running turn ends."""
    turns: int = 0
    """Number of the agent's turns that have ended."""


class ProgramArm(SessionArm):
    """A scheduler that pauses and resumes agents in a periodic control loop."""

    def __init__(self, replicas: Sequence[SessionReplica], sessions: Sequence[Session]) -> None:
        self.replicas = replicas
        self.programs: dict[str, Program] = {}
        self.wakes_at = _EVERY_S

    def open(self, session: Session, now: Seconds) -> None:
        self.programs[session.name] = Program(session.name, now)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Start a turn on the replica of its agent; without a replica, the turn waits."""
        program = self.programs[call.session.name]
        self.returned(program, now)
        program.tokens = call.turn.prompt_tokens
        program.pending, program.since = call, now
        if program.replica is not None:
            return [self._run(program, now)]
        return self.place(now)

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Record that the agents of ended turns now wait for tools."""
        for call in calls:
            program = self.programs[call.session.name]
            program.tokens = call.turn.prompt_tokens + call.turn.output_tokens
            program.is_running, program.since = False, now
            program.turns += 1
            if program.is_marked:
                self.pause(program, now)
        return ()

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        self.pause(self.programs.pop(session.name), now)
        return self.place(now)

    def wake(self, now: Seconds) -> Iterable[Start]:
        """Pause and resume agents, as the control loop does periodically."""
        self.wakes_at = now + _EVERY_S
        starts = self.place(now)
        for replica in self.replicas:
            self.relieve(replica, now)
        return starts

    @abstractmethod
    def place(self, now: Seconds) -> list[Start]:
        """Assign replicas to agents without one, as memory allows."""

    @abstractmethod
    def relieve(self, replica: SessionReplica, now: Seconds) -> None:
        """Pause agents of a replica until its memory suffices for the remaining agents."""

    def returned(self, program: Program, now: Seconds) -> None:
        """Record that an agent submits a turn, before its status changes."""

    def pause(self, program: Program, now: Seconds) -> None:
        """Stop an agent until it gets another replica."""
        program.replica, program.is_marked = None, False

    def on(self, replica: SessionReplica) -> list[Program]:
        """Return the agents on a replica."""
        return [program for program in self.programs.values() if program.replica is replica]

    def need(self, program: Program) -> Tokens:
        """Return the memory that an agent takes, limited to a replica's memory."""
        return min(program.tokens + _BUFFER, self.replicas[0].profile.kv_tokens)

    def pending(self) -> list[Program]:
        """Return the agents whose turns wait for a replica."""
        return [one for one in self.programs.values() if one.replica is None and one.pending]

    def has_waited(self, program: Program, now: Seconds) -> bool:
        """Return whether a waiting agent must get a replica in any case."""
        return now - program.since >= _LONGEST_WAIT_S

    def start(self, program: Program, replica: SessionReplica, now: Seconds) -> list[Start]:
        """Assign a replica to an agent, and start its waiting turn, if any."""
        program.replica = replica
        return [self._run(program, now)] if program.pending else []

    def _run(self, program: Program, now: Seconds) -> Start:
        assert program.replica is not None
        assert program.pending is not None
        call, program.pending = program.pending, None
        program.is_running, program.since = True, now
        return Start(program.replica, call)
