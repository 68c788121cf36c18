"""MORI (arXiv 2606.00866), re-implemented: programs are ranked by their idleness.

A program either runs a turn or acts (waits for a tool or a user). Its idleness is the share of
acting in its last five cycles of running and acting, including the present one; waiting for memory
does not count. Programs whose contexts fit have a *place* on a replica. The idlest programs lose
their places first, acting programs before running ones. Programs without a place get one in this
order: those with a waiting turn, the least idle first; then new programs, the smallest first. A
program may take the places of acting programs that are idler than itself.

In MORI engines evict the blocks of busy programs last. In this simulation their prompts are held,
and given up when memory is short, the idlest program's first. MORI moves contexts of programs
without a place to host memory, with an order and an admission of its own. In this simulation all
schedulers have the same host memory, or none, with eviction in the order of use.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from justitia_ray.sim.sessions.arm import Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.programs import Program, ProgramArm, ProgramContext
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds, Tokens

_CYCLES = 5


class MoriArm(ProgramArm):
    """Keeps the contexts of agents that wait least for tools.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run; not used.
        new: Idleness of a program that has run no turn; the paper does not give it.
        context: Context of a program whose turns run in parallel.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        new: float = 1.0,
        context: ProgramContext = "sum",
    ) -> None:
        super().__init__(replicas, sessions, context)
        self._capacity: Tokens = replicas[0].profile.kv_tokens
        self._new = new
        self._cycles: dict[str, deque[list[Seconds]]] = {}

    def open(self, session: Session, now: Seconds) -> None:
        super().open(session, now)
        self._cycles[session.name] = deque(maxlen=_CYCLES)

    def returned(self, program: Program, now: Seconds) -> None:
        """Record that an agent's tool has ended."""
        if cycles := self._cycles[program.name]:
            cycles[-1][1] = now - program.since

    def hold(self, replica: SessionReplica, call: TurnCall, now: Seconds) -> None:
        """Hold the prompt of a program that keeps its place, when its last running turn ends."""
        program = self.programs[call.session.name]
        program.running.pop(call.name)
        if program.running:
            return
        self._cycles[program.name].append([now - program.since, 0.0])
        if not program.is_marked:
            rank = self._past_waiting_share(program)
            replica.holds.add(program.name, call.content, call.turn.prompt_tokens, rank)

    def pause(self, program: Program, now: Seconds) -> None:
        """Stop an agent until a replica has room, and let its context be evicted."""
        replica = program.replica
        super().pause(program, now)
        if replica is not None:
            replica.release(program.name, now)

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        del self._cycles[session.name]
        return super().close(session, now)

    def pause_until_fitting(self, replica: SessionReplica, now: Seconds) -> None:
        """Pause the agents that wait longest for tools until the remaining agents fit."""
        excess = -self._free_memory_tokens(replica)
        if excess <= 0:
            return
        kept = [program for program in self.on(replica) if not program.is_marked]
        kept.sort(key=lambda one: (one.is_running, -self._waiting_time_share(one, now)))
        for program in kept[:-1]:
            if excess <= 0:
                return
            excess -= self.need(program)
            if program.is_running:
                program.is_marked = True
            else:
                self.pause(program, now)

    def place(self, now: Seconds) -> list[Start]:
        """Assign replicas to agents with waiting turns, as memory allows."""
        starts: list[Start] = []
        for program in sorted(self.pending(), key=lambda one: self._pause_order(one, now)):
            replica = self._roomiest_replica(program, now)
            if replica is None:
                continue
            self._pause_until_agent_fits(program, replica, now)
            starts += self.start(program, replica, now)
        return starts

    def _pause_order(self, program: Program, now: Seconds) -> tuple[bool, bool, float]:
        if not program.turns:
            return not self.has_waited_longest(program, now), True, program.tokens
        return (
            not self.has_waited_longest(program, now),
            False,
            self._waiting_time_share(program, now),
        )

    def _roomiest_replica(self, program: Program, now: Seconds) -> SessionReplica | None:
        """Return the replica with most room for an agent."""
        need = self.need(program)
        rooms = {one: self._free_memory_tokens(one) for one in self.replicas}
        best = max(rooms, key=lambda one: rooms[one])
        if need <= rooms[best]:
            return best
        for replica in self.replicas:
            rooms[replica] += sum(
                map(self.need, self._longer_waiting_agents(program, replica, now))
            )
        best = max(rooms, key=lambda one: rooms[one])
        return best if need <= rooms[best] or self.has_waited_longest(program, now) else None

    def _pause_until_agent_fits(
        self, program: Program, replica: SessionReplica, now: Seconds
    ) -> None:
        """Pause agents of a replica that wait for tools, until another agent fits."""
        for other in self._longer_waiting_agents(program, replica, now):
            if self.need(program) <= self._free_memory_tokens(replica):
                return
            self.pause(other, now)

    def _longer_waiting_agents(
        self, program: Program, replica: SessionReplica, now: Seconds
    ) -> list[Program]:
        """Return the agents of a replica that wait longer for tools than a given agent."""
        own = self._waiting_time_share(program, now)
        acting = [one for one in self.on(replica) if not one.is_running]
        idler = [one for one in acting if self._waiting_time_share(one, now) > own]
        return sorted(idler, key=lambda one: self._waiting_time_share(one, now), reverse=True)

    def _free_memory_tokens(self, replica: SessionReplica) -> Tokens:
        kept = [program for program in self.on(replica) if not program.is_marked]
        return self._capacity - sum(map(self.need, kept))

    def _waiting_time_share(self, program: Program, now: Seconds) -> float:
        """Return the share of time that an agent waits for tools."""
        acts = bool(program.turns) and not program.is_running and not program.pending
        return self._past_waiting_share(program, now - program.since if acts else 0.0)

    def _past_waiting_share(self, program: Program, gap_s: Seconds = 0.0) -> float:
        cycles = self._cycles[program.name]
        if not cycles:
            return self._new
        ran_s = sum(ran for ran, _ in cycles)
        acted_s = gap_s + sum(acted for _, acted in cycles)
        return acted_s / (ran_s + acted_s) if ran_s + acted_s > 0 else self._new
