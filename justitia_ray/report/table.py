"""Aggregates an experiment's runs: means, paired differences, verdicts; every number is noted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.report.experiment import Arm, Comparison, Experiment, Target
from justitia_ray.report.published import Published
from justitia_ray.report.records import Ledger, Record
from justitia_ray.report.section import Cell, Column, Judged, Number
from justitia_ray.report.statistics import (
    Estimate,
    differences,
    estimate,
    relative_differences,
)


@dataclass(frozen=True, slots=True)
class Runs:
    """One metric of one arm: a value for each seed, and the lines that they stand in."""

    values: Sequence[float]
    lines: tuple[int, ...]


class Table:
    """The cells of one experiment; each is made, and noted, when it is first asked for."""

    def __init__(
        self,
        experiment: Experiment,
        ledger: Ledger,
        published: Sequence[Published],
        runs: Mapping[Arm, Mapping[str, Runs]],
    ) -> None:
        self._experiment = experiment
        self._ledger = ledger
        self._published = [p for p in published if p.experiment == experiment.name]
        self._runs = runs
        self._cells: dict[tuple[Arm, Column], Cell | None] = {}

    def cell(self, arm: Arm, column: Column) -> Cell | None:
        """Return what stands there; None if there is nothing."""
        if (arm, column) not in self._cells:
            self._cells[arm, column] = self._made(arm, column)
        return self._cells[arm, column]

    def judge(self, target: Target) -> Judged | None:
        """Return a target with its verdict; None if its arm was not run at this scale."""
        metric = self._experiment.metric(target.metric)
        comparison = None
        if target.against is not None:
            comparison = Comparison(target.metric, target.against)
        column = Column(metric, comparison)
        reached = self.cell(target.arm, column)
        if reached is None:
            return None
        if target.at_most is not None:
            limit, is_met = target.at_most, reached.mean.value <= target.at_most
        else:
            assert target.at_least is not None
            limit, is_met = target.at_least, reached.mean.value >= target.at_least
        return Judged(
            target, metric, reached, self._note(target.arm, column, "limit", limit), is_met
        )

    def _made(self, arm: Arm, column: Column) -> Cell | None:
        compared = self._compared(arm, column)
        if compared is None:
            return None
        found, lines = compared
        statistic = "mean" if column.comparison is None else "difference"
        mean = self._note(arm, column, statistic, found.mean, lines)
        low, high = (
            None if end is None else self._note(arm, column, f"{statistic}_{name}", end, lines)
            for name, end in (("low", found.low), ("high", found.high))
        )
        published = self._find_published(arm, column)
        return Cell(mean, low, high, published, self._verdict(found, column))

    def _compared(self, arm: Arm, column: Column) -> tuple[Estimate, tuple[int, ...]] | None:
        """Return the estimate of a cell, and the runs that it is made of."""
        ours = self._runs.get(arm, {}).get(column.metric.name)
        if ours is None:
            return None
        if column.comparison is None:
            return estimate(ours.values), ours.lines
        other = Arm(arm.group, column.comparison.against)
        theirs = self._runs.get(other, {}).get(column.metric.name)
        if theirs is None or other == arm:
            return None
        lines = (*ours.lines, *theirs.lines)
        if not column.comparison.is_relative:
            return estimate(differences(ours.values, theirs.values)), lines
        if 0 in theirs.values:
            return None
        return estimate(relative_differences(ours.values, theirs.values)), lines

    def _verdict(self, found: Estimate, column: Column) -> str:
        """Judge a difference: by its interval, or by its sign where nothing was drawn."""
        if column.comparison is None or column.metric.better is None:
            return ""
        good, bad = found.is_below_zero, found.is_above_zero
        if not self._experiment.is_drawn:
            good, bad = found.mean < 0, found.mean > 0
        elif found.low is None:
            return ""
        if column.metric.better == "high":
            good, bad = bad, good
        return "better" if good else "worse" if bad else "level"

    def _find_published(self, arm: Arm, column: Column) -> tuple[Number, str] | None:
        for entry in self._published:
            here = (arm, column.metric.name, column.against)
            if (entry.arm, entry.metric, entry.against) == here:
                number = self._note(arm, column, "published", entry.value, source=entry.source)
                return number, entry.source
        return None

    def _note(
        self,
        arm: Arm,
        column: Column,
        statistic: str,
        value: float,
        of_lines: tuple[int, ...] = (),
        source: str | None = None,
    ) -> Number:
        record = Record(
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
        return Number(value, self._ledger.add(record))
