"""Drives a core: hands it events at their time, and carries out what it decides."""

import logging
import time
from typing import Any

from justitia_ray.config import SchedulerSection, SchedulingConfig, parse_scheduling_config
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication
from justitia_ray.observability.log_events import application_ended, log_event
from justitia_ray.serve.alarm import Alarm
from justitia_ray.serve.decision_meter import DecisionMeter
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.new_core import core_with
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import Epoch, Seconds

logger = logging.getLogger(__name__)


class CoreDriver:
    """A core with its settings, its clock, its one timer, and the mail of those it decides for.

    The core is synchronous and awaits nothing, so every event is handled whole.
    """

    def __init__(self, section: SchedulerSection, clock: SteadyClock, mail: MailRoom) -> None:
        """Drive a core that knows nothing, until `begin`.

        Args:
            section: Time-outs and limits.
            clock: Where the time comes from.
            mail: Where decisions go.
        """
        self.core = SchedulerCore()
        self.settings = SchedulingConfig()
        """In force."""
        self.mail = mail
        self.decisions = DecisionMeter()
        self._section = section
        self._clock = clock
        self._alarm = Alarm(lambda: self.apply(ev.DeadlinePassed()))

    def begin(self, stored: StoredState, epoch: Epoch) -> None:
        """Go on with what the last scheduler left.

        Raises:
            StoreError: If what is stored is damaged.
        """
        if stored.settings is not None:
            self.settings = parse_scheduling_config(stored.settings)
        self.core = core_with(stored, self.settings, self._section, epoch, self._clock)
        self._set_alarm()

    def now(self) -> Seconds:
        """Return the instant at which an event would be handled."""
        return self._clock.now()

    def apply(self, event: ev.Event, quiet: Line | None = None) -> None:
        """Handle an event and carry out what follows; `quiet` is read by the caller itself."""
        began_at = time.perf_counter()
        actions = self.core.handle(event, self.now())
        self.decisions.note(time.perf_counter() - began_at)
        for action in actions:
            if isinstance(action, EndApplication):
                application_ended(logger, action)
        self.mail.deliver(actions, self.core.state, quiet)
        self._set_alarm()

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

    def _set_alarm(self) -> None:
        deadline = self.core.next_deadline()
        self._alarm.set(None if deadline is None else deadline - self.now())
