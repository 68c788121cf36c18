"""An experiment of the report: its arms, measures, comparisons, targets and charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Curve of a chart, or its bars of one colour."""

    label: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    """Lower ends of the points' intervals; empty without intervals."""
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart of the report."""

    name: str
    """Base name of the chart's files: letters, digits and hyphens."""
    title: str
    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    kind: str = "line"
    """`line`, `marks` (a line with a mark at each point), `step` or `bars`."""
    categories: Sequence[str] = ()
    """Names of x = 0, 1, … in a chart of bars."""
    is_log_x: bool = False
    is_log_y: bool = False
    y_limit: tuple[float, float] | None = None
    level: float | None = None
    """Height of a thin horizontal reference line."""


class Arm(NamedTuple):
    """A run that an experiment compares with others; arms of a group have the same workload."""

    group: str
    name: str

    def __str__(self) -> str:
        """Return `group · name`."""
        return f"{self.group} · {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Failed:
    """Outcome of a task that raised an error."""

    message: str
    """Message of the error, in one line."""

    @staticmethod
    def of_error(error: Exception) -> "Failed":
        """Return the outcome of an error: type and message in one line, at most 400 characters."""
        return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:400])


class Task(Protocol):
    """Interface of an arm's run with one seed. Hashable, to share runs; can be pickled."""

    def run(self) -> Any:
        """Run the task and return its outcome."""

    def configuration(self) -> Mapping[str, Any]:
        """Return everything that the outcome depends on, for the results file."""

    def __hash__(self) -> int:
        """Return the hash; equal tasks are run once."""


Outcomes: TypeAlias = Mapping[Arm, Any]
"""Outcomes of all arms of an experiment with one seed."""
Found: TypeAlias = Sequence[tuple[int, Outcomes]]
"""Pairs of a seed and its outcomes."""
Measures: TypeAlias = Mapping[Arm, Mapping[str, float | None]]
"""Metrics of each arm with one seed; None for a metric without a value."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a report: seeds, data directory, number of applications."""

    seeds: tuple[int, ...]
    data_dir: Path
    is_quick: bool = False
    applications: int = 300
    """Number of applications in a run of the nine-class suite; arrival windows scale with it."""

    def pick(self, full: Sequence[Any], quick: Sequence[Any]) -> Sequence[Any]:
        """Return the quick or the full list, by the size of the report."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class ReportMetric:
    """Metric of an experiment: a column of its table."""

    name: str
    label: str
    digits: int = 1
    unit: str = ""
    is_share: bool = False
    """Whether values are shown in percent."""
    better: str | None = "low"
    """Direction of better values: `low`, `high`, or None for neither."""
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Paired differences of a metric from another arm of the same group: a column of the table."""

    metric: str
    against: str
    is_relative: bool = True
    """Whether differences are relative to the other arm's value."""


def compare_with(against: str, *metrics: str) -> tuple[PairedComparison, ...]:
    """Return comparisons of several metrics with one arm, relative to the values of that arm."""
    return tuple(PairedComparison(metric, against) for metric in metrics)


@dataclass(frozen=True, slots=True)
class Target:
    """The project's own limit on a mean or on a mean paired difference."""

    text: str
    arm: Arm
    metric: str
    at_most: float | None = None
    at_least: float | None = None
    against: str | None = None


Arms: TypeAlias = Callable[[Scale, int], Mapping[Arm, Task]]
"""Function that returns the arms for a seed."""
Charts: TypeAlias = Callable[[Scale, Found], list[Chart]]
Measure: TypeAlias = Callable[[Outcomes], Measures]
"""Function that returns the metrics of the arms from their outcomes with one seed."""


def measure_each(figures: Callable[[Any], Mapping[str, float | None]]) -> Measure:
    """Return a measure that computes each arm's metrics from the outcome of this arm alone."""
    return lambda outcomes: {arm: figures(outcome) for arm, outcome in outcomes.items()}


@dataclass(frozen=True, slots=True)
class Experiment:
    """Experiment: a section of the report."""

    name: str
    title: str
    source: str
    """Figure or table of the paper that the experiment reproduces, or a note that there is none."""
    about: str
    """Description of the experiment: its runs, how to read them, and differences from the
    source.
    """
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
    """Seeds of runs that were recorded elsewhere; None: the report simulates the runs."""

    def seeds(self, scale: Scale) -> tuple[int, ...]:
        """Return the seeds with which the experiment runs."""
        if self.recorded_seeds is not None:
            return self.recorded_seeds
        if not self.is_drawn:
            return scale.seeds[:1]
        return scale.seeds[: self.quick_seeds] if scale.is_quick else scale.seeds

    def metric(self, name: str) -> ReportMetric:
        """Return the metric with a name.

        Raises:
            KeyError: If the experiment has no metric of that name.
        """
        return {metric.name: metric for metric in self.metrics}[name]
