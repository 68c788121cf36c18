"""One SchedulerCore in office: takes the calls of ingresses and replicas, and answers them.

Plain asyncio, without Ray: `scheduler_actor` puts it behind an actor. Nothing is awaited while an
event is handled, so there are no locks.
"""

from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal
from justitia_ray.observability.measures import Backend
from justitia_ray.protocol.messages import (
    NOT_TAKEN,
    IngressMail,
    Opened,
    Pull,
    ReplicaMail,
    Submission,
)
from justitia_ray.serve.core_driver import CoreDriver
from justitia_ray.serve.examination import Examiner
from justitia_ray.serve.kv_meter import KvMeter
from justitia_ray.serve.order_views import first_applications, head_view
from justitia_ray.serve.scheduler_office import SchedulerOffice
from justitia_ray.serve.scheduler_views import application_view, core_view, store_view
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.serve.tenure import Tenure
from justitia_ray.store.scheduler_store import DurableState
from justitia_ray.units import ApplicationId, Epoch, IngressId, ReplicaId, RequestId

LONG_POLL_S = 20.0


class SchedulerService:
    """Takes calls of ingresses and replicas for one model."""

    def __init__(
        self,
        config: AppConfig,
        store: DurableState,
        stand_down: Callable[[str], None],
        revive_store: Callable[[], None] | None = None,
        clock: SteadyClock | None = None,
        begin_again: Callable[[Epoch], None] = lambda above: None,
        backend: Backend | None = None,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            config: The application's arguments.
            store: Redis, or a fake of it in tests.
            stand_down: Called with the reason when this scheduler may end: nobody needs it.
            revive_store: Called in a thread when the store fails, to start it again if it is ours.
            clock: Where the time comes from; this machine's if None.
            begin_again: Called with an epoch above which a scheduler has to take office in place
                of this one; see `Tenure`.
            backend: Where metrics go; None: nowhere.
        """
        self._office = SchedulerOffice(
            config,
            store,
            stand_down,
            revive_store,
            SteadyClock() if clock is None else clock,
            begin_again,
            backend,
        )
        self._kv_meter = KvMeter()
        self._examiner = Examiner(config, LONG_POLL_S)
        self._config = config

    # --- office

    @property
    def _driver(self) -> CoreDriver:
        return self._office.driver

    @property
    def _tenure(self) -> Tenure:
        return self._office.tenure

    @property
    def _epoch(self) -> Epoch:
        return self._tenure.epoch

    @property
    def _core(self) -> SchedulerCore:
        return self._driver.core

    @property
    def is_succeeded(self) -> bool:
        """Whether another process of the same actor has taken office."""
        return self._tenure.succeeded

    async def start(self, above: Epoch = 0) -> None:
        """Take office: load what the last scheduler left, then serve calls and save.

        Waits for Redis as long as it takes: without it the epoch is not known.

        Args:
            above: The epoch is to be above this one, too.
        """
        await self._office.open(above)

    async def stop(self) -> None:
        """Save a last time and serve no more."""
        await self._office.close()

    # --- calls of ingresses

    async def open_application(self, arrival: ev.ApplicationArrived) -> Opened:
        """Tag an application; opening one that is open returns its tag."""
        await self._office.enter()
        self._office.take(arrival)
        name = arrival.application_id
        if name not in self._core.state.applications:
            return Opened(self._epoch, 0.0, Refusal.TOO_MANY_APPLICATIONS)
        tag = self._core.tag(name)
        is_stored = await self._office.intake.is_stored(name)
        await self._tenure.confirmed()
        self._tenure.check()
        return Opened(self._epoch, tag, None if is_stored else Refusal.NOT_STORED)

    async def close_application(self, application_id: ApplicationId) -> bool:
        """Take no more inferences of it; return whether it was open."""
        await self._office.enter()
        known = application_id in self._core.state.applications
        self._office.take(ev.ApplicationClosed(application_id))
        return known

    async def cancel_application(self, application_id: ApplicationId) -> bool:
        """End it with all that waits or runs of it; return whether it was open."""
        await self._office.enter()
        known = application_id in self._core.state.applications
        self._driver.apply(ev.ApplicationCancelled(application_id))
        self._office.intake.cancel(application_id)
        return known

    async def application(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return what is known of a live application, or None."""
        await self._office.enter()
        await self._office.intake.is_stored(application_id)
        return application_view(self._core, application_id, self._driver.now())

    async def submit_many(
        self, ingress_id: IngressId, epoch: Epoch, ack: int, items: tuple[Submission, ...]
    ) -> IngressMail:
        """Take a batch in its order, and return the grants that can be made at once."""
        await self._office.enter()
        if epoch != self._epoch:
            return self._other_epoch(epoch)
        if self._driver.mail.is_forgotten(ingress_id):
            return IngressMail(self._epoch, forgotten=True)
        line = self._driver.mail.of_ingress(ingress_id)
        for item in items:
            self._office.take(item, quiet=line)
        # After them: of a grant that goes with this answer its ingress was heard no earlier.
        self._driver.apply(ev.IngressHeard(ingress_id), line)
        return IngressMail(self._epoch, await self._office.handed_out(line, ack))

    async def poll_grants(self, ingress_id: IngressId, epoch: Epoch, ack: int) -> IngressMail:
        """Return what the ingress has not read; wait for it if there is nothing."""
        await self._office.enter()
        if epoch != self._epoch:
            return self._other_epoch(epoch)
        if not self._driver.mail.is_forgotten(ingress_id):
            self._driver.apply(ev.IngressHeard(ingress_id))
            line = self._driver.mail.of_ingress(ingress_id)
            line.unread(ack)
            if not await line.wait(LONG_POLL_S):
                return IngressMail(self._epoch)
            if not self._driver.mail.is_forgotten(ingress_id):
                return IngressMail(self._epoch, await self._office.handed_out(line, ack))
        self._tenure.check()
        return IngressMail(self._epoch, forgotten=True)

    async def refuse_lease(
        self, request_id: RequestId, lease_id: str, replica_id: ReplicaId, replica_gone: bool
    ) -> bool:
        """Take back a lease that the ingress could not use; return whether its inference waits on.

        False says that the inference has ended here, so that the ingress has to submit it anew.
        """
        await self._office.enter()
        self._driver.apply(ev.LeaseRefused(lease_id, replica_id, replica_gone))
        return request_id in self._core.state.inferences

    async def configure(self, settings: dict[str, Any]) -> Epoch:
        """Take other settings from now on; the queue stays.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay.
        """
        await self._office.enter()
        if self._driver.configure(settings):
            self._office.keeper.save_everything()
        return self._epoch

    # --- calls of replicas

    async def pull(self, pull: Pull) -> ReplicaMail:
        """Book what a replica reports, and lease it what comes first and fits."""
        await self._office.enter()
        if pull.epoch != self._epoch:
            self._tenure.heard_of(pull.epoch)
            return ReplicaMail(self._epoch)
        line = self._driver.mail.of_replica(pull.replica_id)
        news = line.take(pull)
        if news is None:
            return ReplicaMail(NOT_TAKEN)
        self._kv_meter.report(pull, self._driver.now())
        self._driver.apply(news)
        if not await line.wait(pull.wait_s):
            return ReplicaMail(self._epoch)
        self._driver.apply(ev.PullAnswered(pull.replica_id))
        replica = self._core.state.replicas.get(pull.replica_id)
        return ReplicaMail(
            self._epoch,
            await self._office.handed_out(line, pull.ack),
            replica is not None and replica.draining,
            self._core.backlog_kv_tokens(),
        )

    async def leave(self, replica_id: ReplicaId) -> None:
        """Take leave of a replica that shuts down; what it held waits again."""
        await self._office.enter()
        self._driver.apply(ev.ReplicaLost(replica_id))

    # --- for people

    async def status(self, applications: int = 0) -> dict[str, Any]:
        """Return the state of affairs: never blocks, also before this scheduler is in office.

        Args:
            applications: How many of the first live ones to tell of.
        """
        now = self._driver.now()
        return {
            **self._tenure.standing(),
            "saves": self._office.keeper.saves,
            "settings": self._driver.settings.model_dump(),
            **core_view(self._core, now, self._kv_meter.used_tokens),
            "head": head_view(self._core, now),
            "first_applications": first_applications(self._core, now, applications),
            "store": store_view(self._config, self._office.keeper, self._core),
            "kv": self._kv_meter.totals(),
            "decisions": self._driver.decisions.totals(),
        }

    async def examine(self) -> dict[str, Any]:
        """Return a `SchedulerSeen` as a dict: never blocks, and walks over all there is."""
        standing = self._tenure.standing() | {"held_back": len(self._office.intake.unstored())}
        mail, now = self._driver.mail, self._driver.now()
        return self._examiner.look(self._core, mail, self._office.keeper, now, **standing)

    # --- inside

    def _other_epoch(self, epoch: Epoch) -> IngressMail:
        self._tenure.heard_of(epoch)
        return IngressMail(self._epoch)
