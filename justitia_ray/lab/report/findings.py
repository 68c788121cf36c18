"""Findings: an experiment's outcomes as a section of the page and lines of `results.jsonl`.

Every number on the page is the value of a line. The line also has the configuration on which the
number depends.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Failed,
    Outcomes,
    Point,
    ReportMetric,
    Scale,
    Target,
    Task,
)
from justitia_ray.lab.report.published import Published
from justitia_ray.lab.report.statistics import MeanEstimate, differences, estimate


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line of the report's `results.jsonl`."""

    experiment: str
    arm: str
    metric: str
    value: float | Sequence[Point] | None
    statistic: str = "run"
    """Kind of the value: `run`, `mean`, `difference`, `series`, `limit` or `published`.

    `run` is of one seed. `mean_low` and `mean_high` are the ends of the 95 % interval of a mean
    over the seeds, `difference_low` and `difference_high` those of paired differences from
    `against`. `series` has the points of a figure, `limit` is of a target, `published` from a
    paper.
    """
    seed: int | None = None
    against: str | None = None
    """Name of the variant whose value was subtracted; None if the value is no difference."""
    is_relative: bool = False
    """Whether a difference is divided by the other variant's value."""
    of_lines: tuple[int, ...] = ()
    """Numbers of the result lines from which a mean or difference was computed."""
    unit: str = ""
    source: str | None = None
    """Figure or table of the paper that published the number."""
    is_timing: bool = False
    """Whether the value is a time on this machine, which varies between runs."""
    configuration: Mapping[str, Any] = field(default_factory=dict)


class ResultLog:
    """The lines of a report's `results.jsonl`, numbered from 1."""

    def __init__(self) -> None:
        self._lines: list[ResultLine] = []

    def append_line(self, line: ResultLine) -> int:
        self._lines.append(line)
        return len(self._lines)

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for number, line in enumerate(self._lines, 1):
                row = {"line": number, **asdict(line), "version": __version__}
                row["value"] = _json_value(row["value"])
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _json_value(value: Any) -> Any:
    """Return None for numbers that JSON cannot express (nan, inf)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    return value


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    line: int


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a table: mean, interval, published value."""

    mean: Number
    low: Number | None = None
    high: Number | None = None
    published: tuple[Number, str] | None = None
    """Number from the paper, with its figure or table."""
    verdict: str = ""
    """Whether a difference is `better`, `worse`, or `level` (the interval contains 0)."""


@dataclass(frozen=True, slots=True)
class Column:
    metric: ReportMetric
    against: str | None = None
    """Name of the variant whose values are subtracted; None for a plain metric."""
    is_relative: bool = False
    """Whether differences are divided by the other variant's value."""


@dataclass(frozen=True, slots=True)
class JudgedTarget:
    """Result of a target: the value that was reached, and whether it meets the limit."""

    target: Target
    column: Column
    reached: Cell
    limit: Number
    is_met: bool


@dataclass(slots=True)
class ReportSection:
    experiment: Experiment
    columns: list[Column] = field(default_factory=list)
    groups: dict[str, dict[Arm, list[Cell | None]]] = field(default_factory=dict)
    judged: list[JudgedTarget] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    seeds: tuple[int, ...] = ()
    failure: str | None = None
    """Error for which the section has no results, in one line; None if it has results."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Values of a metric for each seed, with their lines in `results.jsonl`."""

    values: Sequence[float]
    lines: tuple[int, ...]


def section_of(
    experiment: Experiment,
    scale: Scale,
    arms: Mapping[int, Mapping[Arm, Task]],
    found: Mapping[Task, Any],
    log: ResultLog,
    published: Sequence[Published],
) -> ReportSection:
    """Return an experiment's section of the report, with the error if it failed.

    Args:
        experiment: The experiment.
        scale: Seeds, data and sizes of the report.
        arms: Tasks of the experiment's arms, by seed.
        found: Outcome of every task.
        log: Receives a line for every number of the section.
        published: Published numbers, of all experiments.
    """
    outcomes = {
        seed: {arm: found[task] for arm, task in tasks.items()} for seed, tasks in arms.items()
    }
    for seed, by_arm in outcomes.items():
        for arm, outcome in by_arm.items():
            if isinstance(outcome, Failed):
                why = f"{arm}, seed {seed}: {outcome.message}"
                return ReportSection(experiment, seeds=tuple(arms), failure=why)
    try:
        table = _Table(experiment, log, published)
        table.take_runs(arms, outcomes)
        columns = [Column(metric) for metric in experiment.metrics]
        columns += [
            Column(experiment.metric(c.metric), c.against, c.is_relative)
            for c in experiment.comparisons
        ]
        section = ReportSection(experiment, columns, seeds=tuple(arms))
        for arm in next(iter(outcomes.values())):
            row = [table.cell(arm, column) for column in columns]
            section.groups.setdefault(arm.group, {})[arm] = row
        judged = [table.judge(target) for target in experiment.targets]
        section.judged = [judgement for judgement in judged if judgement is not None]
        section.charts = experiment.charts(scale, list(outcomes.items()))
        for chart in section.charts:
            table.note_points(chart)
        return section
    except Exception as error:
        return ReportSection(
            experiment, seeds=tuple(arms), failure=Failed.from_error(error).message
        )


class _Table:
    """Cells of one experiment's table, each computed when first requested."""

    def __init__(
        self, experiment: Experiment, log: ResultLog, published: Sequence[Published]
    ) -> None:
        self._experiment = experiment
        self._log = log
        self._published = {
            (p.arm, p.metric, p.against): p for p in published if p.experiment == experiment.name
        }
        self._runs: dict[tuple[Arm, str], Runs] = {}
        self._cells: dict[tuple[Arm, Column], Cell | None] = {}

    def take_runs(
        self, arms: Mapping[int, Mapping[Arm, Task]], outcomes: Mapping[int, Outcomes]
    ) -> None:
        """Compute the metrics of every seed, and write them to `results.jsonl`.

        If a metric has no value for one of the seeds, it is left out for this arm: a mean over
        other seeds than those of the compared arm would not be paired.
        """
        measured = {seed: self._experiment.measure(found) for seed, found in outcomes.items()}
        for arm in next(iter(outcomes.values())):
            for metric in self._experiment.metrics:
                values = {seed: measured[seed].get(arm, {}).get(metric.name) for seed in outcomes}
                lines = tuple(
                    self._log.append_line(
                        ResultLine(
                            self._experiment.name,
                            str(arm),
                            metric.name,
                            value,
                            seed=seed,
                            unit=metric.unit,
                            is_timing=metric.is_timing,
                            configuration=arms[seed][arm].configuration(),
                        )
                    )
                    for seed, value in values.items()
                )
                known = [value for value in values.values() if value is not None]
                if len(known) == len(values):
                    self._runs[arm, metric.name] = Runs(known, lines)

    def cell(self, arm: Arm, column: Column) -> Cell | None:
        if (arm, column) not in self._cells:
            self._cells[arm, column] = self._new_cell(arm, column)
        return self._cells[arm, column]

    def judge(self, target: Target) -> JudgedTarget | None:
        """Compare the value of a variant with its target; None if the variant did not run."""
        metric = self._experiment.metric(target.metric)
        column = Column(metric, target.against, is_relative=target.against is not None)
        reached = self.cell(target.arm, column)
        if reached is None:
            return None
        if target.at_most is not None:
            limit, is_met = target.at_most, reached.mean.value <= target.at_most
        else:
            assert target.at_least is not None
            limit, is_met = target.at_least, reached.mean.value >= target.at_least
        line = self._log_value(target.arm, column, "limit", limit)
        return JudgedTarget(target, column, reached, line, is_met)

    def note_points(self, chart: Chart) -> None:
        """Write the points of a chart's curve to `results.jsonl`."""
        for series in chart.series:
            xs = [x for x, _ in series.points]
            for label, points in (
                (series.label, series.points),
                (f"{series.label} low", list(zip(xs, series.low, strict=False))),
                (f"{series.label} high", list(zip(xs, series.high, strict=False))),
            ):
                if points:
                    self._log.append_line(
                        ResultLine(
                            self._experiment.name,
                            label,
                            chart.name,
                            list(points),
                            statistic="series",
                            unit=f"{chart.x_label}; {chart.y_label}",
                            is_timing=any(m.is_timing for m in self._experiment.metrics),
                        )
                    )

    def _new_cell(self, arm: Arm, column: Column) -> Cell | None:
        compared = self._estimate_of(arm, column)
        if compared is None:
            return None
        found, lines = compared
        statistic = "mean" if column.against is None else "difference"
        mean = self._log_value(arm, column, statistic, found.mean, lines)
        low, high = (
            None if end is None else self._log_value(arm, column, f"{statistic}_{name}", end, lines)
            for name, end in (("low", found.low), ("high", found.high))
        )
        paper = None
        if entry := self._published.get((arm, column.metric.name, column.against)):
            number = self._log_value(arm, column, "published", entry.value, source=entry.source)
            paper = (number, entry.source)
        return Cell(mean, low, high, paper, self._verdict_on(found, column))

    def _estimate_of(self, arm: Arm, column: Column) -> tuple[MeanEstimate, tuple[int, ...]] | None:
        ours = self._runs.get((arm, column.metric.name))
        if ours is None:
            return None
        if column.against is None:
            return estimate(ours.values), ours.lines
        other = Arm(arm.group, column.against)
        theirs = self._runs.get((other, column.metric.name))
        if theirs is None or other == arm or (column.is_relative and 0 in theirs.values):
            return None
        found = differences(ours.values, theirs.values, is_relative=column.is_relative)
        return estimate(found), (*ours.lines, *theirs.lines)

    def _verdict_on(self, found: MeanEstimate, column: Column) -> str:
        """Return whether a difference is better or worse, by its confidence interval."""
        if column.against is None or column.metric.better is None:
            return ""
        if not self._experiment.is_drawn:
            low = high = found.mean
        elif found.low is None or found.high is None:
            return ""
        else:
            low, high = found.low, found.high
        good, bad = high < 0, low > 0
        if column.metric.better == "high":
            good, bad = bad, good
        return "better" if good else "worse" if bad else "level"

    def _log_value(
        self,
        arm: Arm,
        column: Column,
        statistic: str,
        value: float,
        of_lines: tuple[int, ...] = (),
        source: str | None = None,
    ) -> Number:
        line = ResultLine(
            self._experiment.name,
            str(arm),
            column.metric.name,
            value,
            statistic=statistic,
            against=column.against,
            is_relative=column.is_relative,
            of_lines=of_lines,
            unit=column.metric.unit,
            source=source,
            is_timing=column.metric.is_timing and bool(of_lines),
        )
        return Number(value, self._log.append_line(line))
