"""A scheduler's office: its parts, put together; who may come in, and what may go out."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.observability.live_lag import LiveLag
from justitia_ray.observability.measures import Backend
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.alarm import Attendance
from justitia_ray.serve.core_driver import CoreDriver
from justitia_ray.serve.exporter import Exporter, new_measures
from justitia_ray.serve.intake import DirectIntake, Intake, StrictIntake
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.serve.tenure import Tenure
from justitia_ray.store.scheduler_store import DurableState
from justitia_ray.units import Epoch


class SchedulerOffice:
    """From taking office to its end: serves nothing before, and nobody after it was lost."""

    def __init__(
        self,
        config: AppConfig,
        store: DurableState,
        stand_down: Callable[[str], None],
        revive_store: Callable[[], None] | None,
        clock: SteadyClock,
        begin_again: Callable[[Epoch], None],
        backend: Backend | None,
    ) -> None:
        """Put the parts together; nothing runs before `open`. See `SchedulerService`."""
        self.clock = clock
        self.keeper = StateKeeper(store, revive_store)
        metrics = self._exporter = None
        if backend is not None and config.metrics.enabled:
            measures = new_measures(config, "scheduler")
            metrics = SchedulerMetrics(measures, LiveLag(time.perf_counter))
            interval_s = config.metrics.interval_s
            self._exporter = Exporter(measures, self._look, backend, interval_s)
        self._metrics = metrics
        self.driver = CoreDriver(config.scheduler, clock, MailRoom(), config.model.name, metrics)
        self.intake: Intake = DirectIntake()
        if config.store.durability == "strict":
            self.intake = StrictIntake(
                config.store.strict_timeout_s,
                lambda name: name in self.driver.core.state.applications,
                lambda event: self.driver.apply(event),
                lambda name, refusals: self.driver.give_up(name, refusals),
                lambda: self.tenure.save_soon(),
            )
        self.tenure = Tenure(
            self.keeper,
            self.intake,
            lambda: (self.driver.core, self.driver.settings.model_dump()),
            self._lose,
            begin_again,
            config.store.save_interval_s,
            clock,
        )
        self._attendance = Attendance(config.scheduler.abandoned_s, clock.now)
        self._stand_down = stand_down
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, above: Epoch) -> None:
        """Load what the last scheduler left, then let callers in and save.

        Waits for Redis as long as it takes: without it the epoch is not known.

        Args:
            above: The epoch is to be above this one, too.
        """
        stored = await self.tenure.begin(above)
        self.driver.begin(stored, self.tenure.epoch)
        self.tenure.in_office.set()
        self._tasks = [
            asyncio.create_task(self.clock.keep_beating()),
            asyncio.create_task(self.tenure.keep_saving()),
            asyncio.create_task(self._attendance.end(self._stand_down)),
        ]
        if self._exporter is not None:
            self._tasks.append(asyncio.create_task(self._exporter.run()))

    async def close(self) -> None:
        """Save a last time and serve no more."""
        self.tenure.end_saving()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.driver.rest()
        if self.tenure.in_office.is_set():
            await self.tenure.save_a_last_time()
        self.driver.mail.ring_all()
        await self.keeper.aclose()

    async def enter(self) -> None:
        """Let a caller in, once there is an office.

        Raises:
            SchedulerSuperseded: If it was lost.
        """
        self._attendance.called()
        await self.tenure.in_office.wait()
        self.tenure.check()

    def take(self, item: Submission, quiet: Line | None = None) -> None:
        """Take what an ingress submits, now or once it is stored; `quiet` as for the driver."""
        self.intake.take(item, lambda taken: self.driver.apply(taken, quiet))

    async def handed_out(self, line: Line, ack: int) -> tuple[Any, ...]:
        """Return what its reader has not read, once the epoch is known to be in office.

        Raises:
            SchedulerSuperseded: If the office was lost.
        """
        messages = tuple(line.unread(ack))
        if messages:
            await self.tenure.confirmed()
        self.tenure.check()
        return messages

    def _look(self) -> None:
        """Tell what there is now: nothing once the office is lost, for all of it is another's."""
        assert self._metrics is not None
        if self.tenure.lost is not None:
            self._metrics.left_office(self.driver.core, self.driver.decisions)
            return
        self._metrics.look(
            self.driver.core,
            self.driver.decisions,
            self.tenure.epoch,
            self.driver.now(),
            store_reachable=self.keeper.trouble is None,
        )

    def _lose(self) -> None:
        """Serve nobody any more; those who ask are told why, until nobody asks."""
        self.driver.rest()
        self.driver.mail.ring_all()
        if self._exporter is not None:
            self._exporter.end()
        if self.tenure.succeeded:
            self._stand_down("another process of this actor is in office")
