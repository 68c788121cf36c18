"""The change test: it sees what changed, where, and rarely what did not."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.predictor.drift import ChangeTest

RUNS, LENGTH = 60, 1_000


def first_alarm(draw: Callable[[], float], length: int) -> int | None:
    """Return after how many values the test fires, None if it does not."""
    test = ChangeTest()
    return next((i for i in range(length) if test.add(draw()) is not None), None)


@pytest.mark.parametrize(
    ("name", "most_alarms"), [("normal", 0.05), ("laplace", 0.05), ("exponential", 0.1)]
)
def test_false_alarms_are_rare(name: str, most_alarms: float) -> None:
    """An alarm throws a history away: it must not come from mere spread."""
    rng = random.Random(5)
    draws: dict[str, Callable[[], float]] = {
        "normal": lambda: rng.gauss(0.3, 0.5),
        "laplace": lambda: rng.choice((-1, 1)) * rng.expovariate(2.0),
        "exponential": lambda: rng.expovariate(2.0),
    }
    alarms = sum(first_alarm(draws[name], LENGTH) is not None for _ in range(RUNS))

    assert alarms <= most_alarms * RUNS


def test_equal_errors_never_alarm() -> None:
    """A class whose applications are all alike has no spread to judge by."""
    assert first_alarm(lambda: 0.25, 500) is None


@pytest.mark.parametrize("shift", [1.0, -1.0, 2.0])
def test_change_is_seen_soon_and_where_it_began(shift: float) -> None:
    """Two standard deviations, to either side, within some dozen samples."""
    seen, places = 0, []
    for run in range(40):
        rng = random.Random(run)
        test = ChangeTest()
        assert not any(test.add(rng.gauss(0, 0.5)) for _ in range(60))
        for delay in range(1, 31):
            since = test.add(rng.gauss(shift, 0.5))
            if since is not None:
                seen += 1
                places.append(since - delay)
                break

    assert seen == 40
    assert 30 <= sum(abs(place) <= 3 for place in places)


def test_one_enormous_error_is_no_change() -> None:
    """One application that retried for hours says nothing of the others."""
    test = ChangeTest()
    for _ in range(30):
        test.add(0.1)

    assert [test.add(value) for value in (50.0, 0.1, 0.1)] == [None] * 3


def test_after_an_alarm_it_begins_anew() -> None:
    """The new errors are the new normal."""
    test = ChangeTest()
    for _ in range(30):
        test.add(0.0)
    while test.add(3.0) is None:
        pass

    assert ChangeTest() == test
    assert first_alarm(lambda: 3.0, 200) is None


def test_it_survives_json() -> None:
    """A restart must not begin the watch anew."""
    test = ChangeTest()
    for value in (0.1, 0.5, -0.2) * 6:
        test.add(value)

    assert test == ChangeTest.from_dict(test.to_dict())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"values": 1.5}, "values is 1.5"),
        ({"mean": "x"}, "mean is 'x'"),
        ({"above": -1.0}, "above is -1.0"),
        ({"squares": float("inf")}, "squares is inf"),
        ({"more": 1}, "fields missing or unknown: more"),
    ],
)
def test_wrong_field_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    """What comes back from a store is not trusted."""
    with pytest.raises(ValueError, match=complaint):
        ChangeTest.from_dict(ChangeTest().to_dict() | change)
