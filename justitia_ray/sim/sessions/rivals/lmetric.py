"""LMetric (arXiv 2603.15202), re-implemented: placement by uncached tokens times requests."""

from collections.abc import Iterable, Sequence

from justitia_ray.sim.sessions.arm import SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds


class LMetricArm(SessionArm):
    """Sends each turn to the replica with the least product of prompt tokens and requests.

    The prompt tokens are those still to be computed on the replica, including the turn's. Each
    replica serves first come, first served.
    """

    def __init__(self, replicas: Sequence[SessionReplica], sessions: Sequence[Session]) -> None:
        self._replicas = replicas

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        prompt = call.turn.prompt_tokens

        def product(replica: SessionReplica) -> tuple[int, int]:
            size = replica.profile.block_size
            cached = replica.steps.pool.find(call.content, (prompt - 1) // size).blocks * size
            uncomputed = prompt - cached + replica.uncomputed_tokens
            return uncomputed * (replica.sequences + 1), replica.index

        return [Start(min(self._replicas, key=product), call)]
