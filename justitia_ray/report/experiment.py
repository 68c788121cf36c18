"""What an experiment is: arms, measures, what is compared with what, and what is drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from justitia_ray.report.chart import Chart


class Arm(NamedTuple):
    """One way of doing it; arms of one group are on the same workload and are compared."""

    group: str
    name: str

    def __str__(self) -> str:
        """Return `group · name`."""
        return f"{self.group} · {self.name}" if self.group else self.name


class Task(Protocol):
    """What one arm does on one seed: hashable, so that experiments share runs, and picklable."""

    def run(self) -> Any:
        """Do it and return what was found."""

    def configuration(self) -> Mapping[str, Any]:
        """Return all that it depends on, for its line in the results."""

    def __hash__(self) -> int:
        """Equal tasks are run once."""


Outcomes: TypeAlias = Mapping[Arm, Any]
"""What the arms of one seed found."""
Found: TypeAlias = Sequence[tuple[int, Outcomes]]
"""The outcomes of every seed."""
Measures: TypeAlias = Mapping[Arm, Mapping[str, float | None]]
"""Of one seed: the metrics of each arm; None where a metric has no value there."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    seeds: tuple[int, ...]
    data_dir: Path
    is_quick: bool = False
    applications: int = 300
    """Of one run of the nine-class suite; windows are in proportion."""

    def pick(self, full: Sequence[Any], quick: Sequence[Any]) -> Sequence[Any]:
        """Return the values that an experiment goes through at this scale."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of an experiment's table."""

    name: str
    label: str
    digits: int = 1
    unit: str = ""
    is_share: bool = False
    """Shown in percent."""
    better: str | None = "low"
    """`low`, `high`, or None where neither is better."""
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column of paired differences from one arm of the same group."""

    metric: str
    against: str
    is_relative: bool = True
    """As a share of the other arm's value; else as a plain difference."""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on a mean, or on a mean paired difference, that the project set itself."""

    text: str
    arm: Arm
    metric: str
    at_most: float | None = None
    at_least: float | None = None
    against: str | None = None


def _nothing(_scale: Scale, _found: Found) -> list[Chart]:
    return []


@dataclass(frozen=True, slots=True)
class Experiment:
    """One section of the page."""

    name: str
    title: str
    source: str
    """The figure or table that it stands beside, or that there is none."""
    about: str
    """What is run, how to read it, and in what it differs from the source."""
    arms: Callable[[Scale, int], Mapping[Arm, Task]]
    """The arms on one seed."""
    measure: Callable[[Scale, Outcomes], Measures]
    metrics: tuple[Metric, ...]
    comparisons: tuple[Comparison, ...] = ()
    targets: tuple[Target, ...] = ()
    charts: Callable[[Scale, Found], list[Chart]] = field(default=_nothing)
    is_drawn: bool = True
    """Whether seeds draw anything: what draws nothing is run once."""
    quick_seeds: int | None = None
    """How many seeds at most a quick report takes of it, where runs do not become smaller."""
    recorded_seeds: tuple[int, ...] | None = None
    """The seeds of runs that were made elsewhere; None: it is run here."""

    def seeds(self, scale: Scale) -> tuple[int, ...]:
        """Return the seeds that it is run on."""
        if self.recorded_seeds is not None:
            return self.recorded_seeds
        if not self.is_drawn:
            return scale.seeds[:1]
        return scale.seeds[: self.quick_seeds] if scale.is_quick else scale.seeds

    def metric(self, name: str) -> Metric:
        """Return a metric by name.

        Raises:
            KeyError: If it has none of that name.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)
