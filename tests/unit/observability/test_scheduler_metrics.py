"""Scheduler metrics of a core in a known state."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Lag, Refusal, Refuse
from justitia_ray.core.entities import Application, Outcome
from justitia_ray.core.state import SchedulerLimits
from justitia_ray.core.tenants import TenantNode, TenantTree
from justitia_ray.observability import scheduler_metrics
from justitia_ray.observability.scheduler_metrics import DecisionMeter, LiveLag, SchedulerMetrics
from justitia_ray.observability.tenant_metrics import ExchangeMeter
from justitia_ray.serve.scheduler.fleet_sizer import FleetSizer
from tests.core_driver import PATIENT, CoreDriver
from tests.unit.observability.recording_backend import (
    ENDED,
    RecordingBackend,
    export_once,
    new_measures,
)
from tests.unit.observability.test_tenant_metrics import STANDING


class MeasuredCore:
    """Scheduler core and its metrics, measured on demand."""

    def __init__(self, driver: CoreDriver) -> None:
        self.driver = driver
        self.measures = new_measures("scheduler")
        self.metrics = SchedulerMetrics(self.measures, lambda: 0.0)
        self.decisions = DecisionMeter()

    def exported_metrics(self, *, store_reachable: bool = True) -> RecordingBackend:
        core, now = self.driver.core, self.driver.now
        self.metrics.measure(core, self.decisions, 7, now, store_reachable=store_reachable)
        return export_once(self.measures)

    def record_actions(self, actions: Sequence[Action], unstored: str | None = None) -> None:
        state = self.driver.core.state
        self.metrics.record_event(ev.DeadlinePassed(), actions, state, unstored)


@pytest.fixture
def measured_core() -> MeasuredCore:
    return MeasuredCore(CoreDriver(SchedulerCore(lease_prefix="1-")))


def test_queue_is_exported_in_inferences_kv_and_cost(measured_core: MeasuredCore) -> None:
    driver = measured_core.driver
    driver.open("a", 1_000)
    for name in ("x", "y"):
        driver.submit(name, prompt=10, output=5)
    driver.pull(seats=1)
    told = measured_core.exported_metrics().gauges

    assert (1, 1, 1, 1) == (
        told["waiting_inferences",],
        told["leased_inferences",],
        told["live_applications",],
        told["pulling_replicas",],
    )
    assert (15, 65) == (told["backlog_kv_tokens",], told["backlog_kv_token_time",])
    assert (7, 1) == (told["epoch",], told["store_reachable",])
    assert 0 == measured_core.exported_metrics(store_reachable=False).gauges["store_reachable",]


def test_granted_returned_and_expired_leases_are_counted(measured_core: MeasuredCore) -> None:
    """An unreachable replica returns leases, and a lost ingress lets them expire.

    The second lease ends no queue wait, because the time before it is mostly the first lease.
    """
    driver = measured_core.driver
    driver.open("a", 1_000)
    driver.submit("x")
    driver.wait(0.25)
    measured_core.record_actions(driver.pull())
    again = driver.handle(ev.LeaseNacked(driver.lease_of("x"), ev.NackReason.LEASE))
    measured_core.record_actions(again)
    driver.wait(3.0)
    driver.pull()
    driver.wait(3.0)
    told = measured_core.exported_metrics()

    assert (2, 1, 1) == tuple(
        told.counts["leases_total", event] for event in ("granted", "nacked", "expired")
    )
    assert (1, 0.25) == told.histograms["queue_wait_seconds", "class", "tenant"]


def test_wait_that_began_before_a_restart_is_not_exported(
    measured_core: MeasuredCore,
) -> None:
    """The earlier scheduler may have run the inference within the 60 s since its submission."""
    driver = measured_core.driver
    driver.open("a", 1_000)
    driver.submit("x", resubmitted=True, age_s=60.0)
    measured_core.record_actions(driver.pull())
    told = measured_core.exported_metrics()

    assert 1 == told.counts["leases_total", "granted"]
    assert not told.histograms


def test_metric_series_of_a_new_class_and_tenant_start_at_zero(measured_core: MeasuredCore) -> None:
    """A rate misses the first increase of a series that starts with it, such as the only expiry.

    Applications of an earlier scheduler do not arrive again, and end soon.
    """
    measured_core.driver.open("a")
    measured_core.metrics.declare_series(measured_core.driver.core.state)
    assert (
        0
        == measured_core.exported_metrics().counts[
            "application_outcomes_total", "failed", "class", "tenant"
        ]
    )
    arrival = ev.ApplicationArrived("b", "vote", "t", 1.0, 100, "i0")
    measured_core.metrics.record_event(
        arrival, measured_core.driver.handle(arrival), measured_core.driver.core.state
    )
    told = measured_core.exported_metrics()

    for outcome in Outcome:
        assert 0 == told.counts["application_outcomes_total", outcome.value, "vote", "t"]
    assert 0 == told.counts["served_kv_token_time_total", "t"]
    for name in ("queue_wait_seconds", "completion_seconds", "gps_lag_seconds"):
        assert (0, 0.0) == told.histograms[name, "vote", "t"]


def test_raised_charges_are_counted_by_their_reason(measured_core: MeasuredCore) -> None:
    driver = measured_core.driver
    driver.open("a", 100)
    driver.submit("x", prompt=10, output=30, remaining=99)
    driver.submit("y", prompt=10, output=30, remaining=260)
    driver.pull()
    driver.pull(progress={"1-1": 20, "1-2": 0})
    told = measured_core.exported_metrics().counts

    assert 1 == told["settlements_total", "expected"]
    assert 1 == told["settlements_total", "outran"]
    assert 410 == told["served_kv_token_time_total", "tenant"]


def test_virtual_time_and_its_rate_are_exported(measured_core: MeasuredCore) -> None:
    driver = measured_core.driver
    driver.open("a", 1_000)
    driver.submit("x", prompt=10, output=30)
    driver.pull()
    before = measured_core.exported_metrics().gauges
    driver.now += 0.5
    driver.pull(progress={"1-1": 5})
    after = measured_core.exported_metrics().gauges

    assert 65 == after["virtual_time",] - before["virtual_time",]
    assert 130 == after["virtual_time_per_second",]
    assert ("virtual_time_per_second",) not in before


def test_ended_inferences_and_applications_are_counted_once_by_outcome(
    measured_core: MeasuredCore,
) -> None:
    driver = measured_core.driver
    driver.open("a", 1_000)
    driver.submit("x")
    driver.submit("y")
    driver.pull(seats=1)
    driver.pull(finished={"1-1": 10}, seats=1)
    driver.handle(ev.ApplicationCancelled("a"))
    measured_core.record_actions(driver.last_word("1-2"))
    told = measured_core.exported_metrics().counts

    assert (1, 1, 0) == tuple(
        told["inference_outcomes_total", outcome]
        for outcome in ("finished", "cancelled", "expired")
    )
    assert 1 == told["application_outcomes_total", "cancelled", "class", "tenant"]
    assert {0} == {count for (name, *_), count in told.items() if name == "refusals_total"}


def test_unopened_application_counts_as_one_refusal() -> None:
    """A caller whose opening is refused three times with 429 counts once.

    b arrives with three inferences and retries; c is another application.
    """
    measured_core = MeasuredCore(
        CoreDriver(SchedulerCore(limits=SchedulerLimits(open_applications=1)))
    )
    driver = measured_core.driver
    driver.open("a")
    for name in ("b", "b", "c"):
        measured_core.record_actions(driver.open(name))
    for name in ("x", "y", "z"):
        measured_core.record_actions(driver.submit(name, "b"))

    assert 2 == measured_core.exported_metrics().counts["refusals_total", "too_many_applications"]


def test_inferences_without_an_open_application_count_as_refusals(
    measured_core: MeasuredCore,
) -> None:
    driver = measured_core.driver
    driver.open("a")
    driver.submit("x")
    driver.handle(ev.ApplicationClosed("a"))
    for name, application in (("y", "a"), ("z", "b"), ("w", "b")):
        measured_core.record_actions(driver.submit(name, application))
    told = measured_core.exported_metrics().counts

    assert (1, 2, 0) == tuple(
        told["refusals_total", reason]
        for reason in ("application_closed", "unknown_application", "queue_full")
    )


def test_application_that_could_not_be_stored_counts_as_refused(
    measured_core: MeasuredCore,
) -> None:
    refused = Refuse("x", "i0", Refusal.NOT_STORED)
    measured_core.record_actions([refused, ENDED, replace(ENDED, application_id="b")], unstored="a")
    told = measured_core.exported_metrics()

    assert 1 == told.counts["refusals_total", "not_stored"]
    assert 1 == told.counts["application_outcomes_total", "finished", "vote", "t"]
    assert (1, 4.5) == told.histograms["completion_seconds", "vote", "t"]


def test_superseded_scheduler_exports_no_queue(measured_core: MeasuredCore) -> None:
    """The queue now belongs to the next scheduler, and must not be counted twice."""
    driver, measuring = measured_core.driver, measured_core.metrics.tenants
    driver.open("a", 1_000)
    driver.submit("x")
    driver.pull(seats=1)
    measured_core.decisions.record_decisions(1e-3)
    driver.submit("y")
    measured_core.exported_metrics()
    measuring.measure_quotas({"acme": (STANDING,)}, TenantTree({"acme": TenantNode()}), 0)
    measuring.measure_exchanges(ExchangeMeter(), 3)
    driver.pull(finished={"1-1": 10}, seats=1)
    measured_core.metrics.step_down(driver.core, measured_core.decisions)
    told = export_once(measured_core.measures)

    virtual_time, epoch = told.gauges.pop(("virtual_time",)), told.gauges.pop(("epoch",))
    assert (True, 7) == (virtual_time >= 0, epoch)
    assert 1 == told.gauges.pop(("store_reachable",))
    assert dict.fromkeys(told.gauges, 0) == told.gauges
    assert {"quota_left_ratio", "quota_used", "waiting_claims", "applications_by_outlook"} <= {
        name for name, *_ in told.gauges
    }
    assert 1 == told.counts["inference_outcomes_total", "finished"]


def test_finished_application_is_measured_by_class_and_tenant(measured_core: MeasuredCore) -> None:
    measured_core.record_actions(
        [ENDED, replace(ENDED, application_id="b", outcome=Outcome.EXPIRED)]
    )
    told = measured_core.exported_metrics()

    assert (1, 4.5) == told.histograms["completion_seconds", "vote", "t"]
    assert 0.0 == told.histograms["gps_lag_seconds", "vote", "t"][1]
    assert 1 == told.counts["application_outcomes_total", "finished", "vote", "t"]


def test_prompt_tokens_of_a_class_are_divided_into_cached_and_computed(
    measured_core: MeasuredCore,
) -> None:
    """Failed applications have used the engines, too."""
    ended = replace(ENDED, prompt_tokens=1_000, cached_tokens=900)
    failed = replace(
        ENDED, application_id="b", outcome=Outcome.FAILED, prompt_tokens=200, cached_tokens=50
    )
    measured_core.record_actions([ended, failed])
    told = measured_core.exported_metrics().counts

    assert (950, 250) == tuple(
        told["class_prompt_tokens_total", part, "vote", "t"] for part in ("cached", "computed")
    )


@pytest.mark.parametrize(
    ("lag", "promised", "broken"),
    [
        (Lag(90, 1.0, 100, 5.0), 1, 0),
        (Lag(101, 1.0, 100, 5.0), 1, 1),
        (Lag(100 + 1e-8, 1.0, 100, 5.0), 1, 0),  # rounding error of V, a float
        (Lag(101, 1.0, None, None), 0, 0),
        (None, 0, 0),
    ],
)
def test_lag_above_the_bound_counts_as_a_violation(
    measured_core: MeasuredCore, lag: Lag | None, promised: int, broken: int
) -> None:
    measured_core.record_actions([replace(ENDED, lag=lag)])
    told = measured_core.exported_metrics().counts

    assert promised == told["bounded_applications_total",]
    assert broken == told["bound_violations_total",]


def test_decision_times_are_buckets_of_a_histogram(measured_core: MeasuredCore) -> None:
    for duration_s in (5e-5, 5e-5, 5e-5, 3e-3):
        measured_core.decisions.record_decisions(duration_s)
    told = measured_core.exported_metrics().counts

    counts = {le: told["decisions_total", le] for le in ("2.51e-05", "5.01e-05", "0.001", "0.01")}
    assert {"2.51e-05": 0, "5.01e-05": 3, "0.001": 3, "0.01": 4} == counts
    assert 4 == told["decisions_total", "+Inf"] == measured_core.decisions.count_within(math.inf)
    assert told["decision_seconds_total",] == pytest.approx(3.15e-3)


def test_each_inference_granted_by_an_event_counts_as_a_decision() -> None:
    """The number of pulls for the same work must not change the figures."""
    meter = DecisionMeter()
    meter.record_decisions(3e-3, 100)

    assert 100 == meter.count_within(5.01e-5)
    assert 0 == meter.count_within(2.51e-5)
    assert 3e-3 == meter.total_s


def test_number_of_decision_time_buckets_is_bounded() -> None:
    """Extreme durations share a bucket, because a scheduler runs for months."""
    meter = DecisionMeter()
    for power in range(-12, 9):
        meter.record_decisions(10.0**power)

    totals = meter.totals()
    assert 21 == totals["count"]
    assert len(totals["at_most_s"]) <= 91
    assert totals["at_most_s"][0] == [1e-6, 7]


def test_greatest_lag_belongs_to_the_application_furthest_behind() -> None:
    """Under FCFS a large application holds the only seat while much smaller ones wait.

    GPS would have served the three equally: b (65) done after 3·65 = 195 of service, and c (155)
    180 later, at 375. a has had 155 in the first second, 410 in the second, and 765 in the third.
    """
    measured_core = MeasuredCore(CoreDriver(SchedulerCore("fcfs", lease_prefix="1-")))
    driver = measured_core.driver
    driver.open("a", 10_000)
    driver.submit("x", "a", prompt=10, output=100)
    driver.pull(seats=1)
    for name, cost in (("b", 65), ("c", 155)):
        driver.open(name, cost)
        driver.submit(name, name)
    for tokens in (10, 20, 30):
        driver.now += 1.0
        driver.pull(progress={"1-1": tokens}, seats=1)
    lags = [driver.core.lag(name) for name in ("b", "c")]
    seconds = [lag.seconds for lag in lags if lag is not None]

    assert seconds[0] >= seconds[1] > 0
    assert seconds[0] == measured_core.exported_metrics().gauges["greatest_gps_lag_seconds",]


def starve(driver: CoreDriver, names: str) -> None:
    """Let a large application hold the only seat while small applications of these names wait."""
    driver.open("a", 10_000)
    driver.submit("x", "a", prompt=10, output=100)
    driver.pull(seats=1)
    for name in names:
        driver.open(name, 2)
        driver.submit(name, name)
    driver.now += 1.0
    driver.pull(progress={driver.lease_of("x"): 50}, seats=1)


def test_greatest_lag_ignores_applications_beyond_their_quota() -> None:
    """Tags beyond a quota belong to another virtual clock."""
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant"}, timeouts=PATIENT))
    driver.open("a", 10, tenant="a")
    driver.submit("x", "a", prompt=10, output=1000)
    driver.pull(seats=1)
    driver.open("b", 1000, tenant="b")
    driver.submit("b", "b")
    driver.open("c", 100, tenant="c")
    driver.handle(ev.ApplicationDeprioritised("c", is_deprioritised=True))
    driver.submit("c", "c")
    for tokens in range(1, 200):
        driver.now += 1.0
        driver.pull(progress={driver.lease_of("x"): 5 * tokens}, seats=1)
    lag = driver.core.lag("b")

    assert lag is not None
    assert lag.seconds == LiveLag(lambda: 0.0).greatest_s(driver.core) > 0


def test_greatest_lag_takes_at_most_one_percent_of_the_time() -> None:
    """The computation walks over live applications and blocks the scheduler."""
    times = iter([0.0, 0.02, 1.9, 2.1, 2.12])
    looked = LiveLag(lambda: next(times))
    driver = CoreDriver(SchedulerCore("fcfs"))
    first = looked.greatest_s(driver.core)  # takes 0.02 s
    starve(driver, "b")
    too_early, due = looked.greatest_s(driver.core), looked.greatest_s(driver.core)

    assert 0 == first == too_early < due


class _CountedApplications(dict[str, Application]):
    """Mapping of applications that counts how many of them were read."""

    seen = 0

    def values(self) -> Any:
        for application in super().values():
            self.seen += 1
            yield application


def test_greatest_lag_is_searched_among_the_oldest_applications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search through 50,000 applications blocks the scheduler for 100 ms.

    Under fcfs b waits behind a, and arrived before all the others.
    """
    monkeypatch.setattr(scheduler_metrics, "MAX_LAG_CANDIDATES", 3)
    driver = CoreDriver(SchedulerCore("fcfs"))
    starve(driver, "bcdef")
    walked = driver.core.state.applications = _CountedApplications(driver.core.state.applications)
    lag = driver.core.lag("b")

    assert lag is not None
    assert lag.seconds == LiveLag(lambda: 0.0).greatest_s(driver.core) > 0
    assert 3 == walked.seen


def test_drain_time_target_is_exported_where_configured(measured_core: MeasuredCore) -> None:
    """Without the metric an alert assumes that there is no autoscaling."""
    size = FleetSizer(None).decision(measured_core.driver.core, measured_core.driver.now)

    def exported_target() -> float | None:
        return export_once(measured_core.measures).gauges.get(("target_drain_seconds",))

    measured_core.metrics.measure_size(size, None)
    without = exported_target()
    measured_core.metrics.measure_size(size, 30.0)
    there = exported_target()
    measured_core.metrics.step_down(measured_core.driver.core, measured_core.decisions)

    assert (None, 30.0, 0.0) == (without, there, exported_target())
