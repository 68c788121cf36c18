"""Quantiles of wait times that are calibrated on outcomes."""

import math
import random
from dataclasses import astuple

import pytest

from justitia_ray.core import calibration as calibration_module
from justitia_ray.core.calibration import LEAST_S, Calibration


def learn_outcomes(ratios: list[float], expected_s: float = 10.0) -> Calibration:
    """Return a calibration that has observed outcomes, given as multiples of the expectation."""
    calibration, now = Calibration(), 0.0
    for ratio in ratios:
        said = calibration.expect(expected_s, now)
        now += ratio * expected_s
        calibration.settle(said, now)
    return calibration


def test_initial_quantiles_of_a_wait_are_ordered_around_its_expectation() -> None:
    """The first callers after a start must get plausible times."""
    for expected_s in (0.0, 0.05, 1.0, 60.0, 1e7):
        p10, p50, p90 = astuple(Calibration().quantiles(expected_s))

        assert 0 < p10 < p50 < p90
        assert p50 == pytest.approx(max(expected_s, LEAST_S), rel=0.1)


def test_systematic_delay_of_waits_by_a_factor_of_two_is_learned() -> None:
    """A systematic delay may come from later work that is served first."""
    p10, p50, p90 = astuple(learn_outcomes([2.0] * 300).quantiles(10.0))

    assert p50 == pytest.approx(20.0, rel=0.15)
    assert p90 - p10 < 20


def test_outcomes_of_long_waits_do_not_change_quantiles_of_short_waits() -> None:
    """One histogram for all waits would mix errors of long and of short waits."""
    calibration = learn_outcomes([3.0] * 300, expected_s=400.0)

    assert calibration.quantiles(0.5).p50 == Calibration().quantiles(0.5).p50
    assert calibration.quantiles(400.0).p50 == pytest.approx(1200, rel=0.15)


@pytest.mark.parametrize("deviation", [0.2, 0.8, 1.6])
def test_eight_of_ten_waits_end_between_p10_and_p90(deviation: float) -> None:
    rng, calibration, now, within = random.Random(5), Calibration(), 0.0, 0
    rounds, known = 1500, 300
    for number in range(rounds):
        expected_s = rng.choice((1.0, 20.0, 300.0))
        said = calibration.expect(expected_s, now)
        took_s = expected_s * rng.lognormvariate(0.3, deviation)
        within += number >= known and said.quantiles.p10 <= took_s <= said.quantiles.p90
        now += took_s
        calibration.settle(said, now)

    assert within / (rounds - known) == pytest.approx(0.8, abs=0.03)


def test_overdue_unfinished_waits_raise_the_p90_of_the_expected_wait() -> None:
    """If all engines stop, no wait ends, and p90 of the expected wait must still rise."""
    calibration = learn_outcomes([1.0] * 200)
    before = calibration.quantiles(10.0).p90
    for number in range(5):
        calibration.expect(10.0, 10_000.0 + number)
    calibration.note_time(20_000.0)

    assert calibration.quantiles(10.0).p90 > before


def test_forgotten_wait_is_not_learned_from() -> None:
    """A cancelled application has started neither early nor late."""
    calibration = Calibration()
    before = calibration.quantiles(10.0)
    said = calibration.expect(10.0, 0.0)
    calibration.forget(said)
    calibration.note_time(1e6)

    assert calibration.quantiles(10.0) == before


def test_finished_wait_is_removed_before_its_expected_end() -> None:
    """Expected waits of days that end in seconds must not use memory for days."""
    calibration = Calibration()
    for number in range(20_000):
        calibration.settle(calibration.expect(1e6, float(number)), float(number))

    assert len(calibration._due) < 16_400


def test_decaying_weights_of_outcomes_do_not_overflow() -> None:
    calibration = learn_outcomes([1.0] * 12_000, expected_s=1.0)

    assert calibration.quantiles(1.0).p50 == pytest.approx(1.0, rel=0.15)


def test_wait_quantiles_are_learned_separately_for_each_expected_wait() -> None:
    """Only the p90 of long waits rises if long waits take longer.

    With one pair of levels for all, the many short waits would set it.
    """
    rng, calibration, now, within = random.Random(3), Calibration(), 0.0, {0.5: 0, 400.0: 0}
    rounds, known = 400, 100
    for number in range(rounds):
        for expected_s, times, drift in ((0.5, 20, 0.0), (400.0, 1, 0.1)):
            for _ in range(times):
                said = calibration.expect(expected_s, now)
                took_s = expected_s * rng.lognormvariate(-1.5 + drift * (number % 30), 0.3)
                hit = said.quantiles.p10 <= took_s <= said.quantiles.p90
                within[expected_s] += number >= known and hit
                now += took_s
                calibration.settle(said, now)

    assert within[0.5] / (20 * (rounds - known)) == pytest.approx(0.8, abs=0.04)
    assert within[400.0] / (rounds - known) == pytest.approx(0.8, abs=0.04)


def test_unfinished_waits_raise_p90_and_keep_p50() -> None:
    """In a growing queue only short waits have ended, and the next wait is no shorter."""
    calibration = learn_outcomes([1.0] * 100)
    before = calibration.quantiles(10.0)
    now = 1_000.0
    for _ in range(100):
        calibration.expect(10.0, now)
    calibration.note_time(now + 29.0)
    after = calibration.quantiles(10.0)

    assert before.p90 < 20
    assert after.p90 > 60
    assert after.p50 == pytest.approx(before.p50, rel=0.05)


def test_p90_of_a_wait_is_limited_by_ended_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a load ends all waiting applications may start at once."""
    outlasted = learn_outcomes([1.0] * 100)
    for _ in range(100):
        outlasted.expect(10.0, 1_000.0)
    outlasted.note_time(1e6)
    bounded = outlasted.quantiles(10.0).p90
    monkeypatch.setattr(calibration_module, "_MOST_BEYOND", 1.0)
    of_ended = outlasted.quantiles(10.0).p90
    monkeypatch.setattr(calibration_module, "_MOST_BEYOND", math.inf)

    assert bounded == pytest.approx(4 * of_ended)
    assert outlasted.quantiles(10.0).p90 > bounded


def test_long_wait_that_is_forgotten_does_not_affect_the_quantiles() -> None:
    calibration = learn_outcomes([1.0] * 50)
    said = calibration.expect(10.0, 1_000.0)
    calibration.note_time(1_015.0)
    lasted = list(calibration._table_for(10.0).lasted)
    calibration.forget(said)

    assert said.bin > 0
    assert all(
        after < before
        for after, before in zip(
            calibration._table_for(10.0).lasted[: said.bin + 1], lasted[: said.bin + 1], strict=True
        )
    )
