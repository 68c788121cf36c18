"""Metrics of the scheduler: its queue, its fairness, its leases, and the time of its decisions."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Grant, Refusal, Refuse
from justitia_ray.core.entities import Outcome
from justitia_ray.core.state import State
from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import CounterSeries, HistogramSeries, Measures
from justitia_ray.observability.metrics import MAX_LAG_CANDIDATES
from justitia_ray.observability.outlook_metrics import OutlookMetrics
from justitia_ray.observability.tenant_metrics import TenantMetrics
from justitia_ray.scaling.sizing import SizeDecision
from justitia_ray.units import ApplicationId, Epoch, Seconds

_STEPS_A_DECADE = 10
"""Number of histogram buckets per power of ten."""
_LEAST_S: Seconds = 1e-6
"""Shortest duration in seconds that has a histogram bucket of its own."""
_LAST = 9 * _STEPS_A_DECADE
"""Index of the last histogram bucket, up to 1,000 s; longer decisions count there too."""
_LAG_SHARE = 0.01
"""Maximum share of the scheduler's time that the search for the greatest lag may take."""
_ROUNDING = 1e-9
"""Relative tolerance when floats are compared, because sums depend on their order."""
_INFERENCE_REFUSALS = frozenset(
    {
        Refusal.UNKNOWN_APPLICATION,
        Refusal.APPLICATION_CLOSED,
        Refusal.QUEUE_FULL,
        Refusal.CAP_REACHED,
    }
)
"""Refusals that are counted for each inference; others are counted once per application."""
_QUEUE_GAUGES = (
    m.WAITING_INFERENCES,
    m.LEASED_INFERENCES,
    m.BACKLOG_KV_TOKENS,
    m.BACKLOG_KV_TOKEN_TIME,
    m.LIVE_APPLICATIONS,
    m.PULLING_REPLICAS,
    m.WANTED_REPLICAS,
    m.DRAIN_SECONDS,
    m.VIRTUAL_TIME_PER_SECOND,
    m.GREATEST_GPS_LAG_SECONDS,
)


class DecisionMeter:
    """Histogram of the time of scheduling decisions; its counts never decrease."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total_s: Seconds = 0.0
        """Total seconds of all scheduling decisions."""

    def record_decisions(self, duration_s: Seconds, count: int = 1) -> None:
        """Count an event that the scheduler core has handled.

        Args:
            duration_s: Time that the event took (seconds).
            count: Number of decisions in the event, each with an equal share of the time: a pull
                that grants forty inferences counts as forty decisions, not as one slow decision.
        """
        decades = math.log10(max(duration_s / count, _LEAST_S) / _LEAST_S)
        self._counts[min(math.ceil(decades * _STEPS_A_DECADE), _LAST)] += count
        self.total_s += duration_s

    def count_within(self, bound_s: Seconds) -> int:
        """Return the number of scheduling decisions that took at most `bound_s`."""
        if bound_s == math.inf:
            return self._counts.total()
        last = round(math.log10(bound_s / _LEAST_S) * _STEPS_A_DECADE)
        return sum(count for step, count in self._counts.items() if step <= last)

    def totals(self) -> dict[str, Any]:
        """Return count, total seconds, and pairs `[limit in seconds, count]` by bucket."""
        return {
            "count": self._counts.total(),
            "total_s": self.total_s,
            "at_most_s": [
                [_step_limit_s(step), self._counts[step]] for step in sorted(self._counts)
            ],
        }


def _step_limit_s(step: int) -> Seconds:
    return math.pow(10.0, step / _STEPS_A_DECADE + math.log10(_LEAST_S))


class LiveLag:
    """Finds the live application that is furthest behind ideal fair sharing (GPS).

    A new search starts only when the last search amounts to at most 1 % of the time since.

    Args:
        clock: Precise monotonic clock (seconds).
    """

    def __init__(self, clock: Callable[[], Seconds]) -> None:
        self._clock = clock
        self._due_at: Seconds = 0.0
        self._greatest_s: Seconds = 0.0

    def greatest_s(self, core: SchedulerCore) -> Seconds:
        """Return the greatest lag of a waiting application behind GPS, in seconds, or 0.

        The lag is the one that the application would have if it started now. With more than
        `MAX_LAG_CANDIDATES` live applications, only the earliest arrivals and the first in order
        are searched: unless they were idle, they have waited longest.
        """
        began_at = self._clock()
        if began_at < self._due_at:
            return self._greatest_s
        self._greatest_s = _greatest_lag_s(core)
        now = self._clock()
        self._due_at = now + (now - began_at) / _LAG_SHARE
        return self._greatest_s


def _greatest_lag_s(core: SchedulerCore) -> Seconds:
    """Return the lag in seconds of the waiting application that GPS would have finished first."""
    lags, first = core.lags, core.ledger.queue.first()
    candidates = list(islice(core.state.applications.values(), MAX_LAG_CANDIDATES))
    if first is not None:
        candidates.append(first)
    # Tenants beyond their quota are left out, because a separate virtual time orders them.
    apart = core.ledger.fair_share.sets_apart
    ranked = (a for a in candidates if a.waiting and not (apart and a.is_deprioritised))
    tags = ((lags.tag(a.application_id), a.sequence, a) for a in ranked)
    # Fair finish times are unknown for applications that an earlier scheduler opened.
    late = min((known for known in tags if lags.knows(known[0])), default=None)
    lag = None if late is None else core.lag(late[2].application_id)
    return 0.0 if lag is None else max(0.0, float(lag.seconds))


@dataclass(frozen=True, slots=True)
class ClassSeries:
    """Metric series of an application class and a tenant, looked up once."""

    waits: HistogramSeries
    completions: HistogramSeries
    lags: HistogramSeries
    ends: dict[Outcome, CounterSeries]
    cached: CounterSeries
    computed: CounterSeries


class SchedulerMetrics:
    """Counts the decisions of a scheduler core, and exports gauges of its state.

    Args:
        measures: The series of a scheduler.
        clock: Precise monotonic clock, for the time that the search for the greatest lag takes.

    Attributes:
        tenants: Metrics of the tree of tenants.
    """

    def __init__(self, measures: Measures, clock: Callable[[], Seconds]) -> None:
        self._measures = measures
        self._live_lag = LiveLag(clock)
        self._outlooks = OutlookMetrics(measures, clock)
        self.tenants = TenantMetrics(measures)
        self._granted = measures.counter(m.LEASES_TOTAL, "granted")
        self._bounded = measures.counter(m.BOUNDED_APPLICATIONS_TOTAL)
        self._violations = measures.counter(m.BOUND_VIOLATIONS_TOTAL)
        self._by_class: dict[tuple[str, str], ClassSeries] = {}
        self._last: tuple[Seconds, float] | None = None
        self._has_target = False
        """Whether autoscaling has ever had a target drain time."""

    def declare_series(self, state: State) -> None:
        """Create the metric series of applications that an earlier scheduler opened."""
        for application in state.applications.values():
            self._series_of(application.application_class, application.tenant)

    def record_event(
        self,
        event: ev.Event,
        actions: Iterable[Action],
        state: State,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Count the actions of one event of the scheduler core; called often, so it must be cheap.

        Args:
            event: The event.
            actions: The core's actions for it.
            state: The core's state after it.
            unstored: Application that ended because it could not be stored, if any.
        """
        if isinstance(event, ev.ApplicationArrived) and event.application_id in state.applications:
            self._series_of(event.application_class, event.tenant)
        for action in actions:
            if isinstance(action, Grant):
                self._granted.increase()
                self._count_start(action, state)
            elif isinstance(action, EndApplication):
                if action.application_id == unstored:
                    self._measures.counter(m.REFUSALS_TOTAL, Refusal.NOT_STORED.value).increase()
                else:
                    self._count_end(action)
            elif isinstance(action, Refuse) and action.reason is Refusal.DEADLINE:
                self._outlooks.record_deadline(event)
            elif isinstance(action, Refuse) and action.reason in _INFERENCE_REFUSALS:
                self._measures.counter(m.REFUSALS_TOTAL, action.reason.value).increase()

    def measure(
        self,
        core: SchedulerCore,
        decisions: DecisionMeter,
        epoch: Epoch,
        now: Seconds,
        *,
        store_reachable: bool,
        held_back: int = 0,
    ) -> None:
        """Set the gauges and totals of the scheduler core.

        Args:
            core: The core, after it was told why applications are held back outside the core.
            decisions: Durations of the core's decisions.
            epoch: The scheduler's epoch.
            now: The core's current time.
            store_reachable: Whether saves reach the store.
            held_back: Number of applications that wait for the quota accounts before they are
                opened.
        """
        state, counters = core.state, core.state.counters
        virtual_time = float(core.ledger.fair_share.clock.virtual_time)
        replicas = state.replicas.values()
        for metric, value in (
            (m.WAITING_INFERENCES, state.waiting),
            (m.LEASED_INFERENCES, len(state.leases)),
            (m.BACKLOG_KV_TOKENS, counters.waiting_kv_tokens),
            (m.BACKLOG_KV_TOKEN_TIME, float(counters.waiting_kv_token_time)),
            (m.LIVE_APPLICATIONS, len(state.applications)),
            (m.PULLING_REPLICAS, sum(replica.takes_leases for replica in replicas)),
            (m.VIRTUAL_TIME, virtual_time),
            (m.GREATEST_GPS_LAG_SECONDS, self._live_lag.greatest_s(core)),
            (m.EPOCH, epoch),
            (m.STORE_REACHABLE, int(store_reachable)),
        ):
            self._measures.gauge(metric).value = value
        if self._last is not None and now > self._last[0]:
            rate = (virtual_time - self._last[1]) / (now - self._last[0])
            self._measures.gauge(m.VIRTUAL_TIME_PER_SECOND).value = max(0.0, rate)
        self._last = (now, virtual_time)
        self._outlooks.measure(core, held_back)
        self._set_totals(core, decisions)

    def measure_size(self, size: SizeDecision, target_drain_s: Seconds | None) -> None:
        """Set the gauges of the wanted number of replicas and of the drain time.

        Args:
            size: The decision.
            target_drain_s: Target for the drain time; None: no target is configured.
        """
        self._measures.gauge(m.WANTED_REPLICAS).value = size.wanted
        self._measures.gauge(m.DRAIN_SECONDS).value = size.drain_s
        self._has_target = self._has_target or target_drain_s is not None
        if self._has_target:  # Without a target drain time this gauge is not exported.
            self._measures.gauge(m.TARGET_DRAIN_SECONDS).value = target_drain_s or 0

    def step_down(self, core: SchedulerCore, decisions: DecisionMeter) -> None:
        """Reset the gauges of a scheduler that is no longer the leader; totals stay."""
        for metric in _QUEUE_GAUGES:
            self._measures.gauge(metric).value = 0
        if self._has_target:
            self._measures.gauge(m.TARGET_DRAIN_SECONDS).value = 0
        self._measures.gauge(m.STORE_REACHABLE).value = 1  # a former leader saves nothing
        self._outlooks.step_down()
        self.tenants.step_down()
        self._set_totals(core, decisions)

    def _set_totals(self, core: SchedulerCore, decisions: DecisionMeter) -> None:
        counters, measures = core.state.counters, self._measures
        measures.counter(m.LEASES_TOTAL, "expired").set_total(counters.leases_expired)
        measures.counter(m.LEASES_TOTAL, "nacked").set_total(counters.leases_nacked)
        for cause, count in counters.engine_failures.items():
            measures.counter(m.ENGINE_FAILURES_TOTAL, cause.value).set_total(count)
        measures.counter(m.SETTLEMENTS_TOTAL, "outran").set_total(counters.outran)
        measures.counter(m.SETTLEMENTS_TOTAL, "expected").set_total(counters.expected)
        measures.counter(m.CONTEXT_RETURNS_TOTAL, "found").set_total(counters.contexts_found)
        measures.counter(m.CONTEXT_RETURNS_TOTAL, "missed").set_total(counters.contexts_missed)
        rejected = Refusal.TOO_MANY_APPLICATIONS.value
        measures.counter(m.REFUSALS_TOTAL, rejected).set_total(counters.rejected_applications)
        for outcome, count in counters.ended.items():
            measures.counter(m.INFERENCE_OUTCOMES_TOTAL, outcome.value).set_total(count)
        self.tenants.measure_usage(counters, core.state.tenants)
        served: dict[str, float] = {}
        for tenant, amount in counters.served.items():
            label = measures.label("tenant", tenant)
            served[label] = served.get(label, 0.0) + float(amount)
        for label, amount in served.items():
            measures.counter(m.SERVED_KV_TOKEN_TIME_TOTAL, label).set_total(amount)
        measures.counter(m.DECISION_SECONDS_TOTAL).set_total(decisions.total_s)
        for bound, label in zip((*m.DECISION_S, math.inf), m.LABEL_VALUES["le"], strict=True):
            measures.counter(m.DECISIONS_TOTAL, label).set_total(decisions.count_within(bound))

    def _count_start(self, grant: Grant, state: State) -> None:
        inference = state.inferences[grant.request_id]
        if inference.attempts > 1 or inference.resubmitted:
            return  # An inference that is repeated may have been counted before.
        self._outlooks.record_start(inference)
        application = state.applications[inference.application_id]
        series = self._series_of(application.application_class, application.tenant)
        series.waits.observe(grant.waited_s)

    def _count_end(self, ended: EndApplication) -> None:
        series = self._series_of(ended.application_class, ended.tenant)
        series.ends[ended.outcome].increase()
        series.cached.increase(ended.cached_tokens)
        series.computed.increase(ended.prompt_tokens - ended.cached_tokens)
        if ended.outcome is Outcome.FINISHED:
            series.completions.observe(ended.ended_at - ended.arrived_at)
        lag = ended.lag
        if lag is None:
            return
        series.lags.observe(lag.seconds)
        if lag.bound_kv_token_time is not None:
            self._bounded.increase()
            allowed = float(lag.bound_kv_token_time)
            rounding = _ROUNDING * max(1.0, abs(allowed), abs(float(ended.virtual_finish_time)))
            self._violations.increase(float(lag.kv_token_time) > allowed + rounding)

    def _series_of(self, application_class: str, tenant: str) -> ClassSeries:
        """Return the metric series of a class and tenant, created by the first call."""
        measures = self._measures
        labels = (
            measures.label("application_class", application_class),
            measures.label("tenant", tenant),
        )
        series = self._by_class.get(labels)
        if series is None:
            measures.counter(m.SERVED_KV_TOKEN_TIME_TOTAL, labels[1])
            ends = {
                outcome: measures.counter(m.APPLICATION_OUTCOMES_TOTAL, outcome.value, *labels)
                for outcome in Outcome
            }
            series = self._by_class[labels] = ClassSeries(
                measures.histogram(m.QUEUE_WAIT_SECONDS, *labels),
                measures.histogram(m.COMPLETION_SECONDS, *labels),
                measures.histogram(m.GPS_LAG_SECONDS, *labels),
                ends,
                measures.counter(m.CLASS_PROMPT_TOKENS_TOTAL, "cached", *labels),
                measures.counter(m.CLASS_PROMPT_TOKENS_TOTAL, "computed", *labels),
            )
        return series
