"""Common part of ThunderAgent and MORI: programs that are paused between turns, outside engines.

A program (a session) has a place on a replica, or none. Turns of a program without a place wait
until the program gets a place. Places are given in the control loop, which runs every few seconds,
and in this implementation also when a program submits a turn or ends. The turns of a program may
run in parallel.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from justitia_ray.sim.sessions.arm import SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds, Tokens

_EVERY_S: Seconds = 5.0
_LONGEST_WAIT_S: Seconds = 1800.0
"""Seconds after which a waiting agent gets a replica in any case."""
_BUFFER: Tokens = 100
"""Tokens reserved for the growth of each agent's context."""


ProgramContext: TypeAlias = Literal["sum", "longest"]
"""How the context of a program is counted while its turns run in parallel: the sum of their
prompts, or the longest prompt.
"""


@dataclass(slots=True, eq=False)
class Program:
    """State of an agent's session in a scheduler that pauses and resumes agents."""

    name: str
    since: Seconds
    """Time since which the agent runs, waits for a tool, or waits for a replica."""
    tokens: Tokens = 0
    """Length of the program's context in tokens: of the turns that run or wait, or of the last."""
    replica: SessionReplica | None = None
    """Replica on which the program has a place; None: it is new or paused."""
    pending: list[TurnCall] = field(default_factory=list)
    """Turns that wait until the program has a place."""
    running: dict[str, TurnCall] = field(default_factory=dict)
    """Turns that run, by name."""
    is_marked: bool = False
    """Whether the program loses its place when its running turns have ended."""
    turns: int = 0
    """Number of the agent's turns that have ended."""

    @property
    def is_running(self) -> bool:
        return bool(self.running)


class ProgramArm(SessionArm):
    """A scheduler with a table of programs and a periodic control loop.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run; not used.
        context: Context of a program whose turns run in parallel.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        context: ProgramContext = "sum",
    ) -> None:
        self.replicas = replicas
        self._context = context
        self.programs: dict[str, Program] = {}
        self.wakes_at = _EVERY_S

    def open(self, session: Session, now: Seconds) -> None:
        self.programs[session.name] = Program(session.name, now)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Start a turn on the replica of its agent; without a replica, the turn waits."""
        program = self.programs[call.session.name]
        if not (program.running or program.pending):
            self.returned(program, now)
            program.since = now
        program.pending.append(call)
        program.tokens = self._tokens(program)
        if program.replica is not None and not program.is_marked:
            return self._run(program, now)
        return self.place(now)

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Record that the agents of ended turns now wait for tools."""
        for call in calls:
            program = self.programs[call.session.name]
            program.running.pop(call.name, None)
            program.turns += 1
            if program.running:
                program.tokens = self._tokens(program)
                continue
            program.tokens = call.turn.prompt_tokens + call.turn.output_tokens
            program.since = now
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
            self.pause_until_fitting(replica, now)
        return starts

    @abstractmethod
    def place(self, now: Seconds) -> list[Start]:
        """Assign replicas to agents without one, as memory allows."""

    @abstractmethod
    def pause_until_fitting(self, replica: SessionReplica, now: Seconds) -> None:
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

    def has_waited_longest(self, program: Program, now: Seconds) -> bool:
        """Return whether a waiting agent must get a replica in any case."""
        return now - program.since >= _LONGEST_WAIT_S

    def start(self, program: Program, replica: SessionReplica, now: Seconds) -> list[Start]:
        """Assign a replica to an agent, and start its waiting turn, if any."""
        program.replica = replica
        return self._run(program, now)

    def _run(self, program: Program, now: Seconds) -> list[Start]:
        assert program.replica is not None
        calls, program.pending = program.pending, []
        if calls and not program.running:
            program.since = now
        program.running |= {call.name: call for call in calls}
        return [Start(program.replica, call) for call in calls]

    def _tokens(self, program: Program) -> Tokens:
        calls = (*program.running.values(), *program.pending)
        prompts = [call.turn.prompt_tokens for call in calls]
        return sum(prompts) if self._context == "sum" else max(prompts)
