"""An experiment of the report: its arms, measures, comparisons, targets and charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of a chart, or its bars of one colour."""

    label: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    """Lower ends of the error bars; empty for a curve without error bars."""
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    """Name of the chart's files without suffix: letters, digits and hyphens."""
    title: str
    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    kind: str = "line"
    """Kind of the chart: `line`, `marks` (a line with a mark at each point), `step` or `bars`."""
    categories: Sequence[str] = ()
    """Labels of the groups of bars, from left to right."""
    is_log_x: bool = False
    is_log_y: bool = False
    y_limit: tuple[float, float] | None = None
    level: float | None = None
    """Height at which a thin horizontal reference line is drawn."""


class Arm(NamedTuple):
    """Name of one of the variants that an experiment compares, such as a policy under one load."""

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.group} · {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Failed:
    """Result of a simulated run that raised an error."""

    message: str
    """Type and message of the error, in one line."""

    @staticmethod
    def from_error(error: Exception) -> "Failed":
        """Return the error's type and message as one line of at most 400 characters."""
        return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:400])


class Task(Protocol):
    """Interface of a simulated run with one seed; equal tasks are run only once."""

    def run(self) -> Any: ...

    def configuration(self) -> Mapping[str, Any]:
        """Return everything that the run's result depends on, for the results file."""

    def __hash__(self) -> int: ...


Outcomes: TypeAlias = Mapping[Arm, Any]
"""Result of each compared variant with one seed."""
Found: TypeAlias = Sequence[tuple[int, Outcomes]]
"""Pairs of a seed and the results of all compared variants with that seed."""
Measures: TypeAlias = Mapping[Arm, Mapping[str, float | None]]
"""Metrics of each compared variant with one seed; None for a missing value."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a report: seeds, data directory, number of applications."""

    seeds: tuple[int, ...]
    data_dir: Path
    is_quick: bool = False
    applications: int = 300
    """Number of applications in a run with the nine application classes."""

    def pick(self, full: Sequence[Any], quick: Sequence[Any]) -> Sequence[Any]:
        """Return `quick` for a quick report and `full` otherwise."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class ReportMetric:
    """A metric that an experiment reports in a column of its table."""

    name: str
    label: str
    digits: int = 1
    unit: str = ""
    is_share: bool = False
    """Whether values of the metric are shown in percent."""
    better: str | None = "low"
    """Direction of better values of the metric: `low`, `high`, or None for neither."""
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Table column with the differences of a metric from another variant, seed by seed."""

    metric: str
    against: str
    is_relative: bool = True
    """Whether a difference is divided by the other variant's value."""


def compare_with(against: str, *metrics: str) -> tuple[PairedComparison, ...]:
    """Return table columns that compare several metrics with one variant's metrics."""
    return tuple(PairedComparison(metric, against) for metric in metrics)


@dataclass(frozen=True, slots=True)
class Target:
    """Limit that this project sets for a metric of a variant."""

    text: str
    arm: Arm
    metric: str
    at_most: float | None = None
    at_least: float | None = None
    against: str | None = None


Arms: TypeAlias = Callable[[Scale, int], Mapping[Arm, Task]]
"""Function that returns the compared variants of an experiment for a seed."""
Charts: TypeAlias = Callable[[Scale, Found], list[Chart]]
Measure: TypeAlias = Callable[[Outcomes], Measures]
"""Function that computes the metrics of all variants from their results with one seed."""


def measure_each(figures: Callable[[Any], Mapping[str, float | None]]) -> Measure:
    """Return a function that computes each variant's metrics from its own result alone."""
    return lambda outcomes: {arm: figures(outcome) for arm, outcome in outcomes.items()}


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment, shown as a section of the report."""

    name: str
    title: str
    source: str
    """Figure or table of the paper that the experiment reproduces, or a note that none exists."""
    about: str
    """Text about the experiment's runs, how to read them, and the differences from the paper."""
    arms: Arms
    measure: Measure
    metrics: tuple[ReportMetric, ...]
    comparisons: tuple[PairedComparison, ...] = ()
    targets: tuple[Target, ...] = ()
    charts: Charts = lambda _scale, _found: []
    is_drawn: bool = True
    """Whether a seed changes the workload; if it does not, the experiment runs once."""
    quick_seeds: int | None = None
    """Largest number of seeds in a quick report, for runs that do not become smaller."""
    recorded_seeds: tuple[int, ...] | None = None
    """Seeds of runs on a real service; None: the report simulates the runs."""

    def seeds(self, scale: Scale) -> tuple[int, ...]:
        """Return the seeds with which the experiment runs."""
        if self.recorded_seeds is not None:
            return self.recorded_seeds
        if not self.is_drawn:
            return scale.seeds[:1]
        return scale.seeds[: self.quick_seeds] if scale.is_quick else scale.seeds

    def metric(self, name: str) -> ReportMetric:
        """Return the metric of a given name.

        Raises:
            KeyError: If the experiment has no metric of that name.
        """
        return {metric.name: metric for metric in self.metrics}[name]
