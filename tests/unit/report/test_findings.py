"""Outcomes become lines and cells: means, paired differences, verdicts, published numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Measures,
    Metric,
    Outcomes,
    Scale,
)
from justitia_ray.report.findings import Findings
from justitia_ray.report.published import Published
from justitia_ray.report.records import Ledger, Record
from justitia_ray.report.runner import run_tasks
from justitia_ray.report.section import Cell, Section
from tests.unit.report import small

_OURS, _THEIRS = Arm("1x", "justitia"), Arm("1x", "vtc")
_PUBLISHED = [
    Published("small", _OURS, "jct_s", 9.0, "Table 0"),
    Published("small", _OURS, "jct_s", -0.4, "Table 0", against="vtc"),
    Published("other", _OURS, "jct_s", 1.0, "Table 1"),
]


def _section(
    experiment: Experiment,
    ledger: Ledger,
    published: list[Published] | None = None,
    seeds: tuple[int, ...] = small.SCALE.seeds,
) -> Section:
    arms = {seed: dict(experiment.arms(small.SCALE, seed)) for seed in seeds}
    found = run_tasks([task for by in arms.values() for task in by.values()], workers=1)
    findings = Findings(small.SCALE, ledger, published if published is not None else _PUBLISHED)
    return findings.section(experiment, arms, found)


def _cells(section: Section, arm: Arm) -> list[Cell | None]:
    return section.groups["1x"][arm]


def test_mean_and_paired_difference_of_every_arm() -> None:
    """10.1, 10.2, 10.3 against 20.1, 20.2, 20.3: means 10.2, and (a − b)/b each seed."""
    section = _section(small.experiment(), Ledger("0"))

    mean, against_vtc, against_itself = _cells(section, _OURS)
    assert mean is not None
    assert against_vtc is not None
    assert mean.mean.value == pytest.approx(10.2)
    assert against_vtc.mean.value == pytest.approx(-(10 / 20.1 + 10 / 20.2 + 10 / 20.3) / 3)
    assert against_itself is None


def test_a_difference_is_judged_by_its_interval() -> None:
    """Half the time is better, twice the time is worse; the paper's own policy gets no favours."""
    section = _section(small.experiment(), Ledger("0"))

    ours, theirs = _cells(section, _OURS)[1], _cells(section, _THEIRS)[2]
    assert ours is not None
    assert theirs is not None
    assert ("better", "worse") == (ours.verdict, theirs.verdict)


def test_more_is_better_where_the_metric_says_so() -> None:
    """A throughput that is half of VTC's is a loss, and must be marked as one."""
    throughput = (Metric("jct_s", "tokens", better="high"),)
    section = _section(replace(small.experiment(), metrics=throughput), Ledger("0"))

    cell = _cells(section, _OURS)[1]
    assert cell is not None
    assert "worse" == cell.verdict


def test_a_difference_that_may_be_zero_is_level() -> None:
    """−0.1, 0, +0.1 s: an interval that holds zero is neither a win nor a loss."""
    experiment = replace(
        small.experiment(),
        measure=lambda _, outcomes: {
            _OURS: {"jct_s": outcomes[_OURS]},
            _THEIRS: {"jct_s": 10.2},
        },
    )

    cell = _cells(_section(experiment, Ledger("0")), _OURS)[1]
    assert cell is not None
    assert "level" == cell.verdict


def test_published_numbers_stand_beside_their_own_cell_only() -> None:
    """A published mean beside a difference, or of another experiment, would mislead."""
    section = _section(small.experiment(), Ledger("0"))

    mean, against_vtc, _ = _cells(section, _OURS)
    assert mean is not None
    assert mean.published is not None
    assert against_vtc is not None
    assert against_vtc.published is not None
    assert (9.0, -0.4) == (mean.published[0].value, against_vtc.published[0].value)
    other = _cells(section, _THEIRS)[0]
    assert other is not None
    assert other.published is None


def test_targets_say_whether_they_are_met() -> None:
    """−49.5 % misses a target of −50 %, however near; 10.2 s meets at most 11 s."""
    section = _section(small.experiment(), Ledger("0"))

    assert [False, True] == [judged.is_met for judged in section.judged]
    assert [-0.5, 11.0] == [judged.limit.value for judged in section.judged]


def test_every_cell_names_the_line_of_its_value() -> None:
    """A number on the page is traced by its line: line and value must belong together."""
    ledger = Ledger("0")
    section = _section(small.experiment(), ledger)

    cells = [cell for row in section.groups["1x"].values() for cell in row if cell is not None]
    numbers = [n for cell in cells for n in (cell.mean, cell.low, cell.high) if n is not None]
    assert 2 * 2 * 3 == len(numbers)
    assert [n.value for n in numbers] == [ledger[n.line].value for n in numbers]


def test_an_aggregate_names_its_runs() -> None:
    """Seed and configuration of a mean are those of its runs: lines 1 to 3, and 4 to 6 of VTC."""
    ledger = Ledger("0")
    section = _section(small.experiment(), ledger)

    mean, against_vtc, _ = _cells(section, _OURS)
    assert mean is not None
    assert against_vtc is not None
    assert (1, 2, 3) == ledger[mean.mean.line].of_lines
    assert (1, 2, 3, 4, 5, 6) == ledger[against_vtc.mean.line].of_lines


def test_where_nothing_is_drawn_the_sign_decides() -> None:
    """One run of a recorded trace is exact: it wins or loses though there is no interval."""
    exact = replace(small.experiment(), is_drawn=False)
    ours, theirs = (_cells(_section(exact, Ledger("0")), arm) for arm in (_OURS, _THEIRS))

    assert ours[1] is not None
    assert theirs[2] is not None
    assert ("better", "worse") == (ours[1].verdict, theirs[2].verdict)


def test_one_run_of_a_drawn_load_is_not_judged() -> None:
    """A quick report's single draw says too little to call anybody a loser."""
    section = _section(small.experiment(), Ledger("0"), seeds=(1,))

    cell = _cells(section, _OURS)[1]
    assert cell is not None
    assert "" == cell.verdict


def test_runs_are_noted_with_seed_and_configuration(tmp_path: Path) -> None:
    """Whoever doubts a mean finds each run of it, and what to run again."""
    ledger = Ledger("7.0")
    _section(small.experiment(), ledger)
    ledger.write(tmp_path / "results.jsonl")

    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    runs = [row for row in rows if row["statistic"] == "run"]
    assert 6 == len(runs)
    assert {
        "line": 1,
        "experiment": "small",
        "arm": "1x · justitia",
        "metric": "jct_s",
        "value": 10.1,
        "statistic": "run",
        "seed": 1,
        "against": None,
        "is_relative": False,
        "of_lines": [],
        "unit": "s",
        "source": None,
        "is_timing": False,
        "configuration": {"base": 10, "seed": 1},
        "version": "7.0",
    } == runs[0]


def test_a_metric_that_one_seed_lacks_has_no_mean() -> None:
    """A mean over the other seeds would be compared with arms that have them all."""

    def measure(_: Scale, outcomes: Outcomes) -> Measures:
        return {
            arm: {"jct_s": None if outcome == 10.2 else outcome}
            for arm, outcome in outcomes.items()
        }

    section = _section(replace(small.experiment(), measure=measure), Ledger("0"))

    assert [None, None, None] == _cells(section, _OURS)
    assert section.failure is None


def test_a_failed_run_fails_its_section_in_one_line() -> None:
    """The page shows why an experiment failed; a line break would tear the summary."""
    section = _section(small.experiment(task=small.Broken), Ledger("0"))

    assert "1x · justitia, seed 1: ValueError: no luck" == section.failure
    assert {} == section.groups


def test_a_measure_that_raises_fails_its_section_alone() -> None:
    """A mistake in one experiment must not cost the hour that the others took."""

    def measure(_: Scale, outcomes: Outcomes) -> Measures:
        raise KeyError("jct_s")

    section = _section(replace(small.experiment(), measure=measure), Ledger("0"))

    assert "KeyError: 'jct_s'" == section.failure


def test_plain_differences_where_shares_of_nothing_would_divide_by_zero() -> None:
    """0 preemptions to compare with: a relative difference has no value, a plain one has."""
    comparisons = (Comparison("jct_s", "vtc"), Comparison("jct_s", "vtc", is_relative=False))
    experiment = replace(
        small.experiment(),
        comparisons=comparisons,
        targets=(),
        measure=lambda _, outcomes: {_OURS: {"jct_s": 3.0}, _THEIRS: {"jct_s": 0.0}},
    )

    _, relative, plain = _cells(_section(experiment, Ledger("0"), []), _OURS)
    assert relative is None
    assert plain is not None
    assert 3.0 == plain.mean.value


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    """NaN in a JSON line stops every strict reader."""
    ledger = Ledger("0")
    ledger.add(Record("e", "a", "m", float("nan")))
    ledger.add(Record("e", "a", "m", [(1.0, float("inf"))], statistic="series"))
    ledger.write(tmp_path / "r.jsonl")

    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert [None, [[1.0, None]]] == values
