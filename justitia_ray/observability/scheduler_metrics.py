"""What a scheduler tells of its queue, of fairness, and of its decisions."""

import math
from collections.abc import Iterable

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Grant, Refusal, Refuse
from justitia_ray.core.entities import Outcome
from justitia_ray.core.state import State
from justitia_ray.observability import metrics as m
from justitia_ray.observability.decision_meter import DecisionMeter
from justitia_ray.observability.live_lag import LiveLag
from justitia_ray.observability.measures import Measures
from justitia_ray.units import ApplicationId, Epoch, Seconds

_ROUNDING = 1e-9
"""V is a float: sums of service agree with it to some digits less than it has."""
_OF_INFERENCES = frozenset(
    {Refusal.UNKNOWN_APPLICATION, Refusal.APPLICATION_CLOSED, Refusal.QUEUE_FULL}
)
"""What an inference is refused for when it comes; the rest is told of its application."""
_OF_THE_QUEUE = (
    m.WAITING_INFERENCES,
    m.LEASED_INFERENCES,
    m.BACKLOG_KV_TOKENS,
    m.BACKLOG_KV_TOKEN_TIME,
    m.LIVE_APPLICATIONS,
    m.PULLING_REPLICAS,
    m.VIRTUAL_TIME_PER_SECOND,
    m.GREATEST_GPS_LAG_SECONDS,
)


class SchedulerMetrics:
    """Takes in what a core decides, and looks at it before an export."""

    def __init__(self, measures: Measures, live_lag: LiveLag) -> None:
        """Start to measure.

        Args:
            measures: Of a scheduler.
            live_lag: Looks for the application that lags most.
        """
        self._measures = measures
        self._live_lag = live_lag
        self._granted = measures.count(m.LEASES_TOTAL, "granted")
        self._bounded = measures.count(m.BOUNDED_APPLICATIONS_TOTAL)
        self._violations = measures.count(m.BOUND_VIOLATIONS_TOTAL)
        self._declared: set[tuple[str, str]] = set()
        """Class and tenant."""
        self._last: tuple[Seconds, float] | None = None
        """When V was looked at last, and what it was."""

    def begin(self, state: State) -> None:
        """Declare the series of what an earlier scheduler left."""
        for application in state.applications.values():
            self._labels(application.application_class, application.tenant)

    def decided(
        self,
        event: ev.Event,
        actions: Iterable[Action],
        state: State,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Count what an event has led to; called after each, so it only adds and appends.

        Args:
            event: What happened.
            actions: What the core made of it.
            state: Of the core, after it.
            unstored: An application that was ended because it could not be stored.
        """
        if isinstance(event, ev.ApplicationArrived) and event.application_id in state.applications:
            self._labels(event.application_class, event.tenant)
        for action in actions:
            if isinstance(action, Grant):
                self._granted.add()
                self._waited(action, state)
            elif isinstance(action, EndApplication):
                if action.application_id == unstored:
                    self._measures.count(m.REFUSALS_TOTAL, Refusal.NOT_STORED.value).add()
                else:
                    self._ended(action)
            elif isinstance(action, Refuse) and action.reason in _OF_INFERENCES:
                self._measures.count(m.REFUSALS_TOTAL, action.reason.value).add()

    def look(
        self,
        core: SchedulerCore,
        decisions: DecisionMeter,
        epoch: Epoch,
        now: Seconds,
        *,
        store_reachable: bool,
    ) -> None:
        """Set the gauges, and take over what the core and the meter count themselves."""
        state, tally = core.state, core.state.tally
        virtual_time = float(core.order.fair_share.clock.virtual_time)
        replicas = state.replicas.values()
        for metric, value in (
            (m.WAITING_INFERENCES, state.waiting),
            (m.LEASED_INFERENCES, len(state.leases)),
            (m.BACKLOG_KV_TOKENS, tally.waiting_kv_tokens),
            (m.BACKLOG_KV_TOKEN_TIME, float(tally.waiting_kv_token_time)),
            (m.LIVE_APPLICATIONS, len(state.applications)),
            (m.PULLING_REPLICAS, sum(not replica.draining for replica in replicas)),
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
        self._take_counts(core)
        self._take_decisions(decisions)

    def left_office(self, core: SchedulerCore, decisions: DecisionMeter) -> None:
        """Another scheduler has the queue: nothing of it is here any more, and all counts are."""
        for metric in _OF_THE_QUEUE:
            self._measures.gauge(metric).value = 0
        self._measures.gauge(m.STORE_REACHABLE).value = 1  # it has nothing to save
        self._take_counts(core)
        self._take_decisions(decisions)

    def _take_counts(self, core: SchedulerCore) -> None:
        tally, measures = core.state.tally, self._measures
        measures.count(m.LEASES_TOTAL, "expired").reach(tally.leases_expired)
        measures.count(m.LEASES_TOTAL, "nacked").reach(tally.leases_refused)
        measures.count(m.SETTLEMENTS_TOTAL, "outran").reach(tally.outran)
        measures.count(m.SETTLEMENTS_TOTAL, "expected").reach(tally.expected)
        turned_away = Refusal.TOO_MANY_APPLICATIONS.value
        measures.count(m.REFUSALS_TOTAL, turned_away).reach(tally.turned_away)
        for outcome, count in tally.ended.items():
            measures.count(m.INFERENCE_OUTCOMES_TOTAL, outcome.value).reach(count)
        served: dict[str, float] = {}
        for tenant, amount in tally.served.items():
            label = measures.label("tenant", tenant)
            served[label] = served.get(label, 0.0) + float(amount)
        for label, amount in served.items():
            measures.count(m.SERVED_KV_TOKEN_TIME_TOTAL, label).reach(amount)

    def _take_decisions(self, decisions: DecisionMeter) -> None:
        self._measures.count(m.DECISION_SECONDS_TOTAL).reach(decisions.total_s)
        for bound in (*m.DECISION_S, math.inf):
            label = f"{bound:g}" if bound < math.inf else "+Inf"
            self._measures.count(m.DECISIONS_TOTAL, label).reach(decisions.within(bound))

    def _waited(self, grant: Grant, state: State) -> None:
        inference = state.inferences[grant.request_id]
        if inference.attempts > 1 or inference.again:
            return  # it may have run meanwhile
        application = state.applications[inference.application_id]
        labels = self._labels(application.application_class, application.tenant)
        self._measures.observations(m.QUEUE_WAIT_SECONDS, *labels).add(grant.waited_s)

    def _ended(self, ended: EndApplication) -> None:
        measures = self._measures
        labels = self._labels(ended.application_class, ended.tenant)
        measures.count(m.APPLICATION_OUTCOMES_TOTAL, ended.outcome.value, *labels).add()
        if ended.outcome is Outcome.FINISHED:
            took_s = ended.ended_at - ended.arrived_at
            measures.observations(m.COMPLETION_SECONDS, *labels).add(took_s)
        lag = ended.lag
        if lag is None:
            return
        measures.observations(m.GPS_LAG_SECONDS, *labels).add(max(0.0, lag.seconds))
        if lag.bound_kv_token_time is not None:
            self._bounded.add()
            allowed = float(lag.bound_kv_token_time)
            rounding = _ROUNDING * max(1.0, abs(allowed), abs(float(ended.virtual_finish_time)))
            self._violations.add(float(lag.kv_token_time) > allowed + rounding)

    def _labels(self, application_class: str, tenant: str) -> tuple[str, str]:
        """Return what a class and a tenant are called here, whose counters exist from then on."""
        measures = self._measures
        labels = (
            measures.label("application_class", application_class),
            measures.label("tenant", tenant),
        )
        if labels not in self._declared:
            self._declared.add(labels)
            measures.count(m.SERVED_KV_TOKEN_TIME_TOTAL, labels[1])
            for outcome in Outcome:
                measures.count(m.APPLICATION_OUTCOMES_TOTAL, outcome.value, *labels)
        return labels
