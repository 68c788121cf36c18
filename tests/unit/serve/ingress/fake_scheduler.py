"""A scheduler, as an ingress sees it over a connection, that a test plays."""

import asyncio
from typing import Any

from justitia_ray.core.actions import Refusal
from justitia_ray.core.events import ApplicationArrived, NackReason, Resubmitted
from justitia_ray.core.limits import LimitStanding
from justitia_ray.protocol.mailbox import Mailbox
from justitia_ray.protocol.messages import IngressMail, IngressMessage, Opened, Submission


class FakeScheduler:
    """Takes calls in its epoch, and says what the test posts."""

    def __init__(self) -> None:
        self.epoch = 1
        self.batches: list[tuple[int, tuple[Submission, ...]]] = []
        """(epoch, items) of each submission that was taken, without `Resubmitted`."""
        self.has_all = False
        """Whether the ingress has said, after all else, that it has submitted everything again."""
        self.refused: list[tuple[str, str, NackReason]] = []
        self.still_waits = True
        self.refusal: Refusal | None = None
        """Why no application is opened."""
        self.standings: tuple[LimitStanding, ...] = ()
        """Limits that the answer to an opening tells of."""
        self.ingress_ids: list[str] = []
        """Under which the ingress has called, each once."""
        self._forgotten: set[str] = set()
        self.failures: dict[str, list[Exception]] = {}
        """Raised by the next calls of a method."""
        self.failed = 0
        self._mailbox: Mailbox[IngressMessage] = Mailbox()
        self._bell = asyncio.Event()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return its answer to a call."""
        self._maybe_fail(method)
        return await getattr(self, f"_{method}")(*arguments)

    @property
    def items(self) -> list[Submission]:
        """Everything that was taken, in order."""
        return [item for _, items in self.batches for item in items]

    def post(self, *messages: IngressMessage) -> None:
        """Tell the ingress."""
        for message in messages:
            self._mailbox.put(message)
        self._ring()

    def replace(self) -> None:
        """Let another scheduler take office, which knows nothing."""
        self.epoch += 1
        self.has_all = False
        self.batches.clear()
        self._mailbox = Mailbox()
        self._ring()

    def forget(self) -> None:
        """Give up the ingress for silent, with all that it has outstanding."""
        self._forgotten.add(self.ingress_ids[-1])
        self.batches.clear()
        self._mailbox = Mailbox()
        self._ring()

    def fail_next(self, method: str, *errors: Exception) -> None:
        """Let the next calls of a method fail."""
        self.failures.setdefault(method, []).extend(errors)
        self._ring()

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    def _maybe_fail(self, method: str) -> None:
        if self.failures.get(method):
            self.failed += 1
            raise self.failures[method].pop(0)

    def _mail(self, ingress_id: str, epoch: int, ack: int) -> IngressMail:
        """Return what an ingress is told now."""
        if ingress_id not in self.ingress_ids:
            self.ingress_ids.append(ingress_id)
        if epoch != self.epoch or ingress_id in self._forgotten:
            return IngressMail(self.epoch, forgotten=epoch == self.epoch)
        return IngressMail(self.epoch, tuple(self._mailbox.unread(ack)))

    async def _submit_many(
        self, ingress_id: str, epoch: int, ack: int, items: tuple[Submission, ...]
    ) -> IngressMail:
        mail = self._mail(ingress_id, epoch, ack)
        if mail.epoch == epoch and not mail.forgotten:
            told = tuple(item for item in items if not isinstance(item, Resubmitted))
            self.batches.append((epoch, told))
            self.has_all |= isinstance((items or (None,))[-1], Resubmitted)
        return mail

    async def _poll_grants(self, ingress_id: str, epoch: int, ack: int) -> IngressMail:
        while (mail := self._mail(ingress_id, epoch, ack)) == IngressMail(epoch):
            self._maybe_fail("poll_grants")
            await self._bell.wait()
        self._maybe_fail("poll_grants")
        return mail

    async def _refuse_lease(self, request_id: str, lease_id: str, reason: NackReason) -> bool:
        self.refused.append((request_id, lease_id, reason))
        return self.still_waits

    async def _open_application(self, arrival: ApplicationArrived) -> Opened:
        return Opened(self.epoch, 42.0, self.refusal, standings=self.standings)
