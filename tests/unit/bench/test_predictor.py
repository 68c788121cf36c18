"""The figures of scripts/bench_predictor, computed by hand."""

from dataclasses import replace

import pytest

from justitia_ray.sim.workload import WorkloadInference
from scripts.bench.predicted_stages import Run, StageErrors, add_errors, stage_table
from scripts.bench.predictor import SEVEN, Latency, Trial, share_within_bounds, verdicts


def create_trial(name: str, kind: str, number: int, error: float) -> Trial:
    return Trial(name, kind, number, 100, error, error / 2, 0.8, 2.0, 25, 0.9)


def create_trials(ours: float, median: float) -> list[Trial]:
    return [
        create_trial(name, kind, number, error + (0.1 if number else 0.0))
        for name in (*SEVEN, "CG")
        for kind, error in (("mlp", ours), ("median", median))
        for number in (0, 1)
    ]


def test_benchmark_verdicts_name_missed_targets() -> None:
    fast = [Latency("mlp", 0.2, 0.4, "DM", 0.5, 0.1)]
    good = verdicts(create_trials(0.2, 0.4), fast)
    bad = verdicts(create_trials(0.5, 0.4), [Latency("mlp", 0.9, 1.0, "DM", 0.9, 0.1)])

    assert [True] * 7 == [verdict.met for verdict in good]
    assert [False, False, False, *[True] * 4] == [verdict.met for verdict in bad]
    assert ", ".join([*SEVEN, "CG"]) == bad[1].figure


def test_coverage_of_predicted_quantiles_counts_every_test_once() -> None:
    """A class of 5 tests counts less than a class of 95."""
    few = replace(create_trial("EV", "mlp", 0, 0.2), covered=0.2, tested_on=5)
    many = replace(few, covered=1.0, tested_on=95)

    assert pytest.approx(0.96) == share_within_bounds([few, many])


@pytest.mark.parametrize(("covered", "met"), [(0.85, True), (0.86, False), (0.74, False)])
def test_coverage_of_predicted_quantiles_may_deviate_by_five_points(
    covered: float, met: bool
) -> None:
    """A share above the range is as wrong as a share below it."""
    rows = [replace(t, covered=covered) for t in create_trials(0.2, 0.4)]

    assert met is verdicts(rows, [Latency("mlp", 0.2, 0.4, "DM", 0.5, 0.1)])[4].met


@pytest.mark.parametrize(
    ("covered", "tests", "met"),
    # the 95% margin 1.96 · sqrt(0.8 · 0.2 / n) is 0.157 for 25 tests and 0.078 for 100
    [(0.65, 25, True), (0.64, 25, False), (0.95, 25, True), (0.88, 100, False), (0.2, 24, True)],
)
def test_class_with_an_implausible_spread_is_named(covered: float, tests: int, met: bool) -> None:
    """A spread that is too wide is as wrong as one that is too narrow."""
    rows = [
        replace(t, covered=covered, tested_on=tests) if t.application_class == "PE" else t
        for t in create_trials(0.2, 0.4)
    ]
    verdict = verdicts(rows, [Latency("mlp", 0.2, 0.4, "DM", 0.5, 0.1)])[5]

    assert (met, "all" if met else "PE") == (verdict.met, verdict.figure)


def test_class_whose_empirical_quantiles_predict_better_is_named() -> None:
    rows = [
        replace(t, pinball=1.1) if t.application_class == "CC" else t
        for t in create_trials(0.2, 0.4)
    ]
    verdict = verdicts(rows, [Latency("mlp", 0.2, 0.4, "DM", 0.5, 0.1)])[6]

    assert (False, "CC") == (verdict.met, verdict.figure)


def _run_of_turns(*lengths: int, gap_s: float = 1.0) -> Run:
    """Return a run with turns of the given output lengths, each after a tool call."""
    return tuple(
        WorkloadInference(str(n), 100, length, (str(n - 1),) if n else (), gap_s if n else 0.0)
        for n, length in enumerate(lengths)
    )


def test_stages_of_repeated_runs_are_predicted_without_error() -> None:
    errors = StageErrors("FV")
    add_errors(errors, [_run_of_turns(10, 30)] * 30, [_run_of_turns(10, 30)])

    assert [1, 0] == errors.lengths
    assert [10, 10] == errors.lengths_of_class
    assert ([0.0], [0.0], [True, True]) == (errors.gaps, errors.gaps_of_class, errors.turns)
    assert [True, False] == errors.turns_of_class


def test_deviations_from_the_learned_stages_count_as_errors() -> None:
    errors = StageErrors("FV")
    add_errors(errors, [_run_of_turns(10, 30)] * 30, [_run_of_turns(10, 30, 30, gap_s=3.0)])

    assert [True, False, True] == errors.turns
    assert [2.0, 3.0] == errors.gaps
    assert "FV" in stage_table([errors])
