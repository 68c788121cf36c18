"""Engines that share their cores with what serves them: calls that come and end hold them up."""

import pytest

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

HELD_UP = 0.25
EXACT, LATE = 0.0, 0.25
"""Of reports: both ways of the simulator to go from one event to the next."""


def run(
    *arrivals: tuple[float, int], reports_s: float, hold_up_s: float = HELD_UP, seats: int = 1
) -> RunResult:
    """Let applications of one call, by arrival and output, run on two engines of 1 s iterations."""
    load = [
        WorkloadApplication(
            f"a{number}", "class", arrived_at_s, (WorkloadInference("only", 1, output_tokens),)
        )
        for number, (arrived_at_s, output_tokens) in enumerate(arrivals)
    ]
    engine = EngineProfile(kv_tokens=100, max_num_seqs=seats, iteration=IterationCost(base_s=1.0))
    settings = RunSettings(
        engine=engine,
        policy="fcfs",
        replicas=2,
        report_interval_s=reports_s,
        hold_up_s=hold_up_s,
    )
    return simulate(load, settings)


def ends(result: RunResult) -> list[float | None]:
    """Return when applications ended."""
    return [a.finished_at_s for a in result.applications]


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_a_call_that_comes_holds_up_all_engines(reports_s: float) -> None:
    """Two that come at once cost both engines twice; of who is left alone nobody takes the core."""
    result = run((0.0, 3), (0.0, 5), reports_s=reports_s)

    assert [3 + 2 * HELD_UP, 5 + 2 * HELD_UP] == ends(result)
    assert [1 + 2 * HELD_UP] * 2 == [row.first_token_at_s for row in result.inferences]


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_a_call_that_ends_holds_up_who_goes_on(reports_s: float) -> None:
    """Its answer is taken away by the same cores. Each engine has two calls here; one ends first.

    Four come at once, one ends after three iterations, and then nothing before the fifth.
    """
    result = run((0.0, 3), (0.0, 5), (0.0, 5), (0.0, 5), reports_s=reports_s, seats=2)

    begun = 4 * HELD_UP
    assert [3 + begun, *[5 + begun + HELD_UP] * 3] == ends(result)


@pytest.mark.parametrize("reports_s", [EXACT, LATE])
def test_one_engine_alone_is_not_held_up(reports_s: float) -> None:
    """The core of the other one is free."""
    assert [3.0, 14.0] == ends(run((0.0, 3), (10.0, 4), reports_s=reports_s))
