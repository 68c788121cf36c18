"""An experiment of the report: its arms, measures, comparisons, targets and charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A curve, or the bars of one colour."""

    label: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    """Lower ends of intervals, one per point; empty: no intervals are drawn."""
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the report."""

    name: str
    """Base name of the files: letters, digits and hyphens."""
    title: str
    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    kind: str = "line"
    """`line`, `marks` (a line with a mark at each point), `step` or `bars`."""
    categories: Sequence[str] = ()
    """Names of x = 0, 1, … of a `bars` chart."""
    is_log_x: bool = False
    is_log_y: bool = False
    y_limit: tuple[float, float] | None = None
    level: float | None = None
    """Height of a thin horizontal reference line."""


class Arm(NamedTuple):
    """An arm of an experiment; arms of one group share a workload and are compared."""

    group: str
    name: str

    def __str__(self) -> str:
        """Return `group · name`."""
        return f"{self.group} · {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Failed:
    """Outcome of a task that raised."""

    message: str
    """Message of the error, in one line."""

    @staticmethod
    def of(error: Exception) -> "Failed":
        """Return the `Failed` of an error: type and message in one line of at most 400 chars."""
        return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:400])


class Task(Protocol):
    """An arm on one seed: hashable, so that experiments share runs, and picklable."""

    def run(self) -> Any:
        """Run the task and return its outcome."""

    def configuration(self) -> Mapping[str, Any]:
        """Return everything that the outcome depends on; written to the results."""

    def __hash__(self) -> int:
        """Return the hash; equal tasks are run once."""


Outcomes: TypeAlias = Mapping[Arm, Any]
"""Outcomes of the arms on one seed."""
Found: TypeAlias = Sequence[tuple[int, Outcomes]]
"""Outcomes of every seed, as (seed, outcomes)."""
Measures: TypeAlias = Mapping[Arm, Mapping[str, float | None]]
"""Metrics of each arm on one seed; None where a metric has no value."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a report: seeds, data directory, number of applications."""

    seeds: tuple[int, ...]
    data_dir: Path
    is_quick: bool = False
    applications: int = 300
    """Number of applications in one run of the nine-class suite; arrival windows scale with it."""

    def pick(self, full: Sequence[Any], quick: Sequence[Any]) -> Sequence[Any]:
        """Return the quick or the full list of values, by the size of the report."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class ReportMetric:
    """A column of an experiment's table."""

    name: str
    label: str
    digits: int = 1
    unit: str = ""
    is_share: bool = False
    """Whether the value is shown in percent."""
    better: str | None = "low"
    """Direction of better values: `low`, `high`, or None for neither."""
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A column of paired differences from another arm of the same group."""

    metric: str
    against: str
    is_relative: bool = True
    """Whether differences are shares of the other arm's value."""


def compare_with(against: str, *metrics: str) -> tuple[PairedComparison, ...]:
    """Return comparisons of several metrics with one arm, as shares of its values."""
    return tuple(PairedComparison(metric, against) for metric in metrics)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit that the project sets itself on a mean or on a mean paired difference."""

    text: str
    arm: Arm
    metric: str
    at_most: float | None = None
    at_least: float | None = None
    against: str | None = None


Arms: TypeAlias = Callable[[Scale, int], Mapping[Arm, Task]]
"""Function that returns the arms on one seed."""
Charts: TypeAlias = Callable[[Scale, Found], list[Chart]]
Measure: TypeAlias = Callable[[Outcomes], Measures]
"""Function that returns the metrics of the arms on one seed."""


def measure_each(figures: Callable[[Any], Mapping[str, float | None]]) -> Measure:
    """Return a measure that computes each arm's metrics from its own outcome only."""
    return lambda outcomes: {arm: figures(outcome) for arm, outcome in outcomes.items()}


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: one section of the page."""

    name: str
    title: str
    source: str
    """Figure or table of the paper that the experiment reproduces, or a note that there is none."""
    about: str
    """Description: the runs, how to read them, and differences from the source."""
    arms: Arms
    measure: Measure
    metrics: tuple[ReportMetric, ...]
    comparisons: tuple[PairedComparison, ...] = ()
    targets: tuple[Target, ...] = ()
    charts: Charts = lambda _scale, _found: []
    is_drawn: bool = True
    """Whether a seed changes the workload; if not, the experiment runs once."""
    quick_seeds: int | None = None
    """Largest number of seeds in a quick report, for runs that do not become smaller."""
    recorded_seeds: tuple[int, ...] | None = None
    """Seeds of runs recorded elsewhere; None: the report runs the experiment."""

    def seeds(self, scale: Scale) -> tuple[int, ...]:
        """Return the seeds on which the experiment runs."""
        if self.recorded_seeds is not None:
            return self.recorded_seeds
        if not self.is_drawn:
            return scale.seeds[:1]
        return scale.seeds[: self.quick_seeds] if scale.is_quick else scale.seeds

    def metric(self, name: str) -> ReportMetric:
        """Return a metric by name.

        Raises:
            KeyError: If the experiment has no metric of that name.
        """
        return {metric.name: metric for metric in self.metrics}[name]
