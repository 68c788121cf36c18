"""The list of experiments: consistent with itself, its arms paired, its loads as they say."""

import pickle
from pathlib import Path

import pytest

from justitia_ray.report.experiment import Arm, Experiment, Scale, Task
from justitia_ray.report.experiments import EXPERIMENTS
from justitia_ray.report.experiments.offered_load import OfferedLoad
from justitia_ray.report.experiments.tenants import TENANTS
from justitia_ray.report.loads import LimitedLoad, SuiteLoad
from justitia_ray.report.published import published_values
from justitia_ray.report.tasks import Recording, ServedRequests, Simulation
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

_DATA = Path("data")
_FULL = Scale(seeds=(101, 102), data_dir=_DATA)
_QUICK = Scale(seeds=(101, 102), data_dir=_DATA, is_quick=True, applications=60)

each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)


def _arms(experiment: Experiment, scale: Scale = _FULL, seed: int = 101) -> dict[Arm, Task]:
    return dict(experiment.arms(scale, seed))


def test_names_are_unique() -> None:
    """A name is an anchor on the page and the key of lines: two of one would mix."""
    names = [experiment.name for experiment in EXPERIMENTS]

    assert len(names) == len(set(names))


def test_published_numbers_have_an_arm_to_stand_beside() -> None:
    """A misspelt arm would drop a published number from the page without a word."""
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    for entry in published_values():
        experiment = by_name[entry.experiment]
        against = {(c.metric, c.against) for c in experiment.comparisons}
        assert entry.arm in _arms(experiment), entry
        assert experiment.metric(entry.metric)
        assert entry.against is None or (entry.metric, entry.against) in against, entry


@each_experiment
def test_comparisons_and_targets_name_what_there_is(experiment: Experiment) -> None:
    """A comparison with an arm that is not there would show an empty column for ever."""
    names = {arm.name for arm in _arms(experiment)}
    for comparison in experiment.comparisons:
        assert experiment.metric(comparison.metric)
        assert comparison.against in names
    for target in experiment.targets:
        assert target.arm in _arms(experiment)
        assert experiment.metric(target.metric)
        assert (target.at_most is None) != (target.at_least is None)


@each_experiment
def test_tasks_can_be_sent_to_a_process_and_told_apart(experiment: Experiment) -> None:
    """Runs happen in other processes; a task that came back unequal would be lost there."""
    for task in _arms(experiment).values():
        assert task == pickle.loads(pickle.dumps(task))
        assert "configuration" not in task.configuration()
        assert str(_DATA) not in str(task.configuration())


@each_experiment
def test_arms_that_are_compared_run_on_the_same_draws(experiment: Experiment) -> None:
    """Paired differences are of policies only if both sides have the same load."""
    if experiment is TENANTS or not experiment.comparisons:
        pytest.skip("its arms are different loads, or are not compared")
    loads: dict[str, set[object]] = {}
    for arm, task in _arms(experiment).items():
        run = task.of if isinstance(task, ServedRequests) else task
        if isinstance(run, Simulation) and not isinstance(run.load, LimitedLoad):
            loads.setdefault(arm.group, set()).add(run.load)
    assert [] == [group for group, found in loads.items() if len(found) != 1]


@each_experiment
def test_seeds_draw_other_loads(experiment: Experiment) -> None:
    """Five seeds of one draw would make an interval of width zero."""
    if not experiment.is_drawn:
        assert (101,) == experiment.seeds(_FULL)
        return
    assert (101, 102) == experiment.seeds(_FULL)
    first, second = (set(_arms(experiment, seed=seed).values()) for seed in (101, 102))
    recorded = {task for task in first if isinstance(task, Recording)}
    assert recorded == first & second


def test_quick_report_is_much_smaller() -> None:
    """A minute and a half on two cores: few runs, and none of them larger than in the full one."""
    runs = {}
    for scale in (_FULL, _QUICK):
        tasks = {t for e in EXPERIMENTS for s in e.seeds(scale) for t in e.arms(scale, s).values()}
        runs[scale.is_quick] = len(tasks)

    assert runs[True] < 0.75 * runs[False]


def _request(name: str, tenant: str, arrived_at_s: float) -> WorkloadApplication:
    inferences = (WorkloadInference("0", 10, 10),)
    return WorkloadApplication(name, "request", arrived_at_s, inferences, tenant=tenant)


class _FixedLoad:
    """Applications of a test."""

    def __init__(self, *applications: WorkloadApplication) -> None:
        self._applications = applications

    def build(self) -> list[WorkloadApplication]:
        return list(self._applications)

    def configuration(self) -> dict[str, object]:
        return {}

    def __hash__(self) -> int:
        return id(self)


def test_limit_refuses_the_excess_of_each_minute_and_client() -> None:
    """Two a minute: the third of a in the first minute is refused, b's and later ones are not."""
    load = _FixedLoad(
        _request("a0", "a", 1.0),
        _request("a1", "a", 2.0),
        _request("b0", "b", 3.0),
        _request("a2", "a", 59.9),
        _request("a3", "a", 60.0),
    )

    kept = [a.application_id for a in LimitedLoad(load, 2).build()]
    assert ["a0", "a1", "b0", "a3"] == kept


def test_offered_load_is_cost_over_what_a_replica_delivers() -> None:
    """At load 2 the window is half as long as a full memory would need for all the cost."""
    suite = SuiteLoad("two-clients-overload", 1, _DATA, count=20, window_s=100.0)
    plain, stretched = suite.build(), OfferedLoad(suite, 2.0).build()

    work_s = 20 * (256 * 256 + 256 * 257 / 2) / 7_344 * 0.03
    assert [a.inferences for a in plain] == [a.inferences for a in stretched]
    assert [a.arrived_at_s * work_s / 2 / 100 for a in plain] == pytest.approx(
        [a.arrived_at_s for a in stretched]
    )


def test_splitting_gains_under_fairness_by_application_only() -> None:
    """The experiment shows the gain where it is known to be, and none by tenant.

    All three tenants have 100 inferences of one size; as one application the splitter is last. In
    100 pieces each of them is the smallest application: it ends first, after a third of the work.
    """
    outcomes = {arm: task.run() for arm, task in _arms(TENANTS).items() if "justitia" in arm.group}
    found = TENANTS.measure(_FULL, outcomes)

    by_application = found[Arm("justitia, by application", "split in 100")]
    as_one = found[Arm("justitia, by application", "as one")]
    by_tenant = found[Arm("justitia, by tenant", "split in 100")]
    tenant_as_one = found[Arm("justitia, by tenant", "as one")]
    end, late = by_application["splitter_end_s"], as_one["splitter_end_s"]
    assert end is not None
    assert late is not None
    assert end == pytest.approx(late / 3, rel=0.02)
    assert tenant_as_one["splitter_end_s"] == by_tenant["splitter_end_s"]
