"""What all calls pass, one at a time."""

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.front_end import FrontEnd
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference


def test_calls_pass_one_after_the_other() -> None:
    """Those that come at once wait for each other; who comes to nobody passes in its own time."""
    front_end = FrontEnd(0.5)

    assert [1.5, 2.0, 2.5] == [front_end.passed_at(1.0) for _ in range(3)]
    assert front_end.passed_at(4.0) == 4.5
    assert front_end.mean_s == (0.5 + 1.0 + 1.5 + 0.5) / 4


def test_no_front_end_holds_nobody_up() -> None:
    """Workload files and most profiles know none."""
    front_end = FrontEnd()

    assert [3.0, 3.0] == [front_end.passed_at(3.0), front_end.passed_at(3.0)]
    assert front_end.mean_s == 0.0
    assert FrontEnd(1.0).mean_s == 0.0


def run(front_end_s: float) -> RunResult:
    """Let an application of two inferences, one after the other, run on an empty engine."""
    engine = EngineProfile(kv_tokens=100, iteration=IterationCost(base_s=1.0))
    inferences = (WorkloadInference("a", 1, 2, ()), WorkloadInference("b", 1, 2, ("a",)))
    load = [WorkloadApplication("x", "class", 0.0, inferences)]
    settings = RunSettings(
        engine=engine, policy="fcfs", report_interval_s=0.25, front_end_s=front_end_s
    )
    return simulate(load, settings)


def test_each_inference_passes_it_two_times() -> None:
    """Into the queue, and with its answer, which the next stage waits for.

    Two iterations each; three ways, for nobody waits for the last answer.
    """
    near, far = run(0.0), run(0.5)

    assert 2 + 2 == near.makespan_s
    assert 3 * 0.5 + near.makespan_s == far.makespan_s
    assert 0.5 == far.front_end_s


def test_calls_wait_for_each_other_before_they_wait_in_the_queue() -> None:
    """Two that are due at once are submitted one after the other; no memory is held meanwhile."""
    both = tuple(WorkloadInference(name, 1, 2, ()) for name in "ab")
    load = [WorkloadApplication("x", "class", 0.0, both)]
    engine = EngineProfile(kv_tokens=100, iteration=IterationCost(base_s=1.0))
    settings = RunSettings(engine=engine, policy="fcfs", report_interval_s=0.25, front_end_s=0.5)
    rows = simulate(load, settings).inferences

    assert [0.0, 0.0] == [row.submitted_at_s for row in rows]
    assert [0.5, 1.5] == [row.dispatched_at_s for row in rows]
