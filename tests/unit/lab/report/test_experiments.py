"""The list of experiments: consistent, with paired arms and the stated loads."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.experiment import Arm, Experiment, Scale, Task
from justitia_ray.lab.report.experiments import EXPERIMENTS
from justitia_ray.lab.report.experiments.variants import TENANTS, at_offered_load
from justitia_ray.lab.report.published import published_values
from justitia_ray.lab.report.tasks import (
    ChangedLoad,
    KnownTimesRun,
    Recording,
    ServedRequests,
    SimulatedRun,
    SuiteLoad,
    requests_per_minute,
)
from justitia_ray.sim.calibration.measured import COLUMNS, TimedRequest
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

_DATA = Path("data")
_FULL = Scale(seeds=(101, 102), data_dir=_DATA)
_QUICK = Scale(seeds=(101, 102), data_dir=_DATA, is_quick=True, applications=60)

each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)


def _arms_of_experiment(
    experiment: Experiment, scale: Scale = _FULL, seed: int = 101
) -> dict[Arm, Task]:
    return dict(experiment.arms(scale, seed))


def test_experiment_names_are_unique() -> None:
    """A name is an anchor on the page and the key of result lines."""
    names = [experiment.name for experiment in EXPERIMENTS]

    assert len(names) == len(set(names))


def test_published_numbers_have_a_matching_arm_in_the_experiments() -> None:
    """A misspelt arm would silently drop a published number from the page."""
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    for entry in published_values():
        experiment = by_name[entry.experiment]
        against = {(c.metric, c.against) for c in experiment.comparisons}
        assert entry.arm in _arms_of_experiment(experiment), entry
        assert experiment.metric(entry.metric)
        assert entry.against is None or (entry.metric, entry.against) in against, entry


@each_experiment
def test_comparisons_and_targets_name_existing_arms(experiment: Experiment) -> None:
    """A comparison with a missing arm would show an empty column."""
    names = {arm.name for arm in _arms_of_experiment(experiment)}
    for comparison in experiment.comparisons:
        assert experiment.metric(comparison.metric)
        assert comparison.against in names
    for target in experiment.targets:
        assert target.arm in _arms_of_experiment(experiment)
        assert experiment.metric(target.metric)
        assert (target.at_most is None) != (target.at_least is None)


@each_experiment
def test_experiment_tasks_can_be_pickled_and_compared(experiment: Experiment) -> None:
    """Runs happen in other processes, and results are matched by equality."""
    for task in _arms_of_experiment(experiment).values():
        assert task == pickle.loads(pickle.dumps(task))
        assert "configuration" not in task.configuration()
        assert str(_DATA) not in str(task.configuration())


@each_experiment
def test_compared_arms_run_on_the_same_load(experiment: Experiment) -> None:
    """Paired differences are due to policies only if both arms have the same load."""
    if experiment is TENANTS or not experiment.comparisons:
        pytest.skip("its arms are different loads, or are not compared")
    loads: dict[str, set[object]] = {}
    for arm, task in _arms_of_experiment(experiment).items():
        run = task.of if isinstance(task, ServedRequests | KnownTimesRun) else task
        if isinstance(run, SimulatedRun) and not arm.name.startswith("rpm "):
            loads.setdefault(arm.group, set()).add(run.load)
    assert [] == [group for group, found in loads.items() if len(found) != 1]


@each_experiment
def test_different_seeds_draw_different_loads(experiment: Experiment) -> None:
    """Five seeds with one load would give an interval of width zero."""
    if not experiment.is_drawn:
        assert (101,) == experiment.seeds(_FULL)
        return
    assert (101, 102) == experiment.seeds(_FULL)
    first, second = (
        set(_arms_of_experiment(experiment, seed=seed).values()) for seed in (101, 102)
    )
    recorded = {task for task in first if isinstance(task, Recording)}
    assert recorded == first & second


def test_quick_report_runs_fewer_tasks() -> None:
    """A quick report takes a minute and a half on two cores."""
    runs = {}
    for scale in (_FULL, _QUICK):
        tasks = {t for e in EXPERIMENTS for s in e.seeds(scale) for t in e.arms(scale, s).values()}
        runs[scale.is_quick] = len(tasks)

    assert runs[True] < 0.75 * runs[False]


def _create_request(name: str, tenant: str, arrived_at_s: float) -> WorkloadApplication:
    inferences = (WorkloadInference("0", 10, 10),)
    return WorkloadApplication(name, "request", arrived_at_s, inferences, tenant=tenant)


def test_rate_limit_refuses_excess_requests_per_minute_and_client() -> None:
    asked = [("a0", 1.0), ("a1", 2.0), ("b0", 3.0), ("a2", 59.9), ("a3", 60.0)]
    requests = [_create_request(name, name[0], arrived_at_s) for name, arrived_at_s in asked]
    load: Any = SimpleNamespace(build=lambda: requests)

    kept = [a.application_id for a in requests_per_minute(load, 2)]
    assert ["a0", "a1", "b0", "a3"] == kept


def test_offered_load_is_cost_divided_by_the_capacity_of_a_replica() -> None:
    suite = SuiteLoad("two-clients-overload", 1, _DATA, count=20, window_s=100.0)
    plain, stretched = suite.build(), ChangedLoad(suite, at_offered_load, 2.0).build()

    work_s = 20 * (256 * 256 + 256 * 257 / 2) / 7_344 * 0.03
    assert [a.inferences for a in plain] == [a.inferences for a in stretched]
    assert [a.arrived_at_s * work_s / 2 / 100 for a in plain] == pytest.approx(
        [a.arrived_at_s for a in stretched]
    )


def test_splitting_an_application_pays_only_under_fairness_by_application() -> None:
    """Under fairness by tenant, splitting gains nothing.

    All three tenants have 100 inferences of one size; as one application the splitter is last. In
    100 pieces each of them is the smallest application: it ends first, after a third of the work.
    """
    outcomes = {
        arm: task.run()
        for arm, task in _arms_of_experiment(TENANTS).items()
        if "justitia" in arm.group
    }
    found = TENANTS.measure(outcomes)

    end, as_one = (
        found[Arm("justitia, by application", parts)]["splitter_end_s"]
        for parts in ("split in 100", "as one")
    )
    assert end
    assert as_one
    assert end == pytest.approx(as_one / 3, rel=0.02)
    split = found[Arm("justitia, by tenant", "split in 100")]
    assert split["splitter_end_s"] == found[Arm("justitia, by tenant", "as one")]["splitter_end_s"]


def test_refused_requests_are_not_counted_as_served(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"{','.join(COLUMNS)}\n3,1.5,10,20,0.5,2.0\n4,2.5,10,20,,\n")

    assert [TimedRequest("3", 1.5, 10, 20, 2.0, 3.5)] == list(Recording(path, "run").run())


def test_missing_recording_is_named_on_the_report_page(tmp_path: Path) -> None:
    """Apart from the missing recording, the page is complete."""
    with pytest.raises(ConfigError, match=r"run\.csv: cannot be read"):
        Recording(tmp_path / "run.csv", "run").run()
