"""Results become lines and cells: means, paired differences, verdicts, published numbers."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.lab.report.build import run_tasks
from justitia_ray.lab.report.experiment import Arm, Experiment, Measures, Outcomes, measure_each
from justitia_ray.lab.report.findings import Cell, ReportSection, ResultLine, ResultLog, section_of
from justitia_ray.lab.report.published import Published
from justitia_ray.lab.report.statistics import estimate
from tests.unit.lab.report import small

_OURS, _THEIRS = Arm("1x", "justitia"), Arm("1x", "vtc")
_PUBLISHED = [
    Published("small", _OURS, "jct_s", 9.0, "Table 0"),
    Published("small", _OURS, "jct_s", -0.4, "Table 0", against="vtc"),
    Published("other", _OURS, "jct_s", 1.0, "Table 1"),
]


def _section_of_experiment(
    experiment: Experiment, seeds: tuple[int, ...] = small.SCALE.seeds
) -> ReportSection:
    arms = {seed: dict(experiment.arms(small.SCALE, seed)) for seed in seeds}
    found = run_tasks([task for by in arms.values() for task in by.values()], workers=1)
    return section_of(experiment, small.SCALE, arms, found, ResultLog(), _PUBLISHED)


def _table_cell(section: ReportSection, arm: Arm, column: int) -> Cell:
    cell = section.groups["1x"][arm][column]
    assert cell is not None
    return cell


def _outcome_against_10_2(outcomes: Outcomes) -> Measures:
    return {_OURS: {"jct_s": outcomes[_OURS]}, _THEIRS: {"jct_s": 10.2}}


def test_report_section_has_mean_and_paired_difference_of_every_arm() -> None:
    section = _section_of_experiment(small.small_experiment())

    mean, against_vtc = (_table_cell(section, _OURS, column) for column in (0, 1))
    assert mean.mean.value == pytest.approx(10.2)
    assert against_vtc.mean.value == pytest.approx(-(10 / 20.1 + 10 / 20.2 + 10 / 20.3) / 3)
    assert [9.0, -0.4] == [c.published[0].value for c in (mean, against_vtc) if c.published]
    assert section.groups["1x"][_OURS][2] is None


@pytest.mark.parametrize(
    ("change", "seeds", "verdicts"),
    [
        ({}, (1, 2, 3), ["better", "worse"]),
        ({"measure": _outcome_against_10_2}, (1, 2, 3), ["level", "level"]),
        ({"is_drawn": False}, (1,), ["better", "worse"]),
        ({}, (1,), ["", ""]),
    ],
    ids=["interval", "may be zero", "nothing is drawn", "one run of a drawn load"],
)
def test_paired_difference_is_judged_by_its_confidence_interval(
    change: Mapping[str, Any], seeds: tuple[int, ...], verdicts: list[str]
) -> None:
    section = _section_of_experiment(replace(small.small_experiment(), **change), seeds)

    assert verdicts == [
        _table_cell(section, _OURS, 1).verdict,
        _table_cell(section, _THEIRS, 2).verdict,
    ]


def test_targets_are_reported_as_met_or_missed() -> None:
    """A result of −49.5 % misses a target of −50 %."""
    section = _section_of_experiment(small.small_experiment())

    assert [False, True] == [judged.is_met for judged in section.judged]
    assert [-0.5, 11.0] == [judged.limit.value for judged in section.judged]


def test_metric_missing_for_one_seed_has_no_mean() -> None:
    """A mean over the other seeds could not be compared with arms that have all seeds."""
    measure = measure_each(lambda outcome: {"jct_s": None if outcome == 10.2 else outcome})
    section = _section_of_experiment(replace(small.small_experiment(), measure=measure))

    assert [None, None, None] == section.groups["1x"][_OURS]
    assert section.failure is None


def test_failed_run_fails_its_section_in_one_line() -> None:
    """A line break would break the summary of the page."""
    section = _section_of_experiment(small.small_experiment(task=small.FailingTask))

    assert "1x · justitia, seed 1: ValueError: no luck" == section.failure
    assert {} == section.groups


def test_numbers_without_a_json_form_are_null(tmp_path: Path) -> None:
    """NaN in a JSON line stops every strict reader."""
    log = ResultLog()
    log.append_line(ResultLine("e", "a", "m", float("nan")))
    log.append_line(ResultLine("e", "a", "m", [(1.0, float("inf"))], statistic="series"))
    log.write(tmp_path / "r.jsonl")

    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert [None, [[1.0, None]]] == values


def test_confidence_interval_uses_students_t() -> None:
    """With three values, the normal distribution's factor of 1.96 would be far too small."""
    found = estimate([1.0, 2.0, 3.0])

    half = 4.303 / math.sqrt(3)
    assert 2.0 == found.mean
    assert found.low == pytest.approx(2.0 - half)
    assert found.high == pytest.approx(2.0 + half)
