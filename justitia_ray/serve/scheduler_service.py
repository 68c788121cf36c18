"""One SchedulerCore in office: carries out its actions, keeps its deadlines, saves its state.

Plain asyncio, without Ray: `scheduler_actor` puts it behind an actor. The core is synchronous and
awaits nothing, so every event is handled whole, and there are no locks.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig, SchedulingConfig, parse_scheduling_config
from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication
from justitia_ray.core.snapshot import restore
from justitia_ray.observability.log_events import application_ended, log_event
from justitia_ray.protocol.messages import (
    NOT_TAKEN,
    IngressMail,
    Opened,
    Pull,
    ReplicaMail,
    Submission,
)
from justitia_ray.serve.kv_meter import KvMeter
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.scheduler_views import application_view, core_view
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import SchedulerStore, StaleEpoch
from justitia_ray.units import (
    ApplicationId,
    Epoch,
    IngressId,
    ReplicaId,
    RequestId,
    Seconds,
)

logger = logging.getLogger(__name__)

LONG_POLL_S = 20.0


class SchedulerService:
    """Takes calls of ingresses and replicas for one model."""

    def __init__(
        self,
        config: AppConfig,
        store: SchedulerStore,
        stand_down: Callable[[str], None],
        revive_store: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            config: The application's arguments.
            store: Redis, or a fake of it in tests.
            stand_down: Called with the reason when this scheduler must not go on.
            revive_store: Called in a thread when the store fails, to start it again if it is ours.
        """
        self._config = config
        self._stand_down = stand_down
        self._keeper = StateKeeper(store, revive_store)
        self._settings = SchedulingConfig()
        self._core = SchedulerCore()
        self._epoch: Epoch = 0
        self._in_office = asyncio.Event()
        self._mail = MailRoom()
        self._kv_meter = KvMeter()
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._clock = SteadyClock()
        self._called_at = time.monotonic()
        self._backlog: tuple[Seconds, int] = (0.0, 0)

    # --- office

    async def start(self) -> None:
        """Take office: load what the last scheduler left, then serve calls and save.

        Waits for Redis as long as it takes: without it the epoch is not known.
        """
        self._epoch, stored = await self._keeper.take_office()
        if stored.settings is not None:
            self._settings = parse_scheduling_config(stored.settings)
        section = self._config.scheduler
        self._core = SchedulerCore(
            self._settings.policy,
            self._settings.policy_options,
            self._settings.admission,
            Timeouts(
                lease_s=section.lease_timeout_s,
                replica_s=section.replica_timeout_s,
                ingress_s=section.ingress_timeout_s,
                application_s=section.application_idle_s,
                recovery_s=section.recovery_s,
            ),
            lease_prefix=f"{self._epoch}-",
        )
        if stored.clock is not None:
            self._core.recover(stored.replicas, self._now())
            restore(self._core, stored.clock, stored.applications)
        self._in_office.set()
        self._arm_timer()
        self._tasks = [
            asyncio.create_task(self._clock.keep_beating()),
            asyncio.create_task(self._keep_saving()),
            asyncio.create_task(self._notice_abandonment()),
        ]
        log_event(
            logger,
            logging.INFO,
            "scheduler.in_office",
            epoch=self._epoch,
            applications=len(stored.applications),
            awaited_replicas=len(stored.replicas),
            settings=self._settings.model_dump(),
        )

    async def stop(self) -> None:
        """Save a last time and serve no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._in_office.is_set():
            await self._save()
        await self._keeper.aclose()

    # --- calls of ingresses

    async def open_application(self, arrival: ev.ApplicationArrived) -> Opened:
        """Tag an application; opening one that is open returns its tag."""
        await self._office()
        self._apply(arrival)
        return Opened(self._epoch, self._core.tag(arrival.application_id))

    async def close_application(self, application_id: ApplicationId) -> bool:
        """Take no more inferences of it; return whether it was open."""
        await self._office()
        known = application_id in self._core.state.applications
        self._apply(ev.ApplicationClosed(application_id))
        return known

    async def cancel_application(self, application_id: ApplicationId) -> bool:
        """End it with all that waits or runs of it; return whether it was open."""
        await self._office()
        known = application_id in self._core.state.applications
        self._apply(ev.ApplicationCancelled(application_id))
        return known

    async def application(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return what is known of a live application, or None."""
        await self._office()
        return application_view(self._core, application_id, self._now())

    async def submit_many(
        self,
        ingress_id: IngressId,
        epoch: Epoch,
        ack: int,
        items: tuple[Submission, ...],
    ) -> IngressMail:
        """Take a batch in its order, and return the grants that can be made at once."""
        await self._office()
        if epoch != self._epoch:
            return IngressMail(self._epoch)
        if self._mail.is_forgotten(ingress_id):
            return IngressMail(self._epoch, forgotten=True)
        line = self._mail.of_ingress(ingress_id)
        for item in items:
            self._apply(item, quiet=line)
        return IngressMail(self._epoch, tuple(line.unread(ack)))

    async def poll_grants(self, ingress_id: IngressId, epoch: Epoch, ack: int) -> IngressMail:
        """Return what the ingress has not read; wait for it if there is nothing."""
        await self._office()
        if epoch != self._epoch:
            return IngressMail(self._epoch)
        if not self._mail.is_forgotten(ingress_id):
            self._apply(ev.IngressHeard(ingress_id))
            line = self._mail.of_ingress(ingress_id)
            line.unread(ack)
            if not await line.wait(LONG_POLL_S):
                return IngressMail(self._epoch)
            if not self._mail.is_forgotten(ingress_id):
                return IngressMail(self._epoch, tuple(line.unread(ack)))
        return IngressMail(self._epoch, forgotten=True)

    async def refuse_lease(
        self, request_id: RequestId, lease_id: str, replica_id: ReplicaId, replica_gone: bool
    ) -> bool:
        """Take back a lease that the ingress could not use; return whether its inference waits on.

        False says that the inference has ended here, so that the ingress has to submit it anew.
        """
        await self._office()
        self._apply(ev.LeaseRefused(lease_id, replica_id, replica_gone))
        return request_id in self._core.state.inferences

    async def configure(self, settings: dict[str, Any]) -> Epoch:
        """Take other settings from now on; the queue stays.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay.
        """
        await self._office()
        parsed = parse_scheduling_config(settings)
        if parsed != self._settings:
            options = tuple(parsed.policy_options.items())
            self._apply(ev.PolicyChanged(parsed.policy, options, parsed.admission))
            self._settings = parsed
            self._keeper.save_everything()
            log_event(logger, logging.INFO, "scheduler.configured", settings=parsed.model_dump())
        return self._epoch

    # --- calls of replicas

    async def pull(self, pull: Pull) -> ReplicaMail:
        """Book what a replica reports, and lease it what comes first and fits."""
        await self._office()
        if pull.epoch != self._epoch:
            return ReplicaMail(self._epoch)
        line = self._mail.of_replica(pull.replica_id)
        if pull.number <= line.number:
            return ReplicaMail(NOT_TAKEN)
        line.number = pull.number
        news = tuple(end for end in pull.finished if end.lease_id not in line.ended)
        line.ended = frozenset(end.lease_id for end in pull.finished)
        line.unread(pull.ack)
        self._kv_meter.report(
            pull.replica_id,
            self._now(),
            pull.capacity.kv_tokens,
            pull.capacity.kv_tokens - pull.free_kv_tokens,
            pull.preemptions,
        )
        self._apply(
            ev.ReplicaPulled(
                pull.replica_id,
                pull.capacity,
                pull.free_kv_tokens,
                pull.progress,
                news,
                pull.draining,
            )
        )
        if not await line.wait(pull.wait_s):
            return ReplicaMail(self._epoch)
        self._apply(ev.PullAnswered(pull.replica_id))
        replica = self._core.state.replicas.get(pull.replica_id)
        return ReplicaMail(
            self._epoch,
            tuple(line.unread(pull.ack)),
            replica is not None and replica.draining,
            self._backlog_kv_tokens(),
        )

    async def leave(self, replica_id: ReplicaId) -> None:
        """Take leave of a replica that shuts down; what it held waits again."""
        await self._office()
        self._apply(ev.ReplicaLost(replica_id))

    # --- for people

    async def status(self) -> dict[str, Any]:
        """Return the state of affairs: never blocks, also before this scheduler is in office."""
        return {
            "ready": self._in_office.is_set(),
            "degraded": self._keeper.trouble,
            "epoch": self._epoch,
            "saves": self._keeper.saves,
            "settings": self._settings.model_dump(),
            **core_view(self._core, self._now(), self._backlog_kv_tokens()),
            "kv": self._kv_meter.totals(),
        }

    # --- inside

    async def _office(self) -> None:
        self._called_at = time.monotonic()
        await self._in_office.wait()

    def _now(self) -> Seconds:
        return self._clock.now()

    def _apply(self, event: ev.Event, quiet: Line | None = None) -> None:
        """Handle an event and carry out what follows; `quiet` is read by the caller itself."""
        actions = self._core.handle(event, self._now())
        for action in actions:
            if isinstance(action, EndApplication):
                application_ended(logger, action)
        self._mail.deliver(actions, self._core.state, quiet)
        self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None:
            delay = max(0.0, deadline - self._now())
            self._timer = asyncio.get_running_loop().call_later(
                delay, self._apply, ev.DeadlinePassed()
            )

    def _backlog_kv_tokens(self) -> int:
        """Return the backlog, counted at most once a second: it walks over all that waits."""
        counted_at, backlog = self._backlog
        now = self._now()
        if now - counted_at >= 1.0:
            backlog = self._core.backlog_kv_tokens()
            self._backlog = (now, backlog)
        return backlog

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self._config.store.save_interval_s)
            await self._save()

    async def _save(self) -> None:
        try:
            await self._keeper.save(self._core, self._epoch, self._settings.model_dump())
        except StaleEpoch as error:
            self._stand_down(str(error))

    async def _notice_abandonment(self) -> None:
        limit_s = self._config.scheduler.abandoned_s
        idle_s = 0.0
        while idle_s < limit_s:
            await asyncio.sleep(limit_s - idle_s)
            idle_s = time.monotonic() - self._called_at
        self._stand_down(f"nobody has called for {limit_s:g} s")
