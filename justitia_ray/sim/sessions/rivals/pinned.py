"""Independent vLLM servers with sticky sessions; first come, first served."""

from collections.abc import Iterable, Sequence

from justitia_ray.sim.sessions.arm import SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds


class PinnedArm(SessionArm):
    """Each session stays on the replica that had the fewest sessions when it began."""

    def __init__(self, replicas: Sequence[SessionReplica], sessions: Sequence[Session]) -> None:
        self._replicas = replicas
        self._sessions = [0] * len(replicas)
        self._of: dict[str, int] = {}

    def replica_of(self, session: Session) -> SessionReplica:
        """Return the replica of a session that has begun and not ended."""
        return self._replicas[self._of[session.name]]

    def open(self, session: Session, now: Seconds) -> None:
        index = min(range(len(self._replicas)), key=self._sessions.__getitem__)
        self._sessions[index] += 1
        self._of[session.name] = index

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        return [Start(self.replica_of(call.session), call)]

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        self._sessions[self._of.pop(session.name)] -= 1
        return ()
