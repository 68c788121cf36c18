"""A scheduler core whose events are recorded for the console."""

from justitia_ray.console.watch import Watch
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action
from justitia_ray.protocol.console import Frame, ShareRow, Strip
from tests.core_driver import PATIENT, CoreDriver

STRIP = Strip(state="ready", policy="justitia")


class RecordedCore(CoreDriver):
    """Scheduler core whose events are recorded for the console, from its creation on."""

    def __init__(self, core: SchedulerCore | None = None) -> None:
        super().__init__(core or SchedulerCore(timeouts=PATIENT))
        self.shares: tuple[ShareRow, ...] = ()
        self.watch_from_now()

    def watch_from_now(self) -> None:
        """Forget the recording and begin another one."""
        self.watch = Watch(self.core, "m", 3, self.now)

    def handle(self, event: ev.Event) -> list[Action]:
        actions = super().handle(event)
        if hasattr(self, "watch"):
            self.watch.observe(event, actions, self.now)
        return actions

    def look(self, seconds: float = 1.0) -> None:
        """Advance the clock, and let the console read the core."""
        self.now += seconds
        self.watch.look(self.now, STRIP, self.shares, lambda replica_id: None)

    def frame(self, tenant: str | None = None, since: int | None = None) -> Frame:
        """Return the console frame of the last reading."""
        assert self.watch.sight is not None
        return self.watch.frame(self.watch.sight, tenant, since)
