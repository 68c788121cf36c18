"""Console snapshots of a scheduler: one a second while the console has viewers, else none.

All viewers share a snapshot and its encoded frames. These take at most a twentieth of the time:
after a snapshot that took longer than 50 ms, the next one comes later.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from justitia_ray.console.history import history_of
from justitia_ray.console.timeline import timeline_of
from justitia_ray.console.watch import Sight, Watch
from justitia_ray.errors import AdmissionError
from justitia_ray.observability.trace_context import ApplicationSampler
from justitia_ray.protocol.console import INTERVAL_S, QuotaLeft, ShareRow, Strip
from justitia_ray.protocol.console_answers import Trace
from justitia_ray.protocol.status import NodeShare, SchedulerStatus
from justitia_ray.serve.scheduler.inspection import SchedulerInspector
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.units import ApplicationId, ClientId, Epoch, Seconds

LINGER_S: Seconds = 120.0
"""Seconds without a viewer of the console after which recording ends. A viewer who returns earlier
still sees past events.
"""
RETRY_S: Seconds = 15.0
"""Seconds after which a request for the history may be retried while nothing is recorded."""
MOST_FRAMES = 64
"""Maximum number of JSON texts made from one snapshot, which differ by tenant and by the reader's
last state.
"""
_TIMES_ITS_COST = 20
_EARLY_S: Seconds = 0.1
"""Seconds before a new state is due at which a reader of the console may already request it."""

Told = tuple[Epoch, int, bytes]
"""Number of a state of the console with its epoch, and its JSON."""


class SchedulerConsole:
    """Records the scheduler's events while the console is watched, and encodes them.

    Args:
        term: Term of the scheduler.
        inspector: Views of the scheduler for its status.
        stopwatch: Returns the CPU time, to measure the cost of a snapshot.
    """

    def __init__(
        self,
        term: Term,
        inspector: SchedulerInspector,
        stopwatch: Callable[[], Seconds] = time.thread_time,
    ) -> None:
        self._stopwatch = stopwatch
        self._term = term
        self._inspector = inspector
        self._watch: Watch | None = None
        """Recording of the core's events; None without viewers of the console."""
        self._sight: Sight | None = None
        self._next_look_at: Seconds = 0.0
        self._spent_s: Seconds = 0.0
        """CPU seconds that the last snapshot for the console and its encodings took."""
        self._encoded: dict[tuple[ClientId | None, int | None], bytes] = {}
        """The last snapshot as JSON, by tenant and by the number of the reader's last state."""
        self._asked_at: Seconds = 0.0
        config = term.config
        self._sampler: ApplicationSampler | None = None
        if config.tracing.endpoint is not None:
            self._sampler = ApplicationSampler(
                config.name, config.model.name, config.tracing.sample_ratio
            )

    @property
    def is_watched(self) -> bool:
        """Whether the core's events are recorded for the console."""
        return self._watch is not None

    def frame(
        self, tenant: ClientId | None, epoch: Epoch | None, number: int | None
    ) -> Told | None:
        """Return the model's present state for the console; None if the reader already has it.

        Args:
            tenant: Tenant whose applications are shown, with all tenants below it; None: all.
            epoch: Epoch of the last frame that the reader has; None: it has none.
            number: Number of that frame.

        Raises:
            AdmissionError: If `MOST_FRAMES` different frames of this snapshot exist already.
        """
        watch, sight = self._refresh_if_due()
        since = number if epoch == self._term.epoch else None
        if since == sight.number:
            return None
        key = (tenant, since)
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= MOST_FRAMES:
                raise AdmissionError(
                    f"{MOST_FRAMES} viewers watch already, each with a tenant of its own"
                )
            began_at = self._stopwatch()
            encoded = msgspec.json.encode(watch.frame(sight, tenant, since))
            self._encoded[key] = encoded
            self._delay_next_look(self._stopwatch() - began_at)
        return self._term.epoch, sight.number, encoded

    def application(self, application_id: ApplicationId) -> bytes | None:
        watch, core = self._recording(), self._term.informed_core()
        now = self._term.driver.now()
        timeline = timeline_of(
            core, watch, application_id, now, self._application_trace(application_id)
        )
        return None if timeline is None else msgspec.json.encode(timeline)

    def history(self, lasts_s: Seconds) -> bytes:
        """Return the recorded history of the queue as JSON, a `History`, for a what-if estimate.

        Args:
            lasts_s: Length of the history (seconds); at most the time since the recording began.

        Raises:
            AdmissionError: If no application was recorded from its arrival on.
        """
        watch, term = self._recording(), self._term
        settings, now = term.driver.settings.model_dump(mode="json"), term.driver.now()
        history = history_of(
            term.driver.core, watch, term.config.model.name, settings, now, lasts_s
        )
        if history is None:
            raise AdmissionError(
                f"nothing can be replayed yet: {now - watch.calls.since:.0f} s are recorded,"
                " without an application from its arrival on",
                RETRY_S,
            )
        return msgspec.json.encode(history)

    def stop(self) -> None:
        self._term.driver.observer = None
        self._watch = self._sight = None
        self._encoded.clear()

    # --- internals

    def _recording(self) -> Watch:
        """Return the recording of the core's events; start one if there is none."""
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        if self._watch is None:
            driver = self._term.driver
            model = self._term.config.model.name
            self._watch = Watch(driver.core, model, self._term.epoch, driver.now())
            driver.observer = self._watch.observe
            self._next_look_at = 0.0
            loop.call_later(LINGER_S, self._stop_if_idle)
        return self._watch

    def _stop_if_idle(self) -> None:
        if self._watch is None:
            return
        loop = asyncio.get_running_loop()
        left_s = self._asked_at + LINGER_S - loop.time()
        if left_s > 0:
            loop.call_later(left_s, self._stop_if_idle)
        else:
            self.stop()

    def _refresh_if_due(self) -> tuple[Watch, Sight]:
        watch, now = self._recording(), self._term.driver.now()
        if self._sight is None or now >= self._next_look_at:
            began_at = self._stopwatch()
            status = self._inspector.status()
            self._term.informed_core()
            self._encoded.clear()
            self._sight = watch.look(
                now, strip_of(status), shares_of(status), self._inspector.kv_meter.used_tokens
            )
            self._spent_s, self._next_look_at = 0.0, now + INTERVAL_S - _EARLY_S
            self._delay_next_look(self._stopwatch() - began_at)
        return watch, self._sight

    def _delay_next_look(self, cost_s: Seconds) -> None:
        """Delay the next snapshot for the console, because snapshots may take 5 % of the time."""
        self._spent_s += cost_s
        assert self._sight is not None
        least = self._sight.at + _TIMES_ITS_COST * self._spent_s
        self._next_look_at = max(self._next_look_at, least)

    def _application_trace(self, application_id: ApplicationId) -> Trace | None:
        if self._sampler is None:
            return None
        context = self._sampler.context(application_id)
        if not context.is_sampled:
            return None
        trace_id, template = f"{context.trace_id:032x}", self._term.config.tracing.trace_url
        url = None if template is None else template.replace("{trace_id}", trace_id)
        return Trace(trace_id=trace_id, url=url)


def strip_of(status: SchedulerStatus) -> Strip:
    """Return the console's summary of a scheduler's status, without the sums over replicas."""
    state, why = _state_of(status)
    size: dict[str, Any] = dict(status.size or {})
    return Strip(
        state=state,
        why=why,
        policy=status.policy or "",
        virtual_time=status.virtual_time,
        drain_s=size.get("drain_s"),
        replicas_up=len(status.replicas),
        replicas_wanted=size.get("wanted"),
        wanted_why=size.get("why"),
        applications=status.applications,
        waiting=status.waiting,
        running=status.in_flight,
        grants=status.grants,
        suspects=status.suspects,
        kv=status.kv,
        store=status.store,
        version=status.version,
    )


def _state_of(status: SchedulerStatus) -> tuple[str, str | None]:
    if status.degraded is not None:
        return "degraded", status.degraded
    if status.recovering:
        return "recovering", "the scheduler began again, and waits for reports of the replicas"
    states = [replica.state for replica in status.replicas.values()]
    if not states:
        return "empty", "no replica is up"
    if set(states) == {"stalled"}:
        return "stalled", "the engines of all replicas have work and make no steps"
    return "ready", None


def shares_of(status: SchedulerStatus) -> tuple[ShareRow, ...]:
    """Return the shares of tenants, with the remaining amounts of their quotas."""
    rows = {
        share.node: ShareRow(
            **{name: getattr(share, name) for name in NodeShare.__dataclass_fields__},
            quotas=_quotas_left(status, share.node),
        )
        for share in status.shares
    }
    for node in status.quotas:
        if node not in rows:  # A tenant without live applications may have used up a quota.
            rows[node] = ShareRow(
                node=node,
                weight=None,
                fair_share=None,
                guaranteed=0.0,
                used=0.0,
                borrowed=0.0,
                waiting=0,
                running=0,
                quotas=_quotas_left(status, node),
            )
    return tuple(rows[node] for node in sorted(rows, key=lambda node: node.split("/")))


def _quotas_left(status: SchedulerStatus, node: ClientId) -> tuple[QuotaLeft, ...]:
    known = QuotaLeft.__dataclass_fields__
    return tuple(
        QuotaLeft(**{name: value for name, value in quota.items() if name in known})
        for quota in status.quotas.get(node, ())
    )
