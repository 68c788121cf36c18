"""Scheduler stand-in for an ingress: the test posts its messages."""

import asyncio
from typing import Any

from justitia_ray.core.actions import Refusal
from justitia_ray.core.events import ApplicationArrived, NackReason, Resubmitted
from justitia_ray.core.limits import LimitStanding
from justitia_ray.protocol.mailbox import Mailbox
from justitia_ray.protocol.messages import IngressMail, IngressMessage, Opened, Submission


class FakeScheduler:
    """Fake scheduler that accepts calls of its own epoch and delivers the test's messages."""

    def __init__(self) -> None:
        self.epoch = 1
        self.batches: list[tuple[int, tuple[Submission, ...]]] = []
        """(epoch, items) of each accepted submission, without `Resubmitted`."""
        self.has_all = False
        """Whether the ingress has reported the end of its resubmission."""
        self.refused: list[tuple[str, str, NackReason]] = []
        self.still_waits = True
        self.refusal: Refusal | None = None
        """Refusal of every opening; None if openings are accepted."""
        self.standings: tuple[LimitStanding, ...] = ()
        """Quota limits of the tenant that the answer to an opening carries."""
        self.ingress_ids: list[str] = []
        """Ids under which the ingress has called, without duplicates."""
        self._forgotten: set[str] = set()
        self.failures: dict[str, list[Exception]] = {}
        """Errors that the next calls raise, by method."""
        self.failed = 0
        self._mailbox: Mailbox[IngressMessage] = Mailbox()
        self._bell = asyncio.Event()

    async def call(self, method: str, *arguments: Any) -> Any:
        self._maybe_fail(method)
        return await getattr(self, f"_{method}")(*arguments)

    @property
    def items(self) -> list[Submission]:
        return [item for _, items in self.batches for item in items]

    def post_messages(self, *messages: IngressMessage) -> None:
        for message in messages:
            self._mailbox.put(message)
        self._wake_polls()

    def replace_scheduler(self) -> None:
        """Start a new scheduler without state and with the next epoch."""
        self.epoch += 1
        self.has_all = False
        self.batches.clear()
        self._mailbox = Mailbox()
        self._wake_polls()

    def forget_ingress(self) -> None:
        """Forget the ingress and its inferences, as a scheduler does after a long silence."""
        self._forgotten.add(self.ingress_ids[-1])
        self.batches.clear()
        self._mailbox = Mailbox()
        self._wake_polls()

    def fail_next(self, method: str, *errors: Exception) -> None:
        self.failures.setdefault(method, []).extend(errors)
        self._wake_polls()

    def _wake_polls(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    def _maybe_fail(self, method: str) -> None:
        if self.failures.get(method):
            self.failed += 1
            raise self.failures[method].pop(0)

    def _mail_for(self, ingress_id: str, epoch: int, ack: int) -> IngressMail:
        if ingress_id not in self.ingress_ids:
            self.ingress_ids.append(ingress_id)
        if epoch != self.epoch or ingress_id in self._forgotten:
            return IngressMail(self.epoch, forgotten=epoch == self.epoch)
        return IngressMail(self.epoch, tuple(self._mailbox.unread_after(ack)))

    async def _submit_many(
        self, ingress_id: str, epoch: int, ack: int, items: tuple[Submission, ...]
    ) -> IngressMail:
        mail = self._mail_for(ingress_id, epoch, ack)
        if mail.epoch == epoch and not mail.forgotten:
            told = tuple(item for item in items if not isinstance(item, Resubmitted))
            self.batches.append((epoch, told))
            self.has_all |= isinstance((items or (None,))[-1], Resubmitted)
        return mail

    async def _poll_grants(self, ingress_id: str, epoch: int, ack: int) -> IngressMail:
        while (mail := self._mail_for(ingress_id, epoch, ack)) == IngressMail(epoch):
            self._maybe_fail("poll_grants")
            await self._bell.wait()
        self._maybe_fail("poll_grants")
        return mail

    async def _refuse_lease(self, request_id: str, lease_id: str, reason: NackReason) -> bool:
        self.refused.append((request_id, lease_id, reason))
        return self.still_waits

    async def _open_application(self, arrival: ApplicationArrived) -> Opened:
        return Opened(self.epoch, 42.0, self.refusal, standings=self.standings)
