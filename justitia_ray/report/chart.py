"""A figure as data: what is drawn, not how."""

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve, or the bars of one colour."""

    label: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    """Lower ends of intervals, one a point; none: nothing is drawn of them."""
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure."""

    name: str
    """Of its files: letters, digits and hyphens."""
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: str = "line"
    """`line`, `marks` (a line with a mark at each point), `step`, `bars`."""
    categories: Sequence[str] = ()
    """Of `bars`: the names of x = 0, 1, …"""
    is_log_x: bool = False
    is_log_y: bool = False
    y_limit: tuple[float, float] | None = None
    level: float | None = None
    """Where a thin line is drawn to compare with."""
