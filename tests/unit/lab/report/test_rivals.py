"""The experiment `nine-class-rivals`, on a few applications: every arm, and the best settings."""

from dataclasses import replace

import pytest

from justitia_ray.lab.report.experiment import Arm
from justitia_ray.lab.report.experiments import rivals, sessions
from justitia_ray.lab.report.tasks import SuiteLoad
from justitia_ray.sim.sessions.arms import APPLICATION_ARMS
from justitia_ray.sim.suites import SuiteOptions, build_suite
from tests.unit.lab.report.small import SCALE

_QUICK = replace(SCALE, is_quick=True, applications=8)


@pytest.fixture(autouse=True)
def _synthesised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the load from published statistics, so that no data directory is needed."""
    monkeypatch.setattr(
        SuiteLoad,
        "build",
        lambda load: build_suite(
            load.suite, SuiteOptions(count=load.count, window_s=load.window_s, seed=load.seed)
        ),
    )


def test_every_arm_has_a_row_with_its_best_setting() -> None:
    arms = rivals.NINE_CLASS_RIVALS.arms(_QUICK, 1)
    outcomes = {arm: task.run() for arm, task in arms.items()}
    found = rivals.NINE_CLASS_RIVALS.measure(outcomes)

    assert {Arm("1 replica, 3x", arm) for arm in APPLICATION_ARMS} == set(found)
    for arm, figures in found.items():
        assert 0 <= (figures["setting"] or 0) < len(APPLICATION_ARMS[arm.name].grid)
        assert 0 < (figures["mean_s"] or 0) <= (figures["worst_s"] or 0)
    vtc = found[Arm("1 replica, 3x", "vtc")]
    assert (1.0, 1.0) == (vtc["no_later_than_vtc"], vtc["worst_ratio_to_vtc"])


def test_four_replicas_have_four_times_the_arrivals() -> None:
    arms = rivals.NINE_CLASS_RIVALS.arms(replace(SCALE, applications=30), 1)
    one, four = (arms[Arm(group, "pinned")] for group in ("1 replica, 3x", "4 replicas, 3x"))

    assert 4.0 == one.configuration()["window_s"] / four.configuration()["window_s"]


def test_best_settings_have_the_least_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    means = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(sessions, "_mean", lambda _: next(means))
    task = rivals.NINE_CLASS_RIVALS.arms(_QUICK, 1)[Arm("1 replica, 3x", "cache-ttl")]

    assert 1 == task.run().setting
    assert [0.5, 2.0, 10.0] == [one["ttl_s"] for one in task.configuration()["tried"][:3]]
