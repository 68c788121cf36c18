"""A scheduler's term as leader: its epoch, its components, its callers, and how it stops."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import Held, HeldBy, Reason
from justitia_ray.core.prefill_costs import MeasuredPrefill, is_first_of_release
from justitia_ray.errors import AdmissionError, SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.measures import MetricsBackend
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.protocol.messages import Submission
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
from justitia_ray.units import ApplicationId, ClientId, Epoch, ReplicaId, Seconds

logger = logging.getLogger(__name__)

_SETTINGS_WITHIN_S: Seconds = 5.0
"""Maximum seconds for which a call waits for the scheduling settings from an ingress in a new term.
"""
_ALIKE = 2.0
"""If two measured prefill costs differ by more than this factor, their engines are of different
kinds.
"""
_ADVICE = (
    "two deployments of one name and model on one Redis take the lead from each other: give one"
    " of them another name; to take it back here, end the other one, then run `justitia shutdown`"
    " and deploy again"
)


class Term:
    """A scheduler's term as leader, from its start until it is ended or superseded.

    Args:
        config: The application's arguments.
        store: Redis, or a fake of it in tests.
        step_down: Called with the reason when this scheduler may end because it is not needed.
        revive_store: Called in a thread when the store fails, to restart an embedded server; None:
            there is none.
        clock: Clock of the scheduler; None: this machine's.
        begin_again: Called with an epoch if a new term with a higher epoch has to replace this one;
            see `note_epoch`.
        backend: Metrics library; None: no metrics.
        connect_accounts: Returns the interface to the accounts; None: over Ray.
    """

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
        self.config = config
        self.epoch: Epoch = 0
        self.serving = asyncio.Event()
        """Event that is set once the last leader's state is restored, and never cleared."""
        self.has_settings = asyncio.Event()
        """Event that is set once the scheduling settings are known, stored by the last leader or
        received since.
        """
        self.lost: str | None = None
        """Name of the scheduler that leads instead, and advice to the caller; None while this one
        leads.
        """
        self.has_successor = False
        """Whether the new leader is another process of the same actor, started by Ray as a
        replacement.
        """
        self.clock = clock = clock or SteadyClock()
        self._step_down = step_down
        self._begin_again = begin_again
        self._higher_epoch: Epoch = 0
        self.checkpointer = Checkpointer(
            store,
            revive_store,
            self._take_checkpoint,
            self._lose_lead,
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
            config.scheduler,
            clock,
            Outboxes(),
            config.model.name,
            self._metrics,
            config.prefill_cost,
            measures_prefill=config.measures_prefill,
        )
        self._is_strict = config.store.durability == "strict"
        self.admission = WriteThroughAdmission(
            config.store.strict_timeout_s if self._is_strict else None,
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

    # --- start and end

    async def begin(self, above: Epoch = 0) -> None:
        """Become the leader, restore the last leader's state, then serve calls and save.

        Waits for Redis without limit, because the epoch is unknown without it.

        Args:
            above: Another lower bound of the epoch.
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
            asyncio.create_task(self.gate.exchange.run()),
        ]
        if self._exporter is not None:
            self._exporter.start()

    async def end(self) -> None:
        """Save a last time and stop serving."""
        self.checkpointer.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._exporter is not None:
            self._exporter.end()
        if self.serving.is_set():
            await self.checkpointer.save_once()
            self.admission.close()
            self.gate.close()
        self.driver.close()
        self.driver.outboxes.notify_all()
        await self.checkpointer.aclose()

    # --- callers

    async def admit_caller(self) -> Self:
        """Wait until this scheduler leads; return its term.

        Raises:
            SchedulerSuperseded: If the lead was lost.
        """
        self._called_at = self.clock.now()
        await self.serving.wait()
        self.check_lead()
        return self

    async def await_settings(self) -> None:
        """Wait until the scheduling settings are known; nothing is admitted before.

        The settings include tenants, quotas and caps.

        Raises:
            AdmissionError: If no ingress sends them in time.
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
            ConfigError: If a setting is not allowed; the current settings stay.
        """
        is_changed = self.driver.configure(settings)
        if is_changed:
            self.gate.settings_changed()
        if is_changed or not self.has_settings.is_set():
            self.checkpointer.save_everything()
        self.has_settings.set()

    def admit(self, item: Submission, quiet: Outbox | None = None) -> None:
        """Pass a submission to the core, once quotas and the store allow it.

        Args:
            item: The submission.
            quiet: As for `CoreDriver.apply`.
        """
        if self.gate.has_quotas:
            self.gate.admit_submission(item, quiet)
        elif self._is_strict:
            self.admission.admit_submission(item, quiet)
        else:
            self.driver.apply(item, quiet)

    def check_lead(self) -> None:
        """Raise `SchedulerSuperseded` if this scheduler no longer leads.

        Raises:
            SchedulerSuperseded: If another scheduler leads.
        """
        if self.lost is not None:
            raise SchedulerSuperseded(self.lost)

    async def collect_messages(self, outbox: Outbox, ack: int) -> tuple[Any, ...]:
        """Return the unread messages of an outbox, once the epoch is confirmed.

        Raises:
            SchedulerSuperseded: If the lead was lost.
        """
        messages = tuple(outbox.unread_after(ack))
        if messages:
            await self.checkpointer.confirm()
        self.check_lead()
        return messages

    def note_epoch(self, epoch: Epoch) -> None:
        """Compare a caller's epoch with this scheduler's; check a higher epoch against the store.

        If the store does not have the higher epoch either, it was emptied or restored from a
        backup. Processes with that epoch ignore this scheduler, so a new term begins above it.
        """
        if epoch > max(self.epoch, self._higher_epoch):
            self._higher_epoch = epoch
            self.checkpointer.save_soon()

    def note_prefill(self, replica_id: ReplicaId, measured: MeasuredPrefill) -> None:
        """Use the prefill cost that a replica has measured, if it is the first of this release.

        A new replica with a very different measurement is logged: it may have another GPU, or the
        first one was disturbed.
        """
        state = self.driver.core.state
        known = state.measured_prefill
        if measured.release == __version__ and is_first_of_release(known, measured):
            self.driver.apply(ev.PrefillMeasured(*measured))
            self.checkpointer.save_soon()
            log_event(
                logger,
                logging.INFO,
                "prefill.measured",
                replica_id=replica_id,
                per_token=measured.cost.per_token,
                per_pair=measured.cost.per_pair,
            )
        elif known is not None and replica_id not in state.replicas:
            used, other = known.cost.per_token, measured.cost.per_token
            if max(used, other) > _ALIKE * min(used, other):
                log_event(
                    logger,
                    logging.WARNING,
                    "prefill.measured_differently",
                    replica_id=replica_id,
                    per_token=other,
                    used_per_token=used,
                )

    def standing(self) -> dict[str, Any]:
        """Return whether this scheduler serves calls, its present trouble if any, and its epoch."""
        return {
            "ready": self.serving.is_set() and self.lost is None,
            "degraded": self.lost or self.checkpointer.trouble,
            "epoch": self.epoch,
        }

    def informed_core(self) -> SchedulerCore:
        """Update why applications wait for the store or a quota, and return the scheduler core."""
        core = self.driver.core
        core.outlooks.held_by = held_by(self.admission.unstored(), self.gate.node_in_the_way)
        return core

    # --- private helpers

    async def _step_down_when_idle(self) -> None:
        """End a scheduler that has not been called for too long."""
        limit_s, idle_s = self.config.scheduler.abandoned_s, 0.0
        while idle_s < limit_s:
            await asyncio.sleep(limit_s - idle_s)
            idle_s = self.clock.now() - self._called_at
        self._step_down(f"no call for {limit_s:g} s")

    def _take_checkpoint(self) -> Checkpoint | None:
        if self.lost is not None:
            return None
        higher = self._higher_epoch
        unstored = self.admission.unstored() if self._is_strict else ()
        ended = self.gate.book.unstored.uses() if self.gate.has_quotas else ()

        def on_saved() -> None:
            if unstored:
                self.admission.note_stored(unstored)
            self.driver.apply(ev.StateStored())
            if ended:
                self.gate.book.note_stored(ended)
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

        # Without settings, none are stored, or the next leader would use defaults.
        settings = self.driver.settings.model_dump() if self.has_settings.is_set() else None
        return Checkpoint(self.driver.core, self.epoch, settings, on_saved)

    def _save_soon(self) -> None:
        """Request a save, unless the store is unreachable and therefore retried anyway."""
        if self.checkpointer.trouble is None:
            self.checkpointer.save_soon()

    def _lose_lead(self, error: StaleEpoch) -> None:
        """Stop serving after another scheduler has become leader; callers receive the reason."""
        self.has_successor = error.has_successor
        self.lost = f"this scheduler has lost the lead: {error}; {_ADVICE}"
        log_event(logger, logging.WARNING, "scheduler.superseded", reason=str(error))
        self.admission.close()
        self.gate.close()
        self.driver.close()
        self.driver.outboxes.notify_all()
        if self._exporter is not None:
            self._exporter.end()
        if self.has_successor:
            self._step_down("another process of this actor leads")

    def _set_gauges(self) -> None:
        """Set the gauges, to 0 if another scheduler leads and exports them."""
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
        self._metrics.tenants.measure_quotas(
            gate.exchange.known.nodes, core.state.tenants, gate.refusals
        )
        self._metrics.tenants.measure_exchanges(gate.exchange.meter, gate.waiting_claims)
        if not core.recovery.holding:
            size = self.fleet.decision(core, self.driver.now())
            self._metrics.measure_size(size, self.fleet.target_drain_s)


def held_by(
    unstored: Iterable[ApplicationId],
    node_in_the_way: Callable[[ApplicationId], ClientId | None],
) -> HeldBy:
    """Return a function that tells why an application waits outside the core.

    Args:
        unstored: Applications that wait to be stored.
        node_in_the_way: Returns the node whose quota holds an application back; None if there is
            none.
    """
    names, store = frozenset(unstored), Held(Reason.STORE)

    def reason_to_hold(application: Application) -> Held | None:
        if application.application_id in names:
            return store
        node = node_in_the_way(application.application_id)
        return None if node is None else Held(Reason.QUOTA, node)

    return reason_to_hold
