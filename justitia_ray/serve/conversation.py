"""What an ingress and the scheduler say to each other: batches, the one long-poll, the epochs.

Plain asyncio around a scheduler handle. A scheduler that knows nothing of this ingress is told all
that is outstanding, so nothing is lost with an old one.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ray.exceptions import RayActorError, RayError, RayTaskError

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import IngressMail, IngressMessage, Opened, Submission
from justitia_ray.serve.failed_calls import FailedCalls, pause
from justitia_ray.serve.outstanding import Outstanding
from justitia_ray.units import Epoch, IngressId, RequestId, Seconds


class _Terms(NamedTuple):
    """Under which name, and in which epoch, a call was made."""

    ingress_id: IngressId
    epoch: Epoch


class Conversation:
    """Sends submissions in batches, and hands on what is in the mail, each message once."""

    def __init__(
        self,
        scheduler: Any,
        outstanding: Outstanding,
        hear: Callable[[IngressMessage], None],
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        on_given_up: Callable[[], None],
        submit_interval_s: Seconds,
    ) -> None:
        """Prepare; `start` begins to talk.

        Args:
            scheduler: Handle of the scheduler actor.
            outstanding: What a scheduler that knows nothing is told.
            hear: Takes a message of the scheduler in office.
            on_new_epoch: Run when another scheduler has taken office.
            on_given_up: See `FailedCalls`.
            submit_interval_s: Least time from one batch of submissions to the next.
        """
        self.ingress_id = _new_ingress_id()
        """Changes when the scheduler has given up this ingress for silent."""
        self.epoch: Epoch = 0
        """The scheduler's, as last heard; 0 before."""
        self._scheduler = scheduler
        self._outstanding = outstanding
        self._hear = hear
        self._on_new_epoch = on_new_epoch
        self._failed_calls = FailedCalls(on_given_up)
        self._submit_interval_s = submit_interval_s
        self._cursor = Cursor()
        self._unsent: list[Submission] = []
        self._has_unsent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to submit and to listen."""
        self._run(self._keep_submitting())
        self._run(self._listen())

    async def stop(self) -> None:
        """Talk no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, submission: Submission) -> None:
        """Say this after all that was to be sent before."""
        self._unsent.append(submission)
        self._has_unsent.set()

    # --- calls with an answer of their own

    async def open_application(self, arrival: ApplicationArrived) -> Opened:
        """Open an application; again while the scheduler is being started.

        Raises:
            AdmissionError: If the scheduler has lost its office.
        """
        while True:
            try:
                opened: Opened = await self._scheduler.open_application.remote(arrival)
            except RayActorError:
                await pause()
            except RayTaskError as error:
                if isinstance(error.cause, JustitiaError):
                    raise error.cause from None
                raise
            else:
                return opened

    async def refuse_lease(
        self, request_id: RequestId, grant: Grant, *, replica_gone: bool
    ) -> bool:
        """Give back a lease; return whether nothing has to be done for its inference to wait again.

        False says that the scheduler holds the inference for ended. Why is in the mail that was
        read meanwhile, if there is a reason.
        """
        while True:
            asked = self._terms
            try:
                still_waits: bool = await self._scheduler.refuse_lease.remote(
                    request_id, grant.lease_id, grant.replica_id, replica_gone
                )
                if not still_waits and self._terms == asked:
                    await self._hear_why(asked)
            except RayError as error:
                self._failed_calls.note("refuse_lease", error)
                if self._failed_calls.is_given_up():
                    return True  # what was outstanding is refused
                await pause()
            else:
                # On other terms than these, it was submitted again with all the rest.
                return still_waits or self._terms != asked

    async def _hear_why(self, asked: _Terms) -> None:
        """Read the mail now: an inference that ended because it was refused is not to run again.

        Its application was cancelled, say. The replica stops it then, and what it says may be here
        before the refusal.
        """
        mail: IngressMail = await self._scheduler.submit_many.remote(*asked, self._cursor.ack, ())
        self._read(mail, asked)

    # --- batches and mail

    async def _keep_submitting(self) -> None:
        """Send at once what comes after a pause; while a batch is out, the next one gathers."""
        loop = asyncio.get_running_loop()
        sent_at = 0.0
        while True:
            await self._has_unsent.wait()
            await asyncio.sleep(sent_at + self._submit_interval_s - loop.time())
            sent_at = loop.time()
            self._has_unsent.clear()
            batch, self._unsent = self._unsent, []
            asked = self._terms
            try:
                mail: IngressMail = await self._scheduler.submit_many.remote(
                    *asked, self._cursor.ack, tuple(batch)
                )
            except RayError as error:
                self._failed_calls.note("submit_many", error)
                taken = False
            else:
                taken = self._read(mail, asked)
            if not taken:
                await self._submit_later(batch, asked)

    async def _submit_later(self, batch: list[Submission], asked: _Terms) -> None:
        """Nothing was taken: send it again, unless all there is was put into line meanwhile."""
        if self._terms == asked:
            if self._failed_calls.is_given_up():
                # All of it is submitted again if there ever is another one.
                batch = self._outstanding.closings_elsewhere(batch)
            self._unsent = batch + self._unsent
            await pause()
        else:
            self._unsent += self._outstanding.closings_elsewhere(batch)
        self._has_unsent.set()

    async def _listen(self) -> None:
        while True:
            asked = self._terms
            try:
                mail: IngressMail = await self._scheduler.poll_grants.remote(
                    *asked, self._cursor.ack
                )
            except RayError as error:
                self._failed_calls.note("poll_grants", error)
                await pause()
                continue
            if not self._read(mail, asked) and self._terms == asked:
                await pause()  # a scheduler of a lower epoch: not listened to

    @property
    def _terms(self) -> _Terms:
        """On what terms the scheduler is spoken to."""
        return _Terms(self.ingress_id, self.epoch)

    def _read(self, mail: IngressMail, asked: _Terms) -> bool:
        """Take in an answer; return whether the scheduler took the call."""
        self._failed_calls.answered()
        if mail.epoch != asked.epoch:
            self._take_epoch(mail.epoch)
            return False
        if mail.forgotten:
            if asked == self._terms:
                self._begin_again()
            return False
        if asked == self._terms:
            for message in self._cursor.fresh(mail.messages):
                self._hear(message)
        return True

    # --- other terms

    def _take_epoch(self, epoch: Epoch) -> None:
        """Submit all that is outstanding to a new scheduler; a lower epoch is not listened to."""
        if epoch <= self.epoch:
            return
        again = self.epoch > 0
        self.epoch = epoch
        self._submit_everything(again=again)
        if again:
            self._run(self._greet(epoch))

    async def _greet(self, epoch: Epoch) -> None:
        """Tell the owner of a new scheduler, again while what it does there fails."""
        while epoch == self.epoch:
            try:
                await self._on_new_epoch()
                return
            except RayError as error:
                self._failed_calls.note("on_new_epoch", error)
                await pause()

    def _begin_again(self) -> None:
        """The scheduler has ended all that was outstanding here: submit it under another name."""
        self.ingress_id = _new_ingress_id()
        self._outstanding.rename(self.ingress_id)
        self._submit_everything(again=True)

    def _submit_everything(self, *, again: bool) -> None:
        """Put all there is into line, to a reader that knows nothing of it."""
        self._cursor.reset()
        self._unsent = self._outstanding.submissions(self._unsent, again=again)
        self._has_unsent.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _new_ingress_id() -> IngressId:
    return f"ingress-{uuid.uuid4().hex[:12]}"
