"""The figures of scripts/bench_predictor, worked out by hand."""

import pytest

from justitia_ray.bench.predictor_measures import SEVEN, Latency, Trial, training_set
from justitia_ray.bench.predictor_report import error_table, over_seven, verdicts
from tests.unit.predictor.made_up_runs import made_up_samples


def trial(name: str, kind: str, number: int, error: float) -> Trial:
    return Trial(name, kind, number, 100, kind, error, error / 2, 0.8, 2.0)


def trials(ours: float, median: float) -> list[Trial]:
    return [
        trial(name, kind, number, error + (0.1 if number else 0.0))
        for name in (*SEVEN, "CG")
        for kind, error in (("auto", ours), ("median", median))
        for number in (0, 1)
    ]


def test_training_sets_are_100_samples_or_four_of_five() -> None:
    """As the issue defines them; what is tested on must not be among them."""
    many, few = made_up_samples(130), made_up_samples(80)
    training, test = training_set(many, "A", 0)

    assert (100, 30) == (len(training), len(test))
    assert {id(s) for s in many} == {id(s) for s in (*training, *test)}
    assert (64, 16) == tuple(map(len, training_set(few, "A", 0)))
    assert training[:10] == training_set(many, "A", 0, size=10)[0]
    assert test == training_set(many, "A", 0, size=10)[1]
    assert test != training_set(many, "A", 1)[1]


def test_mean_is_over_the_seven_and_spread_over_the_sets() -> None:
    """CG, whose tail nobody can foresee, is reported apart."""
    found = [*trials(0.2, 0.4), trial("CG", "auto", 0, 99.0)]
    of_two = over_seven(found, "auto", "mean_error")

    assert pytest.approx((0.2, 0.25, 0.3)) == (of_two.low, of_two.mean, of_two.high)
    assert "20.0%-30.0%" in error_table(found, "mean_error")


def test_verdicts_name_what_is_missed() -> None:
    """A class that the median serves better is named, whatever the mean."""
    fast = [Latency("auto", 0.2, 0.4, "DM", 0.5, 0.1)]
    good = verdicts(trials(0.2, 0.4), fast)
    bad = verdicts(trials(0.5, 0.4), [Latency("auto", 0.9, 1.0, "DM", 0.9, 0.1)])

    assert [True] * 4 == [verdict.met for verdict in good]
    assert [False, False, False, True] == [verdict.met for verdict in bad]
    assert ", ".join([*SEVEN, "CG"]) == bad[1].figure
