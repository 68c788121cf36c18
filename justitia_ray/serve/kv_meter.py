"""How full the replicas' KV memory has been, integrated over time from their own gauges."""

from dataclasses import dataclass
from typing import Any

from justitia_ray.units import ReplicaId, Seconds, Tokens


@dataclass(slots=True)
class _Gauge:
    reported_at: Seconds
    capacity: Tokens
    used: Tokens
    preemptions: int


class KvMeter:
    """Totals that only grow, so that a reader takes the difference of two readings."""

    def __init__(self) -> None:
        self._gauges: dict[ReplicaId, _Gauge] = {}
        self._used_token_s = 0.0
        self._capacity_token_s = 0.0
        self._preemptions = 0

    def report(
        self,
        replica_id: ReplicaId,
        now: Seconds,
        capacity: Tokens,
        used: Tokens,
        preemptions: int,
    ) -> None:
        """Take a reading; the last one of the replica held until now.

        Args:
            replica_id: The replica.
            now: The instant of the reading, in seconds.
            capacity: Its KV memory, in tokens.
            used: What of it is held, in tokens.
            preemptions: Since the start of its engine.
        """
        last = self._gauges.get(replica_id)
        if last is not None:
            elapsed = now - last.reported_at
            self._used_token_s += last.used * elapsed
            self._capacity_token_s += last.capacity * elapsed
        self._preemptions += preemptions - (last.preemptions if last is not None else 0)
        self._gauges[replica_id] = _Gauge(now, capacity, used, preemptions)

    def totals(self) -> dict[str, Any]:
        """Return KV held and KV there, in token·seconds, and preemptions, since the start."""
        return {
            "used_token_s": self._used_token_s,
            "capacity_token_s": self._capacity_token_s,
            "preemptions": self._preemptions,
        }
