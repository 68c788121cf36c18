"""Delays around the engine: payload transport, the front end, engines slowed by calls."""

from typing import Any

import pytest

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

HELD_UP = 0.25
EXACT, LATE = 0.0, 0.25
"""Report modes: both ways in which the simulator steps from one event to the next."""


def simulate_in_order(
    *applications: WorkloadApplication, base_s: float = 1.0, engine: Any = None, **settings: Any
) -> RunResult:
    """Simulate applications on engines with iterations of `base_s`, in order of submission."""
    knobs = {"kv_tokens": 100, **(engine or {})}
    profile = EngineProfile(iteration=IterationCost(base_s=base_s), **knobs)
    return simulate(
        list(applications),
        RunSettings(**{"policy": "fcfs", "report_interval_s": 0.25, **settings}, engine=profile),
    )


def single_call(name: str, prompt: int, output: int, at: float = 0.0) -> WorkloadApplication:
    return WorkloadApplication(name, "class", at, (WorkloadInference("only", prompt, output),))


def finish_times(result: RunResult) -> list[float | None]:
    return [a.finished_at_s for a in result.applications]


def run_with_dispatch(dispatch_s: float, kv_tokens: int, *sizes: tuple[int, int]) -> RunResult:
    """Simulate applications of one inference that arrive at once, on one engine."""
    load = [single_call(f"a{n}", *size) for n, size in enumerate(sizes)]
    engine = {"kv_tokens": kv_tokens, "admission": "peak"}
    return simulate_in_order(*load, base_s=0.1, engine=engine, dispatch_s=dispatch_s)


def test_prefill_starts_when_the_prompt_arrives_at_the_engine() -> None:
    assert [pytest.approx(1.0)] == finish_times(run_with_dispatch(0.0, 1000, (100, 10)))
    assert [pytest.approx(1.5)] == finish_times(run_with_dispatch(0.5, 1000, (100, 10)))


def test_kv_memory_is_reserved_while_a_prompt_is_sent_to_the_engine() -> None:
    result = run_with_dispatch(0.5, 150, (100, 10), (100, 10))

    assert [pytest.approx(1.5), pytest.approx(3.0)] == finish_times(result)
    assert 0 == result.preemptions


def test_arrived_prompt_joins_the_engine_at_the_next_iteration() -> None:
    result = run_with_dispatch(0.25, 1000, (100, 10), (100, 20))

    assert [pytest.approx(1.25), pytest.approx(2.25)] == finish_times(result)


def test_all_inferences_end_despite_little_memory() -> None:
    result = run_with_dispatch(0.13, 500, *((50 + n % 7, 5 + n % 11) for n in range(60)))

    assert all(end is not None for end in finish_times(result))
    assert 0 == result.preemptions


def front_end_run(front_end_s: float) -> RunResult:
    """Run an application of two consecutive inferences on an empty engine."""
    inferences = (WorkloadInference("a", 1, 2, ()), WorkloadInference("b", 1, 2, ("a",)))
    load = WorkloadApplication("x", "class", 0.0, inferences)
    return simulate_in_order(load, front_end_s=front_end_s)


def test_each_inference_passes_the_front_end_twice() -> None:
    """An inference passes at its submission and with its answer.

    Each pass takes two iterations; there are three, because nothing waits for the last answer.
    """
    near, far = front_end_run(0.0), front_end_run(0.5)

    assert 2 + 2 == near.makespan_s
    assert 3 * 0.5 + near.makespan_s == far.makespan_s
    assert 0.5 == far.front_end_s


def test_simultaneous_calls_pass_the_front_end_in_sequence() -> None:
    both = tuple(WorkloadInference(name, 1, 2, ()) for name in "ab")
    load = WorkloadApplication("x", "class", 0.0, both)
    rows = simulate_in_order(load, front_end_s=0.5).inferences

    assert [0.0, 0.0] == [row.submitted_at_s for row in rows]
    assert [0.5, 1.5] == [row.dispatched_at_s for row in rows]


def run_with_hold_up(*arrivals: tuple[float, int], reports_s: float, seats: int = 1) -> RunResult:
    """Run one-call applications, given by arrival and output, on two engines."""
    load = [single_call(f"a{n}", 1, output, at) for n, (at, output) in enumerate(arrivals)]
    held = {"report_interval_s": reports_s, "hold_up_s": HELD_UP, "replicas": 2}
    return simulate_in_order(*load, engine={"max_num_seqs": seats}, **held)


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_arriving_call_delays_the_iterations_of_all_engines(reports_s: float) -> None:
    """Two simultaneous arrivals slow both engines twice."""
    result = run_with_hold_up((0.0, 3), (0.0, 5), reports_s=reports_s)

    assert [3 + 2 * HELD_UP, 5 + 2 * HELD_UP] == finish_times(result)
    assert [1 + 2 * HELD_UP] * 2 == [row.first_token_at_s for row in result.inferences]


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_ending_call_delays_the_other_calls(reports_s: float) -> None:
    """The CPU cores that run the engines also transport the answer.

    Each engine has two calls here; one ends first. Four arrive at once, one ends after three
    iterations, and then no call ends before the fifth.
    """
    result = run_with_hold_up((0.0, 3), (0.0, 5), (0.0, 5), (0.0, 5), reports_s=reports_s, seats=2)

    begun = 4 * HELD_UP
    assert [3 + begun, *[5 + begun + HELD_UP] * 3] == finish_times(result)


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_single_engine_is_not_delayed_by_calls(reports_s: float) -> None:
    assert [3.0, 14.0] == finish_times(run_with_hold_up((0.0, 3), (10.0, 4), reports_s=reports_s))
