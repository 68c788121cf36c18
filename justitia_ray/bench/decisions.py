"""How long the scheduler took to decide between two readings of its counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class Decisions:
    """Events that the scheduling core handled, by how long they took."""

    count: int
    p50_s: Seconds | None
    """An upper end: durations are counted in steps of a quarter of their size."""
    p99_s: Seconds | None
    total_s: Seconds


def decisions_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Decisions:
    """Return what was decided between two `decisions` of `/v1/status`."""
    earlier = {float(at_most): int(count) for at_most, count in before["at_most_s"]}
    counts = [
        (float(at_most), int(count) - earlier.get(float(at_most), 0))
        for at_most, count in after["at_most_s"]
    ]
    total = sum(count for _, count in counts)
    return Decisions(
        total,
        _percentile(counts, total, 0.50),
        _percentile(counts, total, 0.99),
        after["total_s"] - before["total_s"],
    )


def _percentile(counts: list[tuple[Seconds, int]], total: int, share: float) -> Seconds | None:
    seen = 0
    for at_most, count in counts:
        seen += count
        if count and seen >= share * total:
            return at_most
    return None
