"""Parts of the service with one mistake each, for histories that have to find it."""

from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.protocol.messages import IngressMail, Pull, ReplicaMail
from justitia_ray.serve.conversation import Conversation
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.histories.parts import (
    Parts,
    WatchedDesk,
    WatchedMailRoom,
    WatchedService,
)
from justitia_ray.serve.line import Line
from justitia_ray.serve.puller import Puller
from justitia_ray.units import Epoch


class _HastyLine(Line):
    """Takes what it has handed over for read."""

    def unread(self, ack: int) -> list[tuple[int, Any]]:
        unread = super().unread(ack)
        super().unread(self.last)
        return unread


class _HastyMailRoom(WatchedMailRoom):
    def of_ingress(self, ingress_id: str) -> Line:
        return self._ingresses.setdefault(ingress_id, _HastyLine(self._last_dropped))

    def of_replica(self, replica_id: str) -> Line:
        return self._replicas.setdefault(replica_id, _HastyLine(self._last_dropped))


class _HastyService(WatchedService):
    def make_mail_room(self) -> WatchedMailRoom:
        return _HastyMailRoom()


class _ServiceForAnyEpoch(WatchedService):
    """Takes calls of every epoch for calls of its own."""

    async def submit_many(self, ingress_id: str, epoch: Epoch, ack: int, items: Any) -> IngressMail:
        mail = await super().submit_many(ingress_id, self._epoch, ack, items)
        return replace(mail, epoch=epoch) if epoch else mail

    async def poll_grants(self, ingress_id: str, epoch: Epoch, ack: int) -> IngressMail:
        mail = await super().poll_grants(ingress_id, self._epoch, ack)
        return replace(mail, epoch=epoch) if epoch else mail

    async def pull(self, pull: Pull) -> ReplicaMail:
        mail = await super().pull(replace(pull, epoch=self._epoch))
        return replace(mail, epoch=pull.epoch) if pull.epoch else mail


class _ServiceThatShiftsTags(WatchedService):
    """Puts V back a little behind where it was."""

    async def start(self, above: Epoch = 0) -> None:
        tell, self.witness.took_office = self.witness.took_office, lambda *told: None  # type: ignore[method-assign]
        await super().start(above)
        self.witness.took_office = tell  # type: ignore[method-assign]
        for session in self._core.order.fair_share.sessions().values():
            session.finish += 1.0
        tell(self._epoch, self._core, self.redis.tags)


class _DeskThatTellsOnce(WatchedDesk):
    """Takes an end that was sent for one that has arrived."""

    def report(self) -> tuple[tuple[LeaseProgress, ...], tuple[LeaseFinished, ...]]:
        progress, finished = super().report()
        self._finished.clear()
        return progress, finished


class _DeskThatForgetsWhatEnded(WatchedDesk):
    """Tells a new scheduler of no end that the one before has confirmed."""

    def report_all_again(self) -> None:
        self._remembered.clear()


class _PullerForAnyEpoch(Puller):
    """Listens to every scheduler that answers."""

    def _take_epoch(self, epoch: Epoch) -> None:
        if epoch != self._epoch:
            self._epoch = 0
            super()._take_epoch(epoch)


class _ConversationThatSendsOnce(Conversation):
    """Submits nothing again to a new scheduler."""

    def _submit_everything(self, *, again: bool) -> None:
        self._cursor.reset()


class _ConversationWithoutWhy(Conversation):
    """Does not ask why an inference has ended whose lease it gives back."""

    async def _hear_why(self, asked: Any) -> None:
        return


class _DispatcherThatSendsOnce(Dispatcher):
    def start(self) -> None:
        self._conversation.__class__ = _ConversationThatSendsOnce
        super().start()


class _DispatcherWithoutWhy(Dispatcher):
    def start(self) -> None:
        self._conversation.__class__ = _ConversationWithoutWhy
        super().start()


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken part, and what finds it."""

    parts: Parts
    seed: int
    """Of a history that finds it: the first, or the first of those that can."""
    check: str
    """The rule that it breaks there."""


BROKEN: dict[str, Broken] = {
    "mail that was handed over is dropped": Broken(
        Parts(service=_HastyService), 7, "nothing_is_left_over"
    ),
    "epochs are ignored": Broken(
        Parts(service=_ServiceForAnyEpoch), 1, "every_call_has_its_answer"
    ),
    "tags are put back wrong": Broken(
        Parts(service=_ServiceThatShiftsTags), 9, "tags_survive_restarts"
    ),
    "ends are told once": Broken(
        Parts(desk=_DeskThatTellsOnce), 41, "what_has_ended_does_not_run_again"
    ),
    "a new scheduler is told nothing of what ended": Broken(
        Parts(desk=_DeskThatForgetsWhatEnded), 69, "what_has_ended_does_not_run_again"
    ),
    "a replica listens to lower epochs": Broken(
        Parts(puller=_PullerForAnyEpoch), 22, "known_epochs_only_rise"
    ),
    "nothing is submitted again": Broken(
        Parts(dispatcher=_DispatcherThatSendsOnce), 6, "every_call_has_its_answer"
    ),
    "nobody asks why a lease ended": Broken(
        Parts(dispatcher=_DispatcherWithoutWhy), 65, "what_was_refused_is_not_asked_anew"
    ),
}
