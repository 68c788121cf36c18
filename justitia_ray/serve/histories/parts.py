"""The real parts, with a witness beside each; a test puts a broken part in the place of one."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.state import State
from justitia_ray.protocol.messages import ReplicaMessage
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.engine import Progress
from justitia_ray.serve.fake_engine import FakeEngine
from justitia_ray.serve.histories.redis_memory import RedisMemory
from justitia_ray.serve.histories.witness import Witness
from justitia_ray.serve.lease_desk import HeldLease, LeaseDesk
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.puller import Puller
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.units import Epoch, LeaseId

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


class WatchedService(SchedulerService):
    """Shows the witness every state it is in."""

    witness: Witness
    redis: RedisMemory

    def watch(self, witness: Witness, redis: RedisMemory) -> None:
        """Begin to show."""
        self.witness, self.redis, self._applied = witness, redis, 0
        mail = self._mail = self.make_mail_room()
        mail.witness, mail.service = witness, self

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
        return self._mail

    @property
    def office(self) -> Epoch:
        """The epoch; 0 before it is known."""
        return self._epoch

    @property
    def in_office(self) -> bool:
        """Whether it takes calls."""
        return self._in_office.is_set()

    async def start(self, above: Epoch = 0) -> None:
        """Take office; what is put back is what was stored."""
        await super().start(above)
        self.witness.took_office(self._epoch, self._core, self.redis.tags)

    def _apply(self, event: ev.Event, quiet: Line | None = None) -> None:
        super()._apply(event, quiet)
        self._applied += 1
        if not _says_nothing(event) or self._applied % _LOOK_AT_ONE_IN == 0:
            self.witness.handled(self._core)


class WatchedDesk(LeaseDesk):
    """Tells the witness what is armed and what runs."""

    witness: Witness
    puller: Puller

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
