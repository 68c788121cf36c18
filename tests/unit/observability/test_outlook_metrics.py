"""Scheduler metrics of waiting applications, predicted start times and deadlines."""

from dataclasses import dataclass, field

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.outlook import Held, Reason
from justitia_ray.observability.outlook_metrics import OutlookMetrics
from justitia_ray.observability.scheduler_metrics import DecisionMeter, SchedulerMetrics
from tests.core_driver import CoreDriver
from tests.unit.observability.recording_backend import RecordingBackend, export_once, new_measures


@dataclass
class SteppingClock:
    """Precise clock that advances 10 ms with each reading."""

    at: float = 0.0
    readings: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.at += 0.01
        self.readings.append(self.at)
        return self.at


@pytest.fixture
def new_driver() -> CoreDriver:
    return CoreDriver(SchedulerCore(lease_prefix="1-"))


def metrics_of(new_driver: CoreDriver, held_back: int = 0) -> RecordingBackend:
    source = new_measures("scheduler")
    OutlookMetrics(source, lambda: 0.0).measure(new_driver.core, held_back)
    return export_once(source)


def nonzero_gauges(told: RecordingBackend, name: str) -> dict[str, float]:
    return {key[1]: value for key, value in told.gauges.items() if key[0] == name and value}


def test_live_applications_are_counted_by_waiting_reason_and_tier(new_driver: CoreDriver) -> None:
    for name, tier in (("r", "flex"), ("f", "default"), ("t", "default"), ("q", "of old")):
        new_driver.handle(ev.ApplicationArrived(name, "class", "t", 1.0, 1_000, "i0", tier=tier))
    new_driver.submit("r-1", application_id="r")
    new_driver.pull(seats=1)
    for name in "ft":
        new_driver.submit(f"{name}-1", application_id=name)
    new_driver.core.outlooks.held_by = lambda one: (
        Held(Reason.QUOTA, "acme") if one.application_id == "q" else None
    )
    told = metrics_of(new_driver, held_back=3)

    assert {"running": 1, "headroom": 1, "turn": 1, "quota": 4} == nonzero_gauges(
        told, "applications_by_outlook"
    )
    assert {"flex": 1, "default": 3} == nonzero_gauges(told, "applications_by_tier")


def test_metrics_of_the_working_set_are_exported_and_cleared() -> None:
    driver = CoreDriver(SchedulerCore(lease_prefix="1-"))
    driver.pull(progress=None, kv=10_000, caches=True)
    for name, cost in (("runs", 1e6), ("idle", 2e6), ("first", 3e6)):
        driver.open(name, cost)
    driver.submit("runs1", "runs", prompt=990)
    driver.submit("idle1", "idle", prompt=5_990)
    driver.end("idle1", 5_990)
    driver.submit("first1", "first", prompt=3_000)
    source = new_measures("scheduler")
    metrics = OutlookMetrics(source, lambda: 0.0)
    metrics.measure(driver.core, 0)
    told = export_once(source)

    assert {"started": 2, "waiting": 1} == nonzero_gauges(told, "working_set_applications")
    assert 6_000 == told.gauges[("working_set_context_tokens",)]
    assert {"running": 1, "tool": 1, "working_set": 1} == nonzero_gauges(
        told, "applications_by_outlook"
    )
    metrics.step_down()
    assert {} == nonzero_gauges(export_once(source), "working_set_applications")


def test_turns_that_return_to_cached_contexts_are_counted(new_driver: CoreDriver) -> None:
    source = new_measures("scheduler")
    counters = new_driver.core.state.counters
    counters.contexts_found, counters.contexts_missed = 5, 2
    metrics = SchedulerMetrics(source, lambda: 0.0)
    metrics.measure(new_driver.core, DecisionMeter(), 7, new_driver.now, store_reachable=True)
    told = export_once(source).counts

    assert (5, 2) == tuple(told["context_returns_total", label] for label in ("found", "missed"))


def test_counting_outlooks_takes_at_most_one_percent_of_the_time(new_driver: CoreDriver) -> None:
    """Counting blocks the scheduler."""
    source, clock = new_measures("scheduler"), SteppingClock()
    metrics = OutlookMetrics(source, clock)
    new_driver.open("a")
    metrics.measure(new_driver.core, 0)
    new_driver.open("b")
    clock.at += 0.9
    metrics.measure(new_driver.core, 0)
    before = nonzero_gauges(export_once(source), "applications_by_tier")
    clock.at += 0.1
    metrics.measure(new_driver.core, 0)

    assert {"default": 1} == before
    assert {"default": 2} == nonzero_gauges(export_once(source), "applications_by_tier")


def test_actual_starts_are_counted_by_predicted_range_and_lead_time(new_driver: CoreDriver) -> None:
    """A start after p90 counts as predicted too early."""
    starts = new_driver.core.outlooks.starts
    for expected_s, after_s in ((5.0, 5.0), (5.0, 100.0), (100.0, 0.5), (1e5, 1e5)):
        starts.settle(starts.expect(expected_s, 0.0), after_s)
    told = metrics_of(new_driver).counts

    assert {("10s", "within"), ("10s", "late"), ("600s", "early"), ("longer", "within")} == {
        key[1:] for key, count in told.items() if count == 1
    }


def test_deadlines_are_counted_as_made_missed_or_refused() -> None:
    driver, source = CoreDriver(SchedulerCore(lease_prefix="1-")), new_measures("scheduler")
    metrics = SchedulerMetrics(source, lambda: 0.0)

    def handle_event(event: ev.Event) -> None:
        metrics.record_event(event, driver.handle(event), driver.core.state)

    def submit(name: str, deadline_s: float | None, age_s: float = 0.0) -> None:
        handle_event(
            ev.InferenceSubmitted(
                name, "a", name, "i0", 10, 5, 5, deadline_s=deadline_s, age_s=age_s
            )
        )

    driver.open("a", 1_000)
    submit("made", 5.0)
    submit("without", None)
    metrics.record_event(ev.DeadlinePassed(), driver.pull(seats=2), driver.core.state)
    submit("missed", 5.0)
    submit("too late", 5.0, age_s=6.0)
    driver.now += 6.0
    handle_event(ev.DeadlinePassed())
    metrics.measure(driver.core, DecisionMeter(), 7, driver.now, store_reachable=True)
    told = export_once(source).counts

    assert {"made": 1, "missed": 1, "refused": 1} == {
        key[1]: count for key, count in told.items() if key[0] == "deadlines_total"
    }
