"""Drive a scheduler core: pass events to it with their time, and carry out its actions."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from justitia_ray.application_key import split_key
from justitia_ray.config import SchedulerSection, SchedulingConfig
from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Grant, Refusal, Refuse
from justitia_ray.core.lags import Meter
from justitia_ray.core.policies import policy_path
from justitia_ray.core.snapshot import checkpoint_time, latest_recorded_time, restore
from justitia_ray.core.state import SchedulerLimits, State
from justitia_ray.cost import PrefillCost
from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import application_ended, log_event
from justitia_ray.observability.scheduler_metrics import DecisionMeter, SchedulerMetrics
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId, Epoch, Seconds

if TYPE_CHECKING:
    from justitia_ray.serve.scheduler.context_holds import ContextHolds

logger = logging.getLogger(__name__)

Observer = Callable[[ev.Event, Sequence[Action], Seconds], None]
"""Function that is called with each handled event of the core, its actions and its time."""


class CoreDriver:
    """A scheduler core with its settings, clock and timer, and the outboxes for its actions.

    The core is synchronous, so every event is handled completely before the next. The core is empty
    before `begin`.

    Args:
        section: Timeouts and limits.
        clock: Clock of the scheduler.
        outboxes: Outboxes for the core's actions.
        model: Name of the scheduled model, for the log.
        metrics: Counts decisions; None: no metrics.
        prefill_cost: Configured cost of computing prompts; None: prompts cost nothing.
        measures_prefill: Whether the first replica's measurement gives the cost of computing
            prompts.
    """

    def __init__(
        self,
        section: SchedulerSection,
        clock: SteadyClock,
        outboxes: Outboxes,
        model: str,
        metrics: SchedulerMetrics | None = None,
        prefill_cost: PrefillCost | None = None,
        *,
        measures_prefill: bool = False,
    ) -> None:
        self.core = SchedulerCore()
        self.settings = SchedulingConfig()
        self.outboxes = outboxes
        self.decisions = DecisionMeter()
        self._model = model
        self._epoch: Epoch = 0
        self._metrics = metrics
        self._section = section
        self._prefill_cost = prefill_cost
        self._measures_prefill = measures_prefill
        self._clock = clock
        self.now = clock.now
        """Function that returns the scheduler's current time; each event is handled with this time.
        """
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the core's next deadline, which may be set to an earlier time."""
        self._timer_at: Seconds = 0.0
        """Time on the scheduler's clock at which the timer fires."""
        self._has_failed = False
        self._is_closed = False
        self.on_end: Callable[[EndApplication], None] = lambda ended: None
        """Function that is called for every application that ends."""
        self.observer: Observer | None = None
        """Observer of every event that the core handles; None without console viewers."""
        self.holds: ContextHolds | None = None
        """Decides how long replicas keep contexts of open applications; None if no replica can."""

    def begin(self, stored: StoredState, epoch: Epoch) -> None:
        """Restore the state that the last leader saved, and recover if there was one.

        The clock is set forward to the latest time that the last leader recorded.

        Args:
            stored: State that the last leader saved.
            epoch: Epoch of this term; used as prefix of lease ids.

        Raises:
            StoreError: If the stored state is damaged.
        """
        if stored.settings is not None:
            named = policy_path(str(stored.settings.get("policy", "")))
            moved = {"policy": named} if named else {}
            self.settings = SchedulingConfig.parse({**stored.settings, **moved})
        self._epoch = epoch
        settings, section = self.settings, self._section
        core = SchedulerCore(
            settings.policy,
            settings.policy_options,
            settings.admission,
            Timeouts(
                lease_s=section.lease_timeout_s,
                replica_s=section.replica_timeout_s,
                ingress_s=section.ingress_timeout_s,
                application_s=section.application_idle_s,
                recovery_s=section.recovery_s,
            ),
            lease_prefix=f"{epoch}-",
            limits=SchedulerLimits(section.max_waiting_inferences, section.max_open_applications),
            tenants=settings.tenant_tree,
            tiers=settings.service_tiers,
            deaths_allowed=section.engine_deaths_allowed,
            meter=_lag_meter() if section.lag_meter else None,
            prefill_cost=self._prefill_cost,
            measures_prefill=self._measures_prefill,
        )
        core.applications.reapply_caps()
        try:
            core.state.usage.restore(stored.usage)
        except ValueError as error:
            raise StoreError(f"usage: the stored record is damaged ({error!r})") from error
        if stored.clock is not None:
            self._clock.not_before(latest_recorded_time(stored.applications.values()))
            self._clock.not_before(checkpoint_time(stored.clock))
            core.recover(stored.replicas, self.now())
            restore(core, stored.clock, stored.applications)
        log_event(
            logger,
            logging.INFO,
            "scheduler.in_office",
            epoch=epoch,
            applications=len(stored.applications),
            awaited_replicas=len(stored.replicas),
            settings=settings.model_dump(),
        )
        self.core = core
        if self._metrics is not None:
            self._metrics.declare_series(self.core.state)
        self._set_timer()

    def apply(
        self,
        event: ev.Event,
        quiet: Outbox | None = None,
        *,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Let the core handle an event, and deliver the resulting actions; no effect once closed.

        Args:
            event: Event that happened now.
            quiet: Outbox that the caller reads itself, so its waiting call is not woken.
            unstored: Application that the event ends because it could not be stored.
        """
        if self._is_closed:
            return
        began_at = time.perf_counter()
        actions = self.core.handle(event, self.now())
        took_s = time.perf_counter() - began_at
        self.outboxes.deliver(actions, self.core.state, quiet)
        if self.holds is not None:
            self.holds.post(actions, self.core, self.outboxes)
        self._set_timer()
        granted = sum(isinstance(action, Grant) for action in actions)
        self.decisions.record_decisions(took_s, max(1, granted))
        for action in actions:
            if isinstance(action, EndApplication):
                self.on_end(action)
        self._report_decisions(event, actions, unstored)
        if self.observer is not None:
            self._show_observer(self.observer, event, actions)

    def configure(self, settings: dict[str, Any]) -> bool:
        """Apply scheduling settings and keep the queue; return whether the settings differ.

        Raises:
            ConfigError: If a setting is not allowed; the current settings stay.
        """
        parsed = SchedulingConfig.parse(settings)
        if parsed == self.settings:
            return False
        options = tuple(parsed.policy_options.items())
        self.apply(ev.PolicyChanged(parsed.policy, options, parsed.admission))
        before = self.settings
        trees = parsed.tenant_tree, before.tenant_tree
        if trees[0] != trees[1] or parsed.tiers != before.tiers:
            self.apply(ev.TenantsChanged(parsed.tenant_tree, parsed.service_tiers))
        self.settings = parsed
        log_event(logger, logging.INFO, "scheduler.configured", settings=parsed.model_dump())
        if parsed.advice is not None:
            log_event(logger, logging.WARNING, "scheduler.setting_moved", advice=parsed.advice)
        return True

    def begin_holds(self) -> None:
        """From now on, tell replicas that can hold contexts how long to hold them."""
        from justitia_ray.serve.scheduler.context_holds import ContextHolds

        self.holds = ContextHolds()

    def close(self) -> None:
        """Handle no more events and deadlines: the term has ended, or another scheduler leads."""
        self._is_closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_decisions(
        self, event: ev.Event, actions: Sequence[Action], unstored: ApplicationId | None
    ) -> None:
        """Count and log the core's decisions; an error in this is logged once and ignored."""
        try:
            if isinstance(event, ev.EngineFailed):
                self._log_failure(event)
            elif isinstance(event, ev.ReplicaCrashed):
                suspects = self.core.suspects.open_count
                replica_id = event.replica_id
                log_event(
                    logger,
                    logging.ERROR,
                    "replica.crashed",
                    replica_id=replica_id,
                    suspects=suspects,
                )
            if self._metrics is not None:
                self._metrics.record_event(event, actions, self.core.state, unstored)
            for action in actions:
                if isinstance(action, EndApplication):
                    application_ended(logger, action, self._model, self._epoch)
                elif isinstance(action, Refuse) and action.reason is Refusal.ENGINE_KILLER:
                    self._log_killer(action)
        except Exception:
            if not self._has_failed:  # logged once, because it may recur
                logger.exception("decision.not_told")
            self._has_failed = True

    def _show_observer(
        self, observer: Observer, event: ev.Event, actions: Sequence[Action]
    ) -> None:
        """Show an event to the observer; an observer that fails is logged and removed."""
        try:
            observer(event, actions, self.core.state.now)
        except Exception:
            logger.exception("console.recording_failed")
            self.observer = None

    def _log_failure(self, failure: ev.EngineFailed) -> None:
        log_event(
            logger,
            logging.WARNING,
            "engine.failed",
            replica_id=failure.replica_id,
            cause=failure.cause.value,
            leases=len(failure.ran),
            suspects=self.core.suspects.open_count,
        )

    def _log_killer(self, refused: Refuse) -> None:
        for inference in self.core.suspects.convicted:
            if inference.request_id == refused.request_id:
                tenant, application_id = split_key(inference.application_id)
                log_event(
                    logger,
                    logging.ERROR,
                    "inference.kills_engines",
                    request_id=refused.request_id,
                    application_id=application_id,
                    tenant=tenant,
                )

    def _set_timer(self) -> None:
        """Set the timer to the next deadline, unless it is set to an earlier time."""
        deadline = self.core.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        self._stop_timer()
        delay_s = max(0.0, deadline - self.now())
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = None
        self.apply(ev.DeadlinePassed())


def _lag_meter() -> Callable[[State], Meter]:
    """Return the class of the lag meter, whose module is imported only if it is used."""
    from justitia_ray.core.lag.meter import LagMeter

    return LagMeter
