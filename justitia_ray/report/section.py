"""What the page shows of one experiment: numbers, each with the line of the results it is from."""

from dataclasses import dataclass, field

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Metric, Target


@dataclass(frozen=True, slots=True)
class Number:
    """The value of a line of the results."""

    value: float
    line: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the table: what was found, its interval, what a paper says."""

    mean: Number
    low: Number | None = None
    high: Number | None = None
    published: tuple[Number, str] | None = None
    """With its source."""
    verdict: str = ""
    """Of a difference: `better`, `worse`, or `level` where the interval holds zero."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: a metric, or differences of one."""

    metric: Metric
    comparison: Comparison | None = None

    @property
    def against(self) -> str | None:
        """The arm that differences are taken from."""
        return None if self.comparison is None else self.comparison.against

    @property
    def is_relative(self) -> bool:
        """Whether its numbers are shares of another arm's."""
        return self.comparison is not None and self.comparison.is_relative


@dataclass(frozen=True, slots=True)
class Judged:
    """A target and what was reached."""

    target: Target
    metric: Metric
    reached: Cell
    limit: Number
    is_met: bool


@dataclass(slots=True)
class Section:
    """One experiment."""

    experiment: Experiment
    columns: list[Column] = field(default_factory=list)
    groups: dict[str, dict[Arm, list[Cell | None]]] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    seeds: tuple[int, ...] = ()
    failure: str | None = None
    """Why there is nothing to show, in one line."""
