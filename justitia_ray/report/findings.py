"""Turns the outcomes of an experiment's arms into its section of the page and lines of results."""

from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.report.chart import Chart, Point
from justitia_ray.report.experiment import Arm, Experiment, Outcomes, Scale, Task
from justitia_ray.report.published import Published
from justitia_ray.report.records import Ledger, Record
from justitia_ray.report.runner import Failed
from justitia_ray.report.section import Column, Section
from justitia_ray.report.table import Runs, Table


class Findings:
    """Makes sections, one after the other, and notes every number of them."""

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
                section = Section(experiment, seeds=tuple(arms), failure=Failed.of(error).message)
        return section

    def _fill(
        self,
        section: Section,
        arms: Mapping[int, Mapping[Arm, Task]],
        outcomes: Mapping[int, Outcomes],
    ) -> None:
        experiment = section.experiment
        runs = self._runs(experiment, arms, outcomes)
        table = Table(experiment, self._ledger, self._published, runs)
        section.columns = [Column(metric) for metric in experiment.metrics]
        section.columns += [Column(experiment.metric(c.metric), c) for c in experiment.comparisons]
        for arm in runs:
            row = [table.cell(arm, column) for column in section.columns]
            section.groups.setdefault(arm.group, {})[arm] = row
        judged = [table.judge(target) for target in experiment.targets]
        section.judged = [judgement for judgement in judged if judgement is not None]
        section.charts = experiment.charts(self._scale, list(outcomes.items()))
        for chart in section.charts:
            self._note_points(experiment, chart)

    def _runs(
        self,
        experiment: Experiment,
        arms: Mapping[int, Mapping[Arm, Task]],
        outcomes: Mapping[int, Outcomes],
    ) -> dict[Arm, dict[str, Runs]]:
        """Measure every seed, note each value, and return them by arm and metric.

        A metric that one seed has no value for is left out of its arm: means over other seeds than
        those of the arm beside it would not be paired.
        """
        measured = {s: experiment.measure(self._scale, found) for s, found in outcomes.items()}
        runs: dict[Arm, dict[str, Runs]] = {}
        for arm in next(iter(outcomes.values())):
            runs[arm] = {}
            for metric in experiment.metrics:
                row = [measured[seed].get(arm, {}).get(metric.name) for seed in outcomes]
                lines = tuple(
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
                    for seed, value in zip(outcomes, row, strict=True)
                )
                known = [value for value in row if value is not None]
                if len(known) == len(row):
                    runs[arm][metric.name] = Runs(known, lines)
        return runs

    def _note_points(self, experiment: Experiment, chart: Chart) -> None:
        for series in chart.series:
            for label, points in (
                (series.label, series.points),
                (f"{series.label} low", _ends(series.points, series.low)),
                (f"{series.label} high", _ends(series.points, series.high)),
            ):
                if points:
                    self._ledger.add(
                        Record(
                            experiment.name,
                            label,
                            chart.name,
                            list(points),
                            statistic="series",
                            unit=f"{chart.x_label}; {chart.y_label}",
                            is_timing=any(metric.is_timing for metric in experiment.metrics),
                        )
                    )


def _first_failure(outcomes: Mapping[int, Outcomes]) -> str | None:
    for seed, found in outcomes.items():
        for arm, outcome in found.items():
            if isinstance(outcome, Failed):
                return f"{arm}, seed {seed}: {outcome.message}"
    return None


def _ends(points: Sequence[Point], ends: Sequence[float]) -> list[Point]:
    return [(x, end) for (x, _), end in zip(points, ends, strict=True)] if ends else []
