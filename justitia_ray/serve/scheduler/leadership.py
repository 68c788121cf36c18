"""A scheduler's term as leader: its epoch, its parts, who may call, and how the term ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import Held, HeldBy, Reason
from justitia_ray.errors import AdmissionError, SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.measures import MetricsBackend
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.serve.accounts.handle import AccountsLink
from justitia_ray.serve.ray_metrics import Exporter, new_measures
from justitia_ray.serve.scheduler.checkpointer import Checkpoint, Checkpointer
from justitia_ray.serve.scheduler.claims import Accounts
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.fleet_sizer import FleetSizer
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from justitia_ray.serve.scheduler.quota_gate import QuotaGate
from justitia_ray.serve.scheduler.write_through import WriteThroughAdmission
from justitia_ray.store.leader import StaleEpoch
from justitia_ray.store.scheduler_store import DurableState
from justitia_ray.units import ApplicationId, ClientId, Epoch, Seconds

logger = logging.getLogger(__name__)

_SETTINGS_WITHIN_S: Seconds = 5.0
"""Longest wait of a call for the settings: ingresses give them once they hear of the term."""
_ADVICE = (
    "two deployments of one name and model on one Redis take the lead from each other: give one"
    " of them another name; to take it back here, end the other one, then run `justitia shutdown`"
    " and deploy again"
)


class Term:
    """A scheduler from becoming the leader to its end: serves no call before, and none after."""

    def __init__(
        self,
        config: AppConfig,
        store: DurableState,
        step_down: Callable[[str], None],
        revive_store: Callable[[], None] | None = None,
        clock: SteadyClock | None = None,
        begin_again: Callable[[Epoch], None] = lambda above: None,
        backend: MetricsBackend | None = None,
        connect_accounts: Callable[[], Accounts] | None = None,
    ) -> None:
        """Put the parts together; nothing runs before `begin`.

        Args:
            config: The application's arguments.
            store: Redis, or a fake of it in tests.
            step_down: Called with the reason when this scheduler may end: nobody needs it.
            revive_store: Called in a thread when the store fails, to start it again if it is ours.
            clock: Where the time comes from; this machine's if None.
            begin_again: Called with an epoch above which a scheduler has to become the leader in
                place of this one; see `note_epoch`.
            backend: Where metrics go; None: nowhere.
            connect_accounts: Returns the way to the accounts; None: by Ray.
        """
        self.config = config
        self.epoch: Epoch = 0
        self.serving = asyncio.Event()
        """Set once the state that the last leader left is restored, and not cleared."""
        self.has_settings = asyncio.Event()
        """Set once the scheduling settings are known: stored by the last leader, or given since."""
        self.lost: str | None = None
        """Who leads instead, and what to do."""
        self.succeeded = False
        """Whether the new leader is another process of this very actor, started in its place."""
        self.clock = clock = clock or SteadyClock()
        self._step_down = step_down
        self._begin_again = begin_again
        self._higher_epoch: Epoch = 0
        self.checkpointer = Checkpointer(
            store,
            revive_store,
            self._take_checkpoint,
            self._lose,
            config.store.save_interval_s,
            clock,
        )
        self._exporter: Exporter | None = None
        self._metrics: SchedulerMetrics | None = None
        if backend is not None and config.metrics.enabled:
            measures = new_measures(config, "scheduler")
            self._metrics = SchedulerMetrics(measures, time.perf_counter)
            interval_s = config.metrics.interval_s
            self._exporter = Exporter(measures, self._set_gauges, backend, interval_s)
        self.driver = CoreDriver(
            config.scheduler, clock, Outboxes(), config.model.name, self._metrics
        )
        self.admission = WriteThroughAdmission(
            config.store.strict_timeout_s if config.store.durability == "strict" else None,
            self.driver,
            self._save_soon,
        )
        self.gate = QuotaGate(
            config.model.name,
            self.admission,
            connect_accounts or (lambda: AccountsLink(config)),
            config.scheduler.quota_timeout_s,
            config.scheduler.ingress_timeout_s,
        )
        self.fleet = FleetSizer(config.autoscaling)
        self._called_at = clock.now()
        self._tasks: list[asyncio.Task[None]] = []

    # --- begin and end

    async def begin(self, above: Epoch = 0) -> None:
        """Become the leader, restore what the last leader left, then serve calls and save.

        Waits for Redis as long as it takes: without it the epoch is not known.

        Args:
            above: The epoch is to be above this one, too.
        """
        self.epoch, stored = await self.checkpointer.become_leader(above)
        self.driver.begin(stored, self.epoch)
        self.gate.begin(self.epoch)
        if stored.settings is not None:
            self.has_settings.set()
        self.serving.set()
        self._tasks = [
            asyncio.create_task(self.clock.keep_beating()),
            asyncio.create_task(self.checkpointer.run()),
            asyncio.create_task(self._step_down_when_idle()),
            asyncio.create_task(self.gate.run()),
        ]
        if self._exporter is not None:
            self._exporter.start()

    async def end(self) -> None:
        """Save a last time and serve no more."""
        self.checkpointer.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._exporter is not None:
            self._exporter.end()
        self.driver.stop_timer()
        if self.serving.is_set():
            await self.checkpointer.save_once()
            self.admission.close()
            self.gate.close()
        self.driver.outboxes.notify_all()
        await self.checkpointer.aclose()

    # --- callers

    async def admit_caller(self) -> None:
        """Let a caller in, once this scheduler leads.

        Raises:
            SchedulerSuperseded: If the lead was lost.
        """
        self._called_at = self.clock.now()
        await self.serving.wait()
        self.check_lead()

    async def await_settings(self) -> None:
        """Wait until the scheduling settings are known: without them nothing is let in.

        Tenants, quotas and caps are among them.

        Raises:
            AdmissionError: If no ingress gives them in time.
            SchedulerSuperseded: If the lead was lost meanwhile.
        """
        if self.has_settings.is_set():
            return
        try:
            async with asyncio.timeout(_SETTINGS_WITHIN_S):
                await self.has_settings.wait()
        except TimeoutError:
            self.check_lead()
            raise AdmissionError(
                "the scheduler has found no stored settings, and no ingress has given it any in"
                f" {_SETTINGS_WITHIN_S:g} s: it lets nothing in before that; try again",
                _SETTINGS_WITHIN_S,
            ) from None
        self.check_lead()

    def configure(self, settings: dict[str, Any]) -> None:
        """Apply other scheduling settings from now on, and store them with the next save.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay.
        """
        is_changed = self.driver.configure(settings)
        if is_changed:
            self.gate.settings_changed()
        if is_changed or not self.has_settings.is_set():
            self.checkpointer.save_everything()
        self.has_settings.set()

    def check_lead(self) -> None:
        """Let nobody be served by a scheduler that has lost the lead.

        Raises:
            SchedulerSuperseded: If another scheduler leads.
        """
        if self.lost is not None:
            raise SchedulerSuperseded(self.lost)

    async def collect_messages(self, outbox: Outbox, ack: int) -> tuple[Any, ...]:
        """Return the unread messages of an outbox, once the epoch is known to lead.

        Raises:
            SchedulerSuperseded: If the lead was lost.
        """
        messages = tuple(outbox.unread(ack))
        if messages:
            await self.checkpointer.confirm()
        self.check_lead()
        return messages

    def note_epoch(self, epoch: Epoch) -> None:
        """Compare an epoch that a caller knows; ask the store at once about a higher one.

        If the store does not know the higher epoch either, the store was emptied or set back.
        Nobody who knows that epoch listens to this scheduler, so a new term begins above it.
        """
        if epoch > max(self.epoch, self._higher_epoch):
            self._higher_epoch = epoch
            self.checkpointer.save_soon()

    def standing(self) -> dict[str, Any]:
        """Return whether calls are served, what is wrong, and the epoch."""
        return {
            "ready": self.serving.is_set() and self.lost is None,
            "degraded": self.lost or self.checkpointer.trouble,
            "epoch": self.epoch,
        }

    def informed_core(self) -> SchedulerCore:
        """Return the core, told of what holds applications back outside of it."""
        core = self.driver.core
        core.outlooks.held_by = held_by(self.admission.unstored(), self.gate.node_in_the_way)
        return core

    # --- inside

    async def _step_down_when_idle(self) -> None:
        """End a scheduler that nobody has called for too long."""
        limit_s, idle_s = self.config.scheduler.abandoned_s, 0.0
        while idle_s < limit_s:
            await asyncio.sleep(limit_s - idle_s)
            idle_s = self.clock.now() - self._called_at
        self._step_down(f"nobody has called for {limit_s:g} s")

    def _take_checkpoint(self) -> Checkpoint | None:
        if self.lost is not None:
            return None
        higher, unstored = self._higher_epoch, self.admission.unstored()
        ended = self.gate.unstored()

        def on_saved() -> None:
            if unstored:
                self.admission.note_stored(unstored)
            self.driver.apply(ev.StateStored())
            if ended:
                self.gate.note_stored(ended)
            if higher > self.epoch:
                self._higher_epoch = 0
                log_event(
                    logger,
                    logging.WARNING,
                    "scheduler.outranked",
                    epoch=self.epoch,
                    heard_of=higher,
                )
                self._begin_again(higher)

        # The successor of a scheduler that was given none must not take the defaults for them.
        settings = self.driver.settings.model_dump() if self.has_settings.is_set() else None
        return Checkpoint(self.driver.core, self.epoch, settings, on_saved)

    def _save_soon(self) -> None:
        """Save without waiting, unless the store is away: then it is tried often enough."""
        if self.checkpointer.trouble is None:
            self.checkpointer.save_soon()

    def _lose(self, error: StaleEpoch) -> None:
        """Serve nobody any more; callers are told why, until nobody calls."""
        self.succeeded = error.succeeded
        self.lost = f"this scheduler has lost the lead: {error}; {_ADVICE}"
        log_event(logger, logging.WARNING, "scheduler.superseded", reason=str(error))
        self.admission.close()
        self.gate.close()
        self.driver.stop_timer()
        self.driver.outboxes.notify_all()
        if self._exporter is not None:
            self._exporter.end()
        if self.succeeded:
            self._step_down("another process of this actor leads")

    def _set_gauges(self) -> None:
        """Set the gauges, to nothing once the lead is lost: another scheduler sets them then."""
        assert self._metrics is not None
        if self.lost is not None:
            self._metrics.step_down(self.driver.core, self.driver.decisions)
            return
        core, gate = self.informed_core(), self.gate
        self._metrics.measure(
            core,
            self.driver.decisions,
            self.epoch,
            self.driver.now(),
            store_reachable=self.checkpointer.trouble is None,
            held_back=gate.unopened,
        )
        self._metrics.tenants.measure_quotas(gate.known.nodes, core.state.tenants, gate.refusals)
        self._metrics.tenants.measure_exchanges(gate.meter, gate.waiting_claims)
        if not core.recovery.holding:
            size = self.fleet.decision(core, self.driver.now())
            self._metrics.measure_size(size, self.fleet.target_drain_s)


def held_by(
    unstored: Iterable[ApplicationId],
    node_in_the_way: Callable[[ApplicationId], ClientId | None],
) -> HeldBy:
    """Return what tells of applications that are held back outside the core.

    Args:
        unstored: Applications that wait to be stored.
        node_in_the_way: Returns the node whose quota keeps an application from more, if one does.
    """
    names, store = frozenset(unstored), Held(Reason.STORE)

    def held(application: Application) -> Held | None:
        if application.application_id in names:
            return store
        node = node_in_the_way(application.application_id)
        return None if node is None else Held(Reason.QUOTA, node)

    return held
