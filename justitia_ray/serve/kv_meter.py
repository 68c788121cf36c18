"""How full the replicas' KV memory has been, integrated over time from their own gauges."""

from dataclasses import dataclass
from typing import Any

from justitia_ray.protocol.messages import Pull
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

    def report(self, pull: Pull, now: Seconds) -> None:
        """Take the reading in a replica's pull; its last one held until `now`, in seconds."""
        capacity = pull.capacity.kv_tokens
        last = self._gauges.get(pull.replica_id)
        if last is not None:
            elapsed = now - last.reported_at
            self._used_token_s += last.used * elapsed
            self._capacity_token_s += last.capacity * elapsed
        self._preemptions += pull.preemptions - (last.preemptions if last is not None else 0)
        used = capacity - pull.free_kv_tokens
        self._gauges[pull.replica_id] = _Gauge(now, capacity, used, pull.preemptions)

    def used_tokens(self, replica_id: ReplicaId) -> Tokens | None:
        """Return the KV that a replica held when it reported last; None if it never did."""
        gauge = self._gauges.get(replica_id)
        return None if gauge is None else gauge.used

    def totals(self) -> dict[str, Any]:
        """Return KV held and KV there, in token·seconds, and preemptions, since the start."""
        return {
            "used_token_s": self._used_token_s,
            "capacity_token_s": self._capacity_token_s,
            "preemptions": self._preemptions,
        }
