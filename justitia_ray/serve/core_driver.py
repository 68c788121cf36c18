"""Drives a core: hands it events at their time, and carries out what it decides."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from justitia_ray.config import SchedulerSection, SchedulingConfig, parse_scheduling_config
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication, Refuse
from justitia_ray.observability.decision_meter import DecisionMeter
from justitia_ray.observability.log_events import application_ended, log_event
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.serve.alarm import Alarm
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.new_core import core_with
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId, Epoch, Seconds

logger = logging.getLogger(__name__)


class CoreDriver:
    """A core with its settings, its clock, its one timer, and the mail of those it decides for.

    The core is synchronous and awaits nothing, so every event is handled whole.
    """

    def __init__(
        self,
        section: SchedulerSection,
        clock: SteadyClock,
        mail: MailRoom,
        model: str,
        metrics: SchedulerMetrics | None = None,
    ) -> None:
        """Drive a core that knows nothing, until `begin`.

        Args:
            section: Time-outs and limits.
            clock: Where the time comes from.
            mail: Where decisions go.
            model: Whose queue it is, for the log.
            metrics: What is told of them; None: nothing is.
        """
        self.core = SchedulerCore()
        self.settings = SchedulingConfig()
        """In force."""
        self.mail = mail
        self.decisions = DecisionMeter()
        self._model = model
        self._epoch: Epoch = 0
        self._metrics = metrics
        self._section = section
        self._clock = clock
        self._alarm = Alarm(lambda: self.apply(ev.DeadlinePassed()))
        self._has_failed = False

    def begin(self, stored: StoredState, epoch: Epoch) -> None:
        """Go on with what the last scheduler left.

        Raises:
            StoreError: If what is stored is damaged.
        """
        if stored.settings is not None:
            self.settings = parse_scheduling_config(stored.settings)
        self._epoch = epoch
        self.core = core_with(stored, self.settings, self._section, epoch, self._clock)
        if self._metrics is not None:
            self._metrics.begin(self.core.state)
        self._set_alarm()

    def now(self) -> Seconds:
        """Return the instant at which an event would be handled."""
        return self._clock.now()

    def apply(
        self,
        event: ev.Event,
        quiet: Line | None = None,
        *,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Handle an event and carry out what follows.

        Args:
            event: What happened.
            quiet: A line that the caller reads itself.
            unstored: An application that the event ends because it could not be stored.
        """
        began_at = time.perf_counter()
        actions = self.core.handle(event, self.now())
        took_s = time.perf_counter() - began_at
        self.mail.deliver(actions, self.core.state, quiet)
        self._set_alarm()
        self.decisions.note(took_s)
        self._tell(event, actions, unstored)

    def give_up(self, application_id: ApplicationId, refusals: Sequence[Refuse]) -> None:
        """Treat an application that could not be stored as if it had not been opened.

        Args:
            application_id: The application.
            refusals: Of what was held back of it.
        """
        self.mail.deliver(refusals, self.core.state, None)
        self.apply(ev.ApplicationCancelled(application_id), unstored=application_id)

    def configure(self, settings: dict[str, Any]) -> bool:
        """Take other settings from now on, the queue stays; return whether they are others.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay.
        """
        parsed = parse_scheduling_config(settings)
        if parsed == self.settings:
            return False
        options = tuple(parsed.policy_options.items())
        self.apply(ev.PolicyChanged(parsed.policy, options, parsed.admission))
        self.settings = parsed
        log_event(logger, logging.INFO, "scheduler.configured", settings=parsed.model_dump())
        return True

    def rest(self) -> None:
        """Handle no deadline any more."""
        self._alarm.set(None)

    def _tell(
        self, event: ev.Event, actions: Sequence[Action], unstored: ApplicationId | None
    ) -> None:
        """Count and log, for people: a mistake in that is logged once, and hurts nobody else."""
        try:
            if self._metrics is not None:
                self._metrics.decided(event, actions, self.core.state, unstored)
            for action in actions:
                if isinstance(action, EndApplication):
                    application_ended(logger, action, self._model, self._epoch)
        except Exception:
            if not self._has_failed:  # it may fail every time
                logger.exception("decision.not_told")
            self._has_failed = True

    def _set_alarm(self) -> None:
        deadline = self.core.next_deadline()
        self._alarm.set(None if deadline is None else deadline - self.now())
