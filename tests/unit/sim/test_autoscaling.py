"""Simulated runs in which replicas are added and removed."""

from collections.abc import Sequence

import pytest

from justitia_ray.core.entities import Outcome
from justitia_ray.sim.autoscaling import AutoscaledSimulation, FixedSize, FleetView, ScaledRun
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication
from tests.unit.sim.small_run import application_of, engine

KV = 100
SLOTS = 4


class Steps:
    """Autoscaler that follows a table of instants and records its readings."""

    def __init__(self, *steps: tuple[float, int]) -> None:
        self._steps = steps
        self.views: list[tuple[float, int, int]] = []

    def target(self, view: FleetView) -> int:
        """Return the number of replicas of the latest instant that has passed."""
        self.views.append((view.now, view.running, view.requests))
        return [number for at, number in self._steps if at <= view.now][-1]


def run(
    applications: Sequence[WorkloadApplication],
    autoscaler: Steps | FixedSize,
    *,
    initial: int,
    load_s: float = 5.0,
    report_interval_s: float = 0.0,
) -> ScaledRun:
    """Return a run with iterations of one second."""
    settings = RunSettings(engine(KV), replicas=SLOTS, report_interval_s=report_interval_s)
    return AutoscaledSimulation(
        applications, settings, autoscaler, load_s=load_s, initial=initial
    ).run_scaled()


def finish_times(scaled: ScaledRun) -> dict[str, float | None]:
    assert {Outcome.FINISHED.value} == {one.outcome for one in scaled.result.applications}
    return {one.application_id: one.finished_at_s for one in scaled.result.applications}


def replica_of_each(scaled: ScaledRun) -> dict[str, int | str | None]:
    """Return the replica that ran the only inference of each application."""
    return {one.application_id: one.replica for one in scaled.result.inferences}


BIG = (50, 50)
"""Inference that fills a replica for 50 s."""


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
def test_fixed_number_of_replicas_equals_a_plain_run(interval_s: float) -> None:
    """The times are those of a run without an autoscaler."""
    applications = [application_of(f"a{i}", (10 + i, 20), (5, 9), at=3.0 * i) for i in range(20)]
    plain = simulate(
        applications, RunSettings(engine(KV), replicas=2, report_interval_s=interval_s)
    )
    scaled = run(applications, FixedSize(2), initial=2, report_interval_s=interval_s)

    assert {a.application_id: a.finished_at_s for a in plain.applications} == pytest.approx(
        finish_times(scaled), abs=interval_s + 1.0
    )
    assert 2 * scaled.result.makespan_s == pytest.approx(scaled.replica_s)


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
def test_started_replica_serves_after_its_loading_time(interval_s: float) -> None:
    scaled = run(
        [application_of("a", BIG), application_of("b", BIG)],
        Steps((0, 1), (10, 2)),
        initial=1,
        report_interval_s=interval_s,
    )

    assert {"a": 50.0, "b": 65.0} == finish_times(scaled)
    assert {"a": 0, "b": 1} == replica_of_each(scaled)
    assert 65.0 + 55.0 == scaled.replica_s


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
def test_draining_replica_finishes_its_inferences_and_gets_no_new_ones(interval_s: float) -> None:
    scaled = run(
        [
            application_of("a", (50, 40)),
            application_of("b", BIG),
            application_of("c", BIG, at=20.0),
        ],
        Steps((0, 2), (10, 1)),
        initial=2,
        report_interval_s=interval_s,
    )

    assert {"a": 40.0, "b": 50.0, "c": 90.0} == finish_times(scaled)
    assert (
        replica_of_each(scaled)["a"] == replica_of_each(scaled)["c"] != replica_of_each(scaled)["b"]
    )
    assert 90.0 + 50.0 == scaled.replica_s


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
def test_replicas_scale_from_zero_and_back(interval_s: float) -> None:
    autoscaler = Steps((0, 0), (20, 1), (60, 0), (100, 1))
    scaled = run(
        [application_of("a", (50, 10), at=1.0), application_of("b", (50, 10), at=80.0)],
        autoscaler,
        initial=0,
        report_interval_s=interval_s,
    )

    assert {"a": 35.0, "b": 115.0} == finish_times(scaled)
    assert (20.0, 0, 1) in autoscaler.views
    assert 40.0 + 15.0 == scaled.replica_s


def test_scale_down_removes_loading_replicas_first() -> None:
    """A loading replica has no work to lose."""
    scaled = run([application_of("a", BIG)], Steps((0, 1), (10, 2), (12, 1)), initial=1)

    assert 50.0 + 2.0 == scaled.replica_s
    assert [1, 2, 1] == [r.target for r in scaled.readings if r.at in (9.0, 11.0, 13.0)]


def test_autoscaler_readings_contain_the_true_remaining_work() -> None:
    scaled = run([application_of("a", BIG)], FixedSize(1), initial=1)

    left = [reading.true_work for reading in scaled.readings]
    assert 50 * 50 + 50 * 51 / 2 == left[1]  # the autoscaler first decides before the arrival
    assert left[1:] == sorted(left[1:], reverse=True)
    assert left[-1] < 2 * 100


@pytest.mark.parametrize("seed", range(5))
def test_no_inference_is_lost_under_any_autoscaler(seed: int) -> None:
    pattern = [(7 * seed + 3 * i) % 5 for i in range(200)]
    steps = Steps(*((float(5 * i), number) for i, number in enumerate(pattern)), (1_000.0, 2))
    applications = [
        application_of(f"a{i}", (10 + i % 7, 5 + i % 11), (20, 8, ("0",), 2.0), at=4.0 * i)
        for i in range(60)
    ]
    scaled = run(applications, steps, initial=1, load_s=3.0, report_interval_s=1.0)

    assert 60 == len(finish_times(scaled))
    assert 120 == sum(row.finished_at_s is not None for row in scaled.result.inferences)
