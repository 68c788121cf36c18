"""The guard that is given the end time of each application under VTC."""

from functools import partial

import pytest

from justitia_ray.core.entities import Application, Inference
from justitia_ray.lab.report.experiment import Arm, Task
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.experiments.orders import GUARD
from justitia_ray.lab.report.tasks import KnownTimesRun, SimulatedRun, SuiteLoad
from justitia_ray.lab.told import ToldVtc, simulate_with_known_times
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.predictions import TABLE
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, Seconds
from tests.unit.sim.data_directory import REAL, needs_real_data

_PATH_S = 3.0
"""Longest path of each application: 30 iterations of 0.1 s."""


def _create_application(name: str) -> Application:
    return Application(name, "c", "t", 1, 1, "i", 0.0, int(name))


def _create_shadow(**ends: Seconds) -> ToldVtc:
    """Return a simulated VTC with live applications 1, 2, …, each with one waiting inference."""
    told = ToldVtc(lambda: 0)
    told.pace.iteration_s = 0.1
    told.ends = {name.removeprefix("n"): end for name, end in ends.items()}
    for name in told.ends:
        inference = Inference(name, name, name, "i", 20, 30, 99, 1, 0.0, 1)
        told.submitted(_create_application(name), inference, 0.0)
    return told


def test_guard_uses_the_given_end_times_as_deadlines() -> None:
    """The guard's own prediction of the deadline is not used."""
    told = _create_shadow(n1=50.0)
    told.pace.kv_per_s = 100.0

    assert 50.0 == told.deadline("1", 0.0)
    assert told.deadline("2", 0.0) is None


def test_application_is_urgent_within_the_margin_before_its_end_time() -> None:
    told = _create_shadow(n1=50.0)
    begins = 50.0 - _PATH_S - _PATH_S

    assert [] == told.urgent(begins - 0.01)
    assert ["1"] == told.urgent(begins)


def test_urgent_applications_are_ordered_by_end_time_and_arrival() -> None:
    """Neither the order of addition nor the names matter."""
    assert ["3", "9", "10", "1"] == _create_shadow(n10=2.0, n1=3.0, n9=2.0, n3=1.0).urgent(0.0)


def test_only_live_waiting_applications_are_urgent() -> None:
    """An ended or fully running application does not overtake others."""
    told = _create_shadow(n1=1.0, n2=1.0, n3=1.0)
    told.application_ended(_create_application("2"), 0.0)

    assert ["1", "3"] == told.urgent(0.0)
    assert ["3"] == told.urgent(0.0, lambda name: name == "3")


def _parallel_calls(name: str, at: float, calls: int, output: int) -> WorkloadApplication:
    """Return an application of simultaneous calls."""
    inferences = tuple(WorkloadInference(str(n), 60, output) for n in range(calls))
    return WorkloadApplication(name, f"fan {calls}", at, inferences)


def _chain_of_calls(name: str, at: float, calls: int, output: int) -> WorkloadApplication:
    """Return an application of consecutive calls."""
    inferences = tuple(
        WorkloadInference(str(n), 60, output, (str(n - 1),) if n else ()) for n in range(calls)
    )
    return WorkloadApplication(name, f"chain {calls}", at, inferences)


def _end_times(run: RunResult) -> dict[ApplicationId, Seconds]:
    ends = {row.application_id: row.finished_at_s for row in run.applications}
    return {name: end for name, end in ends.items() if end is not None}


def test_guard_first_serves_the_application_with_an_early_vtc_end() -> None:
    """VTC would end it early, although it is the largest of ten applications."""
    load = [
        _parallel_calls("large", 0.0, 4, 100),
        *(_parallel_calls(f"s{n}", 0.0, 2, 60) for n in range(9)),
    ]
    run = partial(
        simulate_with_known_times,
        load,
        RunSettings(EngineProfile(kv_tokens=320), policy_options=dict(GUARD)),
    )

    never, at_once = _end_times(run({})), _end_times(run({"large": 0.0}))
    assert "large" == max(never, key=never.__getitem__)
    assert "large" == min(at_once, key=at_once.__getitem__)


def test_guard_with_true_end_times_corrects_a_wrong_prediction() -> None:
    """The guard cannot predict the end of a chain before its later stages are known."""
    load = [_parallel_calls(f"f{n}", n * 1.0, 1 + 3 * (n % 2), 100) for n in range(10)]
    load += [_chain_of_calls(f"c{n}", n * 2.0, 3, 100) for n in range(5)]
    engine = EngineProfile(kv_tokens=500)
    costs = {application.application_id: application.cost() for application in load}
    guard = RunSettings(
        engine, policy_options=dict(GUARD), prediction=TABLE, predicted_costs=costs, history=()
    )
    ends = _end_times(simulate(load, RunSettings(engine, "vtc")))

    assert _end_times(simulate(load, guard)) != _end_times(
        simulate_with_known_times(load, guard, ends)
    )


@needs_real_data
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_guard_with_true_end_times_delays_fewer_applications_beyond_vtc(
    seed: int,
) -> None:
    load = SuiteLoad("nine-class", seed, REAL, count=40, window_s=48.0)
    tasks: dict[str, Task] = {name: SimulatedRun(load, name) for name in ("vtc", "justitia")}
    tasks["told"] = KnownTimesRun(SimulatedRun(load, "justitia", GUARD))
    measured = nine_class.measure({Arm("", name): task.run() for name, task in tasks.items()})

    finish, told = (measured[Arm("", name)]["no_later_than_vtc"] for name in ("justitia", "told"))
    assert finish is not None
    assert told is not None
    assert told >= finish
