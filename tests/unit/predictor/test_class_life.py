"""The history of a class: bounded, and without samples from before a change."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from justitia_ray.predictor.class_life import KEPT_BEFORE_CHANGE, ChangeTest, ClassHistory
from justitia_ray.predictor.observation import Sample
from tests.unit.predictor.builders import sample_of


def history_of(costs: range, bound: int = 100) -> ClassHistory:
    """Return a history of samples with these costs; those of even cost have no features."""
    history = ClassHistory(bound)
    for cost in costs:
        sample = sample_of(1, float(cost))
        history.add_sample(sample if cost % 2 else replace(sample, features=None))
    return history


def costs_of(samples: tuple[Sample, ...]) -> list[float]:
    return [sample.kv_token_time for sample in samples]


def test_history_drops_the_oldest_samples_beyond_its_bound() -> None:
    history = history_of(range(1, 8), bound=4)

    assert ([5.0, 7.0], 2, 4) == (costs_of(history.usable()), history.usable_count, history.valid)


def test_cost_drift_drops_samples_from_before_the_drift() -> None:
    """A few older samples stay, because the start of a change is known only roughly."""
    history = history_of(range(1, 21))
    history.note_change(since=4)

    assert 4 + KEPT_BEFORE_CHANGE == history.valid
    assert [15.0, 17.0, 19.0] == costs_of(history.usable())
    assert [17.0, 18.0, 19.0, 20.0] == costs_of(history.latest(4))


def test_history_counts_samples_since_a_cost_drift() -> None:
    history = history_of(range(1, 21), bound=10)
    history.note_change(since=1)
    for cost in range(21, 41):
        history.add_sample(sample_of(1, float(cost)))
        assert len(history.usable()) == history.usable_count

    assert 10 == history.usable_count


def test_restored_cost_history_uses_as_many_samples_as_before() -> None:
    history = ClassHistory(5)
    history.restore([sample_of(1, float(cost)) for cost in range(1, 9)], valid=3)

    assert [6.0, 7.0, 8.0] == costs_of(history.usable())
    history.restore([sample_of(1, 1.0)], valid=3)
    assert (1, 1) == (history.valid, history.usable_count)


RUNS, LENGTH = 60, 1_000


def first_alarm(draw: Callable[[], float], length: int) -> int | None:
    """Return the number of values until the drift test fires, None if it does not fire."""
    test = ChangeTest()
    return next((i for i in range(length) if test.add_error(draw()) is not None), None)


@pytest.mark.parametrize(
    ("name", "most_alarms"), [("normal", 0.05), ("laplace", 0.05), ("exponential", 0.1)]
)
def test_false_drift_alarms_are_rare(name: str, most_alarms: float) -> None:
    """An alarm drops the class's history, so ordinary spread must not cause one."""
    rng = random.Random(5)
    draws: dict[str, Callable[[], float]] = {
        "normal": lambda: rng.gauss(0.3, 0.5),
        "laplace": lambda: rng.choice((-1, 1)) * rng.expovariate(2.0),
        "exponential": lambda: rng.expovariate(2.0),
    }
    alarms = sum(first_alarm(draws[name], LENGTH) is not None for _ in range(RUNS))

    assert alarms <= most_alarms * RUNS


def test_equal_errors_never_cause_a_drift_alarm() -> None:
    """A class of equal applications has no spread to compare errors with."""
    assert first_alarm(lambda: 0.25, 500) is None


@pytest.mark.parametrize("shift", [1.0, -1.0, 2.0])
def test_cost_drift_is_detected_soon_with_its_start(shift: float) -> None:
    """A shift by two standard deviations, up or down, is detected within a few dozen samples."""
    seen, places = 0, []
    for run in range(40):
        rng = random.Random(run)
        test = ChangeTest()
        assert not any(test.add_error(rng.gauss(0, 0.5)) for _ in range(60))
        for delay in range(1, 31):
            since = test.add_error(rng.gauss(shift, 0.5))
            if since is not None:
                seen += 1
                places.append(since - delay)
                break

    assert seen == 40
    assert 30 <= sum(abs(place) <= 3 for place in places)


def test_single_enormous_error_is_no_cost_drift() -> None:
    """An application that retried for hours tells nothing about later applications."""
    test = ChangeTest()
    for _ in range(30):
        test.add_error(0.1)

    assert [test.add_error(value) for value in (50.0, 0.1, 0.1)] == [None] * 3


def test_cost_drift_test_restarts_after_an_alarm() -> None:
    """The errors after the alarm become the drift test's reference."""
    test = ChangeTest()
    for _ in range(30):
        test.add_error(0.0)
    while test.add_error(3.0) is None:
        pass

    assert ChangeTest() == test
    assert first_alarm(lambda: 3.0, 200) is None
