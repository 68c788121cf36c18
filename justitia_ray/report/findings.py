"""Puts the outcomes of an experiment's arms together: lines of results, and what the page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Metric,
    Outcomes,
    Scale,
    Target,
    Task,
)
from justitia_ray.report.published import Published
from justitia_ray.report.records import Ledger, Record
from justitia_ray.report.runner import Failed
from justitia_ray.report.statistics import (
    Estimate,
    differences,
    estimate,
    relative_differences,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number on the page: the value of a line of the results."""

    value: float
    line: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of the table: what was found, its interval, what a paper says."""

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
    """One experiment as the page shows it."""

    experiment: Experiment
    columns: list[Column] = field(default_factory=list)
    groups: dict[str, dict[Arm, list[Cell | None]]] = field(default_factory=dict)
    judged: list[Judged] = field(default_factory=list)
    charts: list[tuple[Chart, list[int]]] = field(default_factory=list)
    """Each with the lines of its series."""
    seeds: tuple[int, ...] = ()
    failure: str | None = None


class Findings:
    """Turns outcomes into sections, and writes every number into the ledger on the way."""

    def __init__(self, scale: Scale, ledger: Ledger, published: Sequence[Published]) -> None:
        self._scale = scale
        self._ledger = ledger
        self._published = published

    def section(
        self,
        experiment: Experiment,
        arms: Mapping[int, Mapping[Arm, Task]],
        found: Mapping[Task, Any],
    ) -> Section:
        """Return an experiment's section; one that cannot be had says why.

        Args:
            experiment: The experiment.
            arms: Its arms, by seed.
            found: What every task found.
        """
        section = Section(experiment, seeds=tuple(arms))
        outcomes = {
            seed: {arm: found[task] for arm, task in tasks.items()} for seed, tasks in arms.items()
        }
        section.failure = _first_failure(outcomes)
        if section.failure is None:
            try:
                self._fill(section, arms, outcomes)
            except Exception as error:
                section.failure = Failed.of(error).message
        return section

    def _fill(
        self,
        section: Section,
        arms: Mapping[int, Mapping[Arm, Task]],
        outcomes: Mapping[int, Outcomes],
    ) -> None:
        values = self._runs(section.experiment, arms, outcomes)
        table = _Table(section.experiment, self._ledger, self._published, values)
        section.columns = [Column(metric) for metric in section.experiment.metrics]
        section.columns += [
            Column(section.experiment.metric(c.metric), c) for c in section.experiment.comparisons
        ]
        for arm in values:
            row = [table.cell(arm, column) for column in section.columns]
            section.groups.setdefault(arm.group, {})[arm] = row
        section.judged = [
            judged
            for target in section.experiment.targets
            if (judged := table.judge(target)) is not None
        ]
        for chart in section.experiment.charts(self._scale, list(outcomes.items())):
            section.charts.append((chart, self._series(section.experiment, chart)))

    def _runs(
        self,
        experiment: Experiment,
        arms: Mapping[int, Mapping[Arm, Task]],
        outcomes: Mapping[int, Outcomes],
    ) -> dict[Arm, dict[str, list[float]]]:
        """Measure every seed, note each value, and return them by arm and metric.

        A metric that one seed has no value for is left out of its arm: means over other seeds than
        those of the arm beside it would not be paired.
        """
        measured = {
            seed: experiment.measure(self._scale, found) for seed, found in outcomes.items()
        }
        values: dict[Arm, dict[str, list[float]]] = {}
        for arm in next(iter(outcomes.values())):
            values[arm] = {}
            for metric in experiment.metrics:
                row = [measured[seed].get(arm, {}).get(metric.name) for seed in outcomes]
                for seed, value in zip(outcomes, row, strict=True):
                    self._ledger.add(
                        Record(
                            experiment.name,
                            str(arm),
                            metric.name,
                            value,
                            seed=seed,
                            unit=metric.unit,
                            is_timing=metric.is_timing,
                            configuration=arms[seed][arm].configuration(),
                        )
                    )
                known = [value for value in row if value is not None]
                if len(known) == len(row):
                    values[arm][metric.name] = known
        return values

    def _series(self, experiment: Experiment, chart: Chart) -> list[int]:
        timing = any(metric.is_timing for metric in experiment.metrics)
        lines = []
        for series in chart.series:
            for part, points in (
                (series.label, series.points),
                (f"{series.label} low", _ends(series.points, series.low)),
                (f"{series.label} high", _ends(series.points, series.high)),
            ):
                if points:
                    record = Record(
                        experiment.name,
                        part,
                        chart.name,
                        list(points),
                        statistic="series",
                        unit=f"{chart.x_label}; {chart.y_label}",
                        is_timing=timing,
                    )
                    lines.append(self._ledger.add(record))
        return lines


class _Table:
    """The aggregates of one experiment."""

    def __init__(
        self,
        experiment: Experiment,
        ledger: Ledger,
        published: Sequence[Published],
        values: Mapping[Arm, Mapping[str, list[float]]],
    ) -> None:
        self._experiment = experiment
        self._ledger = ledger
        self._published = [p for p in published if p.experiment == experiment.name]
        self._values = values
        self._cells: dict[tuple[Arm, Column], Cell | None] = {}

    def cell(self, arm: Arm, column: Column) -> Cell | None:
        """Return what stands there; None if there is nothing."""
        if (arm, column) not in self._cells:
            self._cells[arm, column] = self._made(arm, column)
        return self._cells[arm, column]

    def _made(self, arm: Arm, column: Column) -> Cell | None:
        metric, comparison = column.metric, column.comparison
        found = self._estimate(arm, metric.name, comparison)
        published = self._find_published(arm, column)
        if found is None:
            return None
        statistic = "mean" if comparison is None else "difference"
        names = (statistic, f"{statistic}_low", f"{statistic}_high")
        mean, low, high = (
            None if value is None else self._note(arm, column, name, value)
            for name, value in zip(names, (found.mean, found.low, found.high), strict=True)
        )
        assert mean is not None
        return Cell(mean, low, high, published, _verdict(found, column))

    def judge(self, target: Target) -> Judged | None:
        """Return a target with its verdict; None if its arm was not run at this scale."""
        metric = self._experiment.metric(target.metric)
        comparison = None
        if target.against is not None:
            comparison = Comparison(target.metric, target.against)
        reached = self.cell(target.arm, Column(metric, comparison))
        if reached is None:
            return None
        limit = target.at_most if target.at_most is not None else target.at_least
        assert limit is not None
        is_met = (
            reached.mean.value <= limit
            if limit == target.at_most
            else (reached.mean.value >= limit)
        )
        record = Record(
            self._experiment.name,
            str(target.arm),
            target.metric,
            limit,
            statistic="limit",
            against=target.against,
            unit=metric.unit,
        )
        return Judged(target, metric, reached, Number(limit, self._ledger.add(record)), is_met)

    def _estimate(self, arm: Arm, metric: str, comparison: Comparison | None) -> Estimate | None:
        ours = self._values.get(arm, {}).get(metric)
        if ours is None:
            return None
        if comparison is None:
            return estimate(ours)
        if arm.name == comparison.against:
            return None
        theirs = self._values.get(Arm(arm.group, comparison.against), {}).get(metric)
        if theirs is None:
            return None
        if not comparison.is_relative:
            return estimate(differences(ours, theirs))
        return None if 0 in theirs else estimate(relative_differences(ours, theirs))

    def _find_published(self, arm: Arm, column: Column) -> tuple[Number, str] | None:
        against = column.comparison.against if column.comparison else None
        for entry in self._published:
            if (entry.arm, entry.metric, entry.against) == (arm, column.metric.name, against):
                record = Record(
                    self._experiment.name,
                    str(arm),
                    entry.metric,
                    entry.value,
                    statistic="published",
                    against=against,
                    is_relative=bool(column.comparison and column.comparison.is_relative),
                    unit=column.metric.unit,
                    source=entry.source,
                )
                return Number(entry.value, self._ledger.add(record)), entry.source
        return None

    def _note(self, arm: Arm, column: Column, statistic: str, value: float) -> Number:
        record = Record(
            self._experiment.name,
            str(arm),
            column.metric.name,
            value,
            statistic=statistic,
            against=column.comparison.against if column.comparison else None,
            is_relative=bool(column.comparison and column.comparison.is_relative),
            unit=column.metric.unit,
            is_timing=column.metric.is_timing,
        )
        return Number(value, self._ledger.add(record))


def _verdict(found: Estimate, column: Column) -> str:
    if column.comparison is None or column.metric.better is None:
        return ""
    good, bad = found.is_below_zero, found.is_above_zero
    if column.metric.better == "high":
        good, bad = bad, good
    return "better" if good else "worse" if bad else "level"


def _first_failure(outcomes: Mapping[int, Outcomes]) -> str | None:
    for seed, found in outcomes.items():
        for arm, outcome in found.items():
            if isinstance(outcome, Failed):
                return f"{arm}, seed {seed}: {outcome.message}"
    return None


def _ends(
    points: Sequence[tuple[float, float]], ends: Sequence[float]
) -> list[tuple[float, float]]:
    return [(x, end) for (x, _), end in zip(points, ends, strict=True)] if ends else []
