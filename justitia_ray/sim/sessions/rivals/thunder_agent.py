"""ThunderAgent (arXiv 2602.13692), re-implemented: programs pause when their contexts exceed M.

The rules are those of the authors' public description of the scheduler. The memory use of a replica
is the sum of the contexts of the programs that run there, plus a weight times the contexts of
programs that act (wait for a tool), less what running programs share, plus a buffer for each
program. If the use exceeds the memory, programs are paused: acting programs first, the smallest
first; running programs are marked, and paused when their turn ends. Paused programs with a waiting
turn are resumed before new programs start, and these before acting programs. Those that fit
together are placed from the largest to the smallest, each on the replica with most room. When this
is estimated, the contexts of acting programs may decay by half each second.
"""

from collections.abc import Sequence

from justitia_ray.sim.sessions.arm import Start
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.programs import Program, ProgramArm, ProgramContext
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds, Tokens


class ThunderAgentArm(ProgramArm):
    """Pauses and resumes agents by the memory that their contexts take.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run; not used.
        acting_weight: Weight of the contexts of acting programs.
        decays: Whether the contexts of acting programs decay in the estimate for resuming.
        context: Context of a program whose turns run in parallel.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        acting_weight: float = 1.0,
        decays: bool = False,
        context: ProgramContext = "sum",
    ) -> None:
        super().__init__(replicas, sessions, context)
        self._weight = acting_weight
        self._decays = decays

    def place(self, now: Seconds) -> list[Start]:
        """Resume agents and start new ones while memory is left."""
        starts: list[Start] = []
        rooms = {
            one: self._free_memory_tokens(one, now, decays=self._decays) for one in self.replicas
        }
        total, chosen = sum(max(0.0, room) for room in rooms.values()), list[Program]()
        for program in self._agents_without_replica():
            if program.pending and self.has_waited_longest(program, now):
                starts += self.start(program, max(rooms, key=lambda one: rooms[one]), now)
            elif self.need(program) <= total:
                total -= self.need(program)
                chosen.append(program)
        for program in sorted(chosen, key=self.need, reverse=True):
            replica = max(rooms, key=lambda one: rooms[one])
            if self.need(program) <= rooms[replica]:
                rooms[replica] -= self.need(program)
                starts += self.start(program, replica, now)
        return starts

    def pause_until_fitting(self, replica: SessionReplica, now: Seconds) -> None:
        """Pause agents until the use of a replica is within its memory."""
        excess = -self._free_memory_tokens(replica, now, decays=False)
        for program in sorted(self.on(replica), key=lambda one: (one.is_running, one.tokens)):
            if excess <= 0:
                return
            if program.is_running:
                program.is_marked = True
                excess -= self.need(program)
            else:
                excess -= self._weight * program.tokens
                self.pause(program, now)

    def _agents_without_replica(self) -> list[Program]:
        """Return agents without a replica: those with a waiting turn first, then new ones."""
        waiting = [one for one in self.programs.values() if one.replica is None]
        return sorted(waiting, key=lambda one: (not one.pending, not one.turns, one.since))

    def _free_memory_tokens(self, replica: SessionReplica, now: Seconds, *, decays: bool) -> float:
        """Return the memory that is left for further agents; negative if the use exceeds it."""
        used = 0.0
        running: Tokens = 0
        for program in self.on(replica):
            if program.is_running:
                running += 0 if program.is_marked else self.need(program)
            else:
                decay = 2.0 ** -(now - program.since) if decays else 1.0
                used += self._weight * decay * self.need(program)
        steps = replica.steps
        computed = sum(one.computed for one in steps.running)
        held = (steps.pool.blocks - steps.pool.free_blocks) * replica.profile.block_size
        return replica.profile.kv_tokens - used - running + max(0, computed - held)
