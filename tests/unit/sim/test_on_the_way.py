"""Payloads on their way to an engine: memory is kept for them, and nothing of them is computed."""

import pytest

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

ITERATION_S = 0.1


def run(dispatch_s: float, kv_tokens: int, *sizes: tuple[int, int]) -> RunResult:
    """Simulate applications of one inference that arrive at once, on one engine."""
    engine = EngineProfile(
        kv_tokens=kv_tokens, iteration=IterationCost(base_s=ITERATION_S), admission="peak"
    )
    load = [
        WorkloadApplication(f"a{n}", "X", 0.0, (WorkloadInference("0", *size),))
        for n, size in enumerate(sizes)
    ]
    settings = RunSettings(
        engine=engine, policy="fcfs", report_interval_s=0.25, dispatch_s=dispatch_s
    )
    return simulate(load, settings)


def ends(result: RunResult) -> list[float | None]:
    """Return when each application ended."""
    return [a.finished_at_s for a in result.applications]


def test_inference_is_computed_when_its_payload_is_there() -> None:
    """Ten tokens of 0.1 s each, half a second late."""
    assert [pytest.approx(1.0)] == ends(run(0.0, 1000, (100, 10)))
    assert [pytest.approx(1.5)] == ends(run(0.5, 1000, (100, 10)))


def test_memory_is_kept_while_the_payload_is_on_its_way() -> None:
    """Two that do not fit together run one after the other, and each pays its way."""
    result = run(0.5, 150, (100, 10), (100, 10))

    assert [pytest.approx(1.5), pytest.approx(3.0)] == ends(result)
    assert 0 == result.preemptions


def test_payload_joins_what_runs_at_its_next_boundary() -> None:
    """An engine does not stop for it: it is part of the next iteration."""
    result = run(0.25, 1000, (100, 10), (100, 20))

    assert [pytest.approx(1.25), pytest.approx(2.25)] == ends(result)


def test_many_in_little_memory_all_end() -> None:
    """What arrives meanwhile, ends meanwhile and waits meanwhile is neither lost nor preempted."""
    result = run(0.13, 500, *((50 + n % 7, 5 + n % 11) for n in range(60)))

    assert all(end is not None for end in ends(result))
    assert 0 == result.preemptions
