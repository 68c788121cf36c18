"""Metrics of outlooks and deadlines: why applications wait, and how accurate outlooks were."""

from collections import Counter
from collections.abc import Callable
from itertools import islice

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Inference
from justitia_ray.core.outlook import Reason
from justitia_ray.core.tenants import DEFAULT_TIER, TIERS
from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import Measures
from justitia_ray.observability.metrics import MAX_LAG_CANDIDATES
from justitia_ray.units import Seconds, Tokens

_SHARE = 0.01
"""Maximum share of the scheduler's time that counting applications may take."""


class OutlookMetrics:
    """Counts live applications by why they wait, and how good predicted starts were.

    Args:
        measures: The series of a scheduler.
        clock: Precise monotonic clock, for the time that counting takes.
    """

    def __init__(self, measures: Measures, clock: Callable[[], Seconds]) -> None:
        self._measures = measures
        self._clock = clock
        self._due_at: Seconds = 0.0
        self._deadlines = {
            name: measures.counter(m.DEADLINES_TOTAL, name) for name in m.LABEL_VALUES["deadline"]
        }

    def record_start(self, inference: Inference) -> None:
        """Count the first lease of an inference that has a deadline."""
        if inference.starts_by is not None:
            self._deadlines["made"].increase()

    def record_deadline(self, event: ev.Event) -> None:
        """Count an inference that was refused because of its deadline."""
        is_new = isinstance(event, ev.InferenceSubmitted)
        self._deadlines["refused" if is_new else "missed"].increase()

    def measure(self, core: SchedulerCore, held_back: int) -> None:
        """Update the metrics of predicted starts, and at intervals those of live applications.

        Args:
            core: The core, after it was told why applications are held back outside the core.
            held_back: Number of applications that wait for the quota accounts before they are
                opened.
        """
        for (band, fell), count in core.outlooks.starts.fell.items():
            self._measures.counter(m.EXPECTED_STARTS_TOTAL, band, fell).set_total(count)
        began_at = self._clock()
        if began_at < self._due_at:
            return
        live = list(islice(core.state.applications.values(), MAX_LAG_CANDIDATES))
        reasons = core.outlooks.count_reasons(live) if live else Counter[Reason]()
        reasons[Reason.QUOTA] += held_back
        tiers = Counter(one.tier if one.tier in TIERS else DEFAULT_TIER for one in live)
        self._set_gauges(reasons, tiers)
        self._measure_working_set(core)
        now = self._clock()
        self._due_at = now + (now - began_at) / _SHARE

    def step_down(self) -> None:
        """Set the gauges of a scheduler that is no longer the leader to 0."""
        self._set_gauges(Counter(), Counter())
        self._set_working_set((0, 0), 0)

    def _measure_working_set(self, core: SchedulerCore) -> None:
        gate = core.ledger.gate
        if gate is None:
            self._set_working_set((0, 0), 0)
            return
        self._set_working_set(gate.started_and_waiting(core.ledger.queue), gate.context_tokens())

    def _set_working_set(self, started_and_waiting: tuple[int, int], tokens: Tokens) -> None:
        for label, count in zip(m.LABEL_VALUES["working_set"], started_and_waiting, strict=True):
            self._measures.gauge(m.WORKING_SET_APPLICATIONS, label).value = count
        self._measures.gauge(m.WORKING_SET_CONTEXT_TOKENS).value = tokens

    def _set_gauges(self, reasons: Counter[Reason], tiers: Counter[str]) -> None:
        for reason in Reason:
            self._measures.gauge(m.APPLICATIONS_BY_OUTLOOK, reason.value).value = reasons[reason]
        for tier in TIERS:
            self._measures.gauge(m.APPLICATIONS_BY_TIER, tier).value = tiers[tier]
