"""Calibration of expected starts: the measures, and a small run."""

import pytest

from justitia_ray.core.calibration import Quantiles
from justitia_ray.lab.outlook import PredictedStart, by_last_hour, predict_starts, score
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference


def create_forecast(
    at: float, started_s: float, waited_s: float = 0.0, of: str = "c"
) -> PredictedStart:
    """Return a forecast and its outcome."""
    return PredictedStart("a", of, at, waited_s, True, Quantiles(1, 2, 3), started_s)


def test_forecast_score_penalises_starts_outside_the_quantiles() -> None:
    said = Quantiles(1.0, 2.0, 3.0)
    found = score([(said, 1.0), (said, 3.0), (said, 0.0), (said, 13.0)])

    assert found is not None
    assert (4, 0.5, 0.25, 0.25) == found[:4]
    per_start = [(0 + 0.5 + 0.2) / 3, (0.2 + 0.5 + 0) / 3]
    per_start += [(0.9 + 1.0 + 0.3) / 3, (1.2 + 5.5 + 9.0) / 3]
    assert found.pinball_s == pytest.approx(sum(per_start) / 4)
    assert found.median_error_s == 1.5


def test_last_hour_baseline_uses_no_later_outcome() -> None:
    tellings = [create_forecast(float(n), 100.0) for n in range(10)] + [create_forecast(50.0, 1.0)]

    assert {Quantiles(1.0, 5.0, 30.0)} == {*by_last_hour(tellings)}


def test_last_hour_baseline_uses_waits_of_equal_class_and_length() -> None:
    """A wait that has lasted 60 s is compared only with waits of at least 60 s."""
    past = [
        create_forecast(float(n), wait) for n, wait in enumerate((10.0, 20.0, 80.0, 90.0, 100.0))
    ]
    other = [create_forecast(5.0 + n, 1.0, of="other") for n in range(3)]
    asked = [
        create_forecast(500.0, 1.0),
        create_forecast(500.0, 1.0, waited_s=60.0),
        create_forecast(500.0, 1.0, of="other"),
    ]
    *_, fresh, waiting, third = by_last_hour([*past, *other, *asked])

    assert fresh.p50 == 80.0
    assert waiting.p50 == 30.0
    assert third == Quantiles(1.0, 1.0, 1.0)


def test_forecasts_of_start_times_in_a_small_run_are_accurate() -> None:
    load = [
        WorkloadApplication(f"a{n}", "c", n * 0.6, (WorkloadInference("0", 60, 40 + n % 5 * 20),))
        for n in range(300)
    ]
    tellings = predict_starts(load, RunSettings(EngineProfile(kv_tokens=400)))
    found = score((one.expected, one.started_s) for one in tellings if one.started_s is not None)

    assert all(one.started_s is not None for one in tellings)
    assert found is not None
    assert found.tellings > 100
    assert 0.7 < found.covered < 0.92
