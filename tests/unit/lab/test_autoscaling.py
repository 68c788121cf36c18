"""Autoscalers on recorded arrivals: measures of a run, and Serve's own rules in one."""

from collections.abc import Iterator
from typing import Any

from ray.serve.config import AutoscalingContext

from justitia_ray.core import SchedulerCore
from justitia_ray.lab.autoscaling import reaction_times, scaled_figures
from justitia_ray.lab.serve_scaling import (
    DrainScaler,
    RequestsScaler,
    ServeScaler,
    scaling_config,
)
from justitia_ray.sim.autoscaling import AutoscaledSimulation, FleetReading, FleetView, ScaledRun
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication
from tests.unit.sim.small_run import application_of, engine


def fleet_view(now: float, running: int, target: int, requests: int = 0) -> FleetView:
    """Return what an autoscaler reads at one time."""
    return FleetView(now, SchedulerCore(), running, target, requests)


def target_replicas(scaler: ServeScaler, *steps: tuple[float, int, int]) -> Iterator[int]:
    """Yield the decision at each (time, replicas, requests); each decision is carried out."""
    target = steps[0][1]
    for now, running, requests in steps:
        target = scaler.target(fleet_view(now, running, target, requests))
        yield target


def test_default_autoscaler_of_ray_serve_divides_requests_by_the_target() -> None:
    """Forty requests at ten per replica give four replicas, once they were wanted for 30 s."""
    scaler = RequestsScaler(scaling_config(1, 10, 10.0, 30.0, 600.0))
    steps = [(float(10 * i), 1, 40) for i in range(5)]

    assert [1, 1, 1, 4, 4] == [*target_replicas(scaler, *steps)]


def test_requests_are_averaged_over_ray_serves_look_back_period() -> None:
    """Within thirty seconds, a short burst counts by its duration."""
    scaler = RequestsScaler(scaling_config(1, 10, 10.0, 0.0, 600.0))
    steps = [(0.0, 1, 0), (10.0, 1, 0), (20.0, 1, 80), (30.0, 1, 0)]

    assert [1, 1, 3, 3] == [*target_replicas(scaler, *steps)]


def test_number_of_replicas_stays_within_ray_serves_bounds() -> None:
    """A policy may request any number of replicas."""

    def request_99_replicas(_: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        return 99, {}

    assert 10 == ServeScaler(scaling_config(1, 10, None, 0.0, 0.0), request_99_replicas).target(
        fleet_view(0.0, 1, 1)
    )


def fleet_reading(at: float, target: int, work: float) -> FleetReading:
    """Return a reading in which all requested replicas are ready."""
    return FleetReading(at, target, target, work)


def test_reaction_time_is_from_overload_to_more_replicas() -> None:
    readings = [
        fleet_reading(0.0, 1, 50),
        fleet_reading(10.0, 1, 150),
        fleet_reading(20.0, 1, 180),
        fleet_reading(30.0, 2, 180),
        fleet_reading(40.0, 2, 120),
    ]

    assert [20.0] == reaction_times(readings, 100)


def test_overload_that_ends_without_a_scale_up_has_no_reaction_time() -> None:
    """The work was served in time, so the autoscaler was right to wait."""
    readings = [fleet_reading(0.0, 1, 150), fleet_reading(10.0, 1, 90), fleet_reading(20.0, 2, 90)]

    assert [] == reaction_times(readings, 100)


def test_fixed_number_of_replicas_has_no_reaction_time() -> None:
    run = ScaledRun(RunResult(), 7_200.0, [fleet_reading(0.0, 2, 300), fleet_reading(1.0, 2, 100)])

    assert {
        "mean_jct_s": None,
        "p99_jct_s": None,
        "replica_h": 2.0,
        "reaction_s": None,
        "late_share": 0.5,
        "peak": 2,
    } == scaled_figures(run, 10.0, 10.0)


def burst_load() -> list[WorkloadApplication]:
    """Return a burst after a quiet time, and a late application."""
    burst = [application_of(f"b{i}", (50, 50), at=100.0) for i in range(12)]
    return [application_of("first", (50, 10)), *burst, application_of("late", (50, 10), at=2_000.0)]


def test_autoscaling_by_drain_time_scales_from_zero_and_back() -> None:
    """The simulator runs the same autoscaler class as Serve."""
    rules = {"minimum": 0, "maximum": 4, "target_drain_s": 60.0, "load_s": 5.0}
    scaler = DrainScaler(scaling_config(0, 4, None, 0.0, 30.0), rules)
    settings = RunSettings(engine(100), replicas=8, report_interval_s=1.0)
    run = AutoscaledSimulation(burst_load(), settings, scaler, load_s=5.0, initial=0).run_scaled()
    at = {one.at: one.target for one in run.readings}

    assert 14 == sum(one.finished_at_s is not None for one in run.result.applications)
    assert 4 == max(at.values())
    assert 0 == at[1_999.0]
    assert 1 == run.readings[-1].target
    assert run.replica_s < 4 * run.result.makespan_s / 3
