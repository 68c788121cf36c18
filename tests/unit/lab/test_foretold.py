"""Deadlines predicted by the shadow of VTC, against VTC's ends on the same load."""

import pytest

from justitia_ray.lab.foretold import (
    Spread,
    error_of_learned_stages,
    predict_vtc_times,
    predicted_over_true_times,
    spread,
)
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference


def _chain_of_calls(name: str, at: float, calls: int, output: int) -> WorkloadApplication:
    """Return an application of consecutive calls, two seconds apart."""
    inferences = tuple(
        WorkloadInference(str(n), 60, output, (str(n - 1),) if n else (), 2.0 if n else 0.0)
        for n in range(calls)
    )
    return WorkloadApplication(name, f"chain {calls}", at, inferences)


def test_predicted_ends_under_vtc_are_near_the_true_ends() -> None:
    load = [
        _chain_of_calls(f"a{n}", n * 1.5, 1 + 2 * (n % 2), 40 + 20 * (n % 3)) for n in range(30)
    ]
    ratios = predicted_over_true_times(load, EngineProfile(kv_tokens=500))

    assert {"chain 1", "chain 3"} == ratios.keys()
    for of_class in ratios.values():
        assert 0.75 < spread(of_class).median < 1.25


def test_predicted_vtc_ends_from_learned_stages_are_nearly_as_good() -> None:
    engine = EngineProfile(kv_tokens=500)
    load = [
        _chain_of_calls(f"a{n}", n * 1.5, 1 + 2 * (n % 2), 40 + 20 * (n % 3)) for n in range(30)
    ]
    history = predict_vtc_times(load, engine).observed
    ratios = predicted_over_true_times(load, engine, history=history)

    assert [30, 3] == [len(history), max(len(observation.stages) for observation in history)]
    assert {"chain 1", "chain 3"} == ratios.keys()
    for of_class in ratios.values():
        assert 0.7 < spread(of_class).median < 1.3
    for off in error_of_learned_stages(load, engine, history):
        assert all(value < 0.5 for of_class in off.values() for value in of_class)


def test_predicted_vtc_ends_of_equal_applications_are_exact() -> None:
    engine = EngineProfile(kv_tokens=500)
    load = [_chain_of_calls(f"a{n}", n * 4.0, 3, 5) for n in range(12)]
    history = predict_vtc_times(load, engine).observed
    first, later = error_of_learned_stages(load, engine, history)
    unknown, _ = error_of_learned_stages(load, engine, ())

    assert [pytest.approx(0)] * len(first["chain 3"]) == first["chain 3"]
    assert [pytest.approx(0)] * len(later["chain 3"]) == later["chain 3"]
    assert max(unknown["chain 3"]) > 0.5


def test_error_spread_covers_nine_tenths_of_the_values() -> None:
    assert pytest.approx(Spread(21, 1, 10, 19)) == spread(range(21))
