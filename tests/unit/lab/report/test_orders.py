"""Measures of the guard: delay relative to VTC, and slowdown relative to running alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from justitia_ray.core.entities import Outcome
from justitia_ray.lab.report import tasks
from justitia_ray.lab.report.experiment import Arm, Scale
from justitia_ray.lab.report.experiments import orders, predictors
from justitia_ray.lab.report.tasks import AloneRuns, KnownTimesRun, SimulatedRun, SuiteLoad
from justitia_ray.sim.results import ApplicationResult, RunResult, row_on_arrival
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, Seconds


def _two_applications() -> list[WorkloadApplication]:
    """Return an application of one call, and one with a second of tool time between two calls."""
    first = WorkloadInference("0", 5, 10)
    second = WorkloadInference("1", 5, 20, after=("0",), delay_s=1.0)
    return [
        WorkloadApplication("a", "c", 3.0, (first,)),
        WorkloadApplication("b", "c", 3.0, (first, second)),
    ]


def _ended_applications(**jct_s: Seconds) -> RunResult:
    rows: list[ApplicationResult] = []
    for application in _two_applications():
        row = row_on_arrival(application, 3.0, Outcome.FINISHED)
        row.jct_s = jct_s[application.application_id]
        row.finished_at_s = 3.0 + row.jct_s
        rows.append(row)
    return RunResult(rows)


def test_application_that_runs_alone_takes_the_time_of_its_longest_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SuiteLoad, "build", lambda load: _two_applications())

    run = AloneRuns(SuiteLoad("alone", 1, Path("nowhere"))).run()

    assert [0.3, 1.9] == [pytest.approx(row.jct_s) for row in run.applications]


def test_regret_compares_with_vtc_and_slowdown_with_running_alone() -> None:
    """An application that ends earlier than under VTC has no regret."""
    outcomes = {
        Arm("1x", "alone"): _ended_applications(a=1.0, b=2.0),
        Arm("1x", "vtc"): _ended_applications(a=4.0, b=10.0),
        Arm("1x", "guard"): _ended_applications(a=6.0, b=3.0),
    }

    measured = orders.ORDERS[0].measure(outcomes)[Arm("1x", "guard")]

    assert 2.0 == measured["max_regret_s"]
    assert 6.0 == measured["max_slowdown"]
    assert 1.5 == measured["worst_ratio_to_vtc"]
    assert 1.98 == pytest.approx(measured["p99_regret_s"])


def test_guard_with_true_end_times_gets_the_end_times_of_vtc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[RunSettings, Mapping[ApplicationId, Seconds]]] = []

    def record_told(
        applications: Sequence[WorkloadApplication],
        settings: RunSettings,
        ends: Mapping[ApplicationId, Seconds],
    ) -> RunResult:
        asked.append((settings, ends))
        return RunResult()

    monkeypatch.setattr(tasks, "simulate_with_known_times", record_told)
    monkeypatch.setattr(SuiteLoad, "build", lambda load: _two_applications())
    guard = SimulatedRun(SuiteLoad("told", 1, Path("nowhere")), "justitia", orders.GUARD)
    KnownTimesRun(guard).run()

    under_vtc = simulate(_two_applications(), RunSettings(guard.engine, "vtc"))
    ends = {row.application_id: row.finished_at_s for row in under_vtc.applications}
    assert {"a", "b"} == ends.keys()
    assert [(guard.settings(), ends)] == asked


def test_guard_run_with_true_end_times_has_a_separate_name() -> None:
    """Result lines must distinguish the guard with given end times from the predicting one."""
    guard = SimulatedRun(SuiteLoad("told", 1, Path("nowhere")), "justitia", orders.GUARD)
    configuration = {**KnownTimesRun(guard).configuration()}

    assert "told: the ends of a run under vtc" == configuration.pop("deadlines")
    assert guard.configuration() == configuration


@pytest.mark.parametrize("is_quick", [False, True])
def test_each_guard_arm_with_known_costs_has_an_arm_with_true_end_times(is_quick: bool) -> None:
    scale = Scale(seeds=(1,), data_dir=Path("nowhere"), is_quick=is_quick)
    known, *others = (experiment.arms(scale, 1) for experiment in orders.ORDERS)

    guards = {arm.group: task for arm, task in known.items() if arm.name == "guard"}
    told = {arm.group: task.of for arm, task in known.items() if isinstance(task, KnownTimesRun)}
    assert guards
    assert guards == told
    assert not any(isinstance(task, KnownTimesRun) for arms in others for task in arms.values())


def test_arms_with_learned_predictions_use_stages_of_ended_applications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A running service has statistics of ended applications, but not of live ones."""
    asked: list[RunSettings] = []

    def record_settings(
        applications: list[WorkloadApplication], settings: RunSettings
    ) -> RunResult:
        asked.append(settings)
        return RunResult()

    monkeypatch.setattr(predictors, "simulate", record_settings)
    monkeypatch.setattr(predictors, "predict_out_of_fold", lambda recipe, data_dir: None)
    monkeypatch.setattr(
        SuiteLoad, "build", lambda load: _two_applications() if load.suite == "earlier" else []
    )
    earlier = SuiteLoad("earlier", 1, Path("nowhere"))
    load = SuiteLoad("now", 2, Path("nowhere"))
    predictors.Predicted("mlp", load, options=orders.GUARD, earlier=earlier).run()

    (settings,) = asked
    assert dict(orders.GUARD) == settings.policy_options
    assert [1, 2] == [len(observation.stages) for observation in settings.history]
