"""The real parts, with a witness beside each; a test puts a broken part in the place of one."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.state import State
from justitia_ray.protocol.messages import ReplicaMessage
from justitia_ray.serve.core_driver import CoreDriver
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.engine import Progress
from justitia_ray.serve.fake_engine import FakeEngine
from justitia_ray.serve.histories.claims import Claims
from justitia_ray.serve.histories.redis_memory import RedisMemory
from justitia_ray.serve.histories.witness import Witness
from justitia_ray.serve.lease_desk import HeldLease, LeaseDesk
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.puller import Puller
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId, Epoch, LeaseId, Seconds

_LOOK_AT_ONE_IN = 8
"""Of signs of life, which change nothing as a rule; after all else the state is looked at."""


class WatchedMailRoom(MailRoom):
    """Tells the witness what was decided."""

    witness: Witness
    service: "WatchedService"

    def deliver(self, actions: Iterable[Action], state: State, quiet: Line | None) -> None:
        """Show the witness, then deliver."""
        decided = list(actions)
        if decided:
            self.witness.decided(self.service.office, self.service.core, decided)
        super().deliver(decided, state, quiet)


class WatchedDriver(CoreDriver):
    """Shows the witness every state of the core."""

    witness: Witness
    claims: Claims
    epoch: Epoch = 0
    began_at: Seconds = 0.0
    _applied = 0

    def begin(self, stored: StoredState, epoch: Epoch) -> None:
        """Go on with what the last scheduler left."""
        super().begin(stored, epoch)
        self.claims = Claims(self.witness.finished, self._section.ingress_timeout_s)
        self.epoch, self.began_at = epoch, self.witness.now

    def apply(
        self,
        event: ev.Event,
        quiet: Line | None = None,
        *,
        unstored: ApplicationId | None = None,
    ) -> None:
        """Handle an event, then show what the core is like."""
        if isinstance(event, ev.InferenceSubmitted):
            self.claims.note(event)
            self.witness.submitted(self.epoch, event.request_id)
        super().apply(event, quiet, unstored=unstored)
        if self.claims.pending:
            now, lines = self.witness.now, self.mail.lines_to_replicas()
            for wrong in self.claims.run_again(self.core, lines, now - self.began_at, now):
                self.witness.fail("what_has_ended_does_not_run_again", wrong)
        self._applied += 1
        if not _says_nothing(event) or self._applied % _LOOK_AT_ONE_IN == 0:
            self.witness.handled(self.core)


class WatchedService(SchedulerService):
    """Shows the witness what it puts back and all that it does."""

    witness: Witness
    redis: RedisMemory

    def watch(self, config: AppConfig, witness: Witness, redis: RedisMemory) -> None:
        """Begin to show."""
        self.witness, self.redis = witness, redis
        mail = self.make_mail_room()
        mail.witness, mail.service = witness, self
        driver = WatchedDriver(config.scheduler, self._office.clock, mail, config.model.name)
        self._office.driver = driver
        driver.witness = witness

    async def version(self) -> str:
        """Say, as the actor does, that it is there."""
        return __version__

    def make_mail_room(self) -> WatchedMailRoom:
        """Return the mail room of this scheduler."""
        return WatchedMailRoom()

    @property
    def core(self) -> Any:
        """The core; another one once this scheduler is in office."""
        return self._core

    @property
    def mail(self) -> MailRoom:
        """The lines to ingresses and replicas."""
        return self._driver.mail

    @property
    def office(self) -> Epoch:
        """The epoch; 0 before it is known."""
        return self._epoch

    @property
    def in_office(self) -> bool:
        """Whether it takes calls."""
        return self._tenure.in_office.is_set()

    async def start(self, above: Epoch = 0) -> None:
        """Take office; what is put back is what was stored."""
        await super().start(above)
        self.witness.took_office(self._epoch, self._core, self.redis.tags)


class WatchedDesk(LeaseDesk):
    """Tells the witness what is armed and what runs."""

    witness: Witness
    puller: Puller
    _reports = 0

    def report(self) -> tuple[tuple[ev.LeaseProgress, ...], tuple[ev.LeaseFinished, ...]]:
        """Count, as the puller counts its pulls."""
        self._reports += 1
        return super().report()

    def read(self, messages: Iterable[ReplicaMessage]) -> None:
        """Show the witness, then take in."""
        new = list(messages)
        for message in new:
            if isinstance(message, Grant):
                self.witness.armed(self._replica_id, message.lease_id, self.puller.epoch)
        super().read(new)

    @asynccontextmanager
    async def hold(self, lease_id: LeaseId) -> AsyncGenerator[HeldLease]:
        """Run a payload, and say so."""
        async with super().hold(lease_id) as lease:
            self.witness.runs(self._replica_id, lease_id, self._engine)
            yield lease

    def _finish(self, lease: HeldLease) -> None:
        super()._finish(lease)
        if not lease.aborted and lease.outcome is Outcome.FINISHED:
            self.witness.made(self._replica_id, lease.lease_id, self._reports + 1)

    @property
    def running(self) -> list[LeaseId]:
        """The leases whose payloads run."""
        return [lease_id for lease_id, lease in self.leases().items() if lease.task is not None]


class WatchedEngine(FakeEngine):
    """Tells the witness what was made under each lease."""

    witness: Witness
    replica_id: str

    def release(self, lease_id: LeaseId) -> Progress:
        """Forget a lease, and say what it has used."""
        used = super().release(lease_id)
        self.witness.ran(self.replica_id, lease_id, used)
        return used


def _says_nothing(event: ev.Event) -> bool:
    """Return whether an event is a sign of life only."""
    if isinstance(event, ev.ReplicaPulled):
        return not event.progress and not event.finished
    return isinstance(event, ev.IngressHeard | ev.PullAnswered)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a history is made of."""

    service: type[WatchedService] = WatchedService
    desk: type[WatchedDesk] = WatchedDesk
    puller: type[Puller] = Puller
    dispatcher: type[Dispatcher] = Dispatcher
