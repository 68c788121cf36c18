"""The ingress's side of the queue: what is outstanding, the batches, the one long-poll, the epochs.

Plain asyncio around a scheduler handle. Whatever is outstanding here is submitted again to a new
scheduler, so nothing is lost with the old one.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ray.exceptions import RayActorError, RayError, RayTaskError

from justitia_ray.core.actions import (
    EndApplication,
    ForgetApplication,
    Grant,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceCancelled,
    InferenceSubmitted,
)
from justitia_ray.errors import JustitiaError, QueueFull, SchedulerSuperseded
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import IngressMail, Opened, Submission
from justitia_ray.protocol.status import refusal_error
from justitia_ray.serve.outstanding import Outstanding, Ticket
from justitia_ray.units import (
    ApplicationId,
    Epoch,
    IngressId,
    RequestId,
    Seconds,
    VirtualTime,
)

logger = logging.getLogger("ray.serve")

_RETRY_S = 0.2
_GIVE_UP_S: Seconds = 10.0
"""A scheduler that lost its office to its own successor is not reached any more after so long."""


class _Terms(NamedTuple):
    """Under which name, and in which epoch, a call was made."""

    ingress_id: IngressId
    epoch: Epoch


class Dispatcher:
    """Submits inferences in batches and hands out their grants."""

    def __init__(
        self,
        scheduler: Any,
        on_application_ended: Callable[[EndApplication], None],
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        max_outstanding: int,
        submit_interval_s: Seconds,
    ) -> None:
        """Prepare; `start` begins to talk.

        Args:
            scheduler: Handle of the scheduler actor.
            on_application_ended: Told of every application opened here, once it is over.
            on_new_epoch: Run when another scheduler has taken office.
            max_outstanding: More inferences at once are refused.
            submit_interval_s: Least time from one batch of submissions to the next.
        """
        self.ingress_id = _new_ingress_id()
        """Changes when the scheduler has given up this ingress for silent."""
        self._scheduler = scheduler
        self._on_application_ended = on_application_ended
        self._on_new_epoch = on_new_epoch
        self._max_outstanding = max_outstanding
        self._submit_interval_s = submit_interval_s
        self._epoch = 0
        self._cursor = Cursor()
        self._outstanding = Outstanding()
        self._unsent: list[Submission] = []
        self._has_unsent = asyncio.Event()
        self._superseded_at: Seconds | None = None
        """Since when the scheduler says that another one is in office."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def outstanding(self) -> int:
        """Inferences submitted and not ended."""
        return len(self._outstanding.tickets)

    @property
    def epoch(self) -> int:
        """The scheduler's epoch, as last heard; 0 before."""
        return self._epoch

    def tickets(self) -> Mapping[RequestId, Ticket]:
        """Return what is submitted and not ended, for reading."""
        return self._outstanding.tickets

    def open_applications(self) -> int:
        """Return how many applications were opened here whose end was not heard of."""
        return len(self._outstanding.open)

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

    # --- applications

    async def open_application(self, arrival: ApplicationArrived) -> VirtualTime:
        """Open an application and return its tag.

        Raises:
            AdmissionError: If there is no room for it, it cannot be stored, or the scheduler has
                lost its office.
        """
        while True:
            try:
                opened: Opened = await self._scheduler.open_application.remote(arrival)
            except RayActorError:
                await asyncio.sleep(_RETRY_S)
                continue
            except RayTaskError as error:
                if isinstance(error.cause, JustitiaError):
                    raise error.cause from None
                raise
            if opened.refusal is not None:
                raise refusal_error(opened.refusal, arrival.application_id)
            self._outstanding.open[arrival.application_id] = arrival
            if arrival.ingress_id != self.ingress_id or opened.epoch < self._epoch:
                self._speak_for(arrival)
            return opened.virtual_finish_time

    def opened_here(self, application_id: ApplicationId) -> ApplicationArrived | None:
        """Return the application if it was opened here and its end was not heard of."""
        return self._outstanding.open.get(application_id)

    def next_stage(self, application_id: ApplicationId) -> tuple[int, int]:
        """Return the stage of what an application submits next, and how many are at it then."""
        return self._outstanding.next_stage(application_id)

    def close_application(self, application_id: ApplicationId) -> None:
        """Take no more inferences of it, in order with what was submitted before."""
        self.note_closed(application_id)
        self._send(ApplicationClosed(application_id))

    def note_closed(self, application_id: ApplicationId) -> None:
        """It was closed: should another scheduler take office before its end, tell that one too."""
        self._outstanding.note_closed(application_id)

    # --- inferences

    def submit(
        self,
        item: InferenceSubmitted,
        opening: ApplicationArrived | None = None,
        *,
        is_last: bool = False,
    ) -> Ticket:
        """Let an inference wait.

        Args:
            item: The inference.
            opening: Its application, if that is to be opened in the same message.
            is_last: Its application takes no more inferences, and ends with this one.

        Raises:
            QueueFull: If too many are outstanding here.
        """
        if len(self._outstanding.tickets) >= self._max_outstanding:
            raise QueueFull(
                f"{self._max_outstanding} inferences are outstanding at this ingress", 5.0
            )
        ticket = Ticket(item, asyncio.get_running_loop().time(), opening, is_last)
        self._send_ticket(ticket)
        self._outstanding.submitted(item)
        return ticket

    async def next_grant(self, ticket: Ticket) -> Grant:
        """Wait for the inference's next lease.

        Raises:
            RequestError: If the scheduler refuses the inference.
            AdmissionError: If it has no room for it now.
        """
        while not ticket.answers:
            ticket.news.clear()
            await ticket.news.wait()
        answer = ticket.answers.popleft()
        if isinstance(answer, Refuse):
            raise refusal_error(answer.reason, ticket.item.application_id)
        ticket.lease_id = answer.lease_id
        return answer

    async def refuse(self, ticket: Ticket, grant: Grant, *, replica_gone: bool) -> None:
        """Give back a lease that could not be used; the inference waits again."""
        ticket.lease_id = None
        while True:
            asked = self._terms
            try:
                still_waits = await self._scheduler.refuse_lease.remote(
                    ticket.item.request_id, grant.lease_id, grant.replica_id, replica_gone
                )
                if not still_waits:
                    await self._hear_why(asked)
                break
            except RayError as error:
                self._note_failed("refuse_lease", error)
                if self._is_given_up():
                    return  # the ticket was refused
                await asyncio.sleep(_RETRY_S)
        # On other terms than it was given back on, it was submitted again with all the rest.
        if not still_waits and not ticket.answers and self._terms == asked:
            self._submit_anew(ticket)

    async def _hear_why(self, asked: _Terms) -> None:
        """Read the mail now: an inference that ended because it was refused is not to run again.

        Its application was cancelled, say. The replica stops it then, and what it says may be here
        before the refusal.
        """
        mail: IngressMail = await self._scheduler.submit_many.remote(*asked, self._cursor.ack, ())
        self._read(mail, asked)

    def end(self, ticket: Ticket) -> None:
        """The inference has its answer."""
        self._outstanding.answered(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """The inference is not wanted any more."""
        if self._outstanding.tickets.pop(ticket.item.request_id, None) is not None:
            self._send(InferenceCancelled(ticket.item.request_id))

    def _submit_anew(self, ticket: Ticket) -> None:
        """Submit under another id: the scheduler holds the old one for ended."""
        if self._outstanding.tickets.pop(ticket.item.request_id, None) is None:
            return  # cancelled meanwhile
        ticket.item = replace(
            ticket.item,
            request_id=f"{ticket.item.request_id}+",
            again=True,
            age_s=asyncio.get_running_loop().time() - ticket.submitted_at,
            lease_id=None,
        )
        if ticket.opening is None:
            ticket.opening = self._outstanding.open.get(ticket.item.application_id)
        if ticket.opening is not None:
            ticket.opening = replace(ticket.opening, again=True)
        self._send_ticket(ticket)

    def _send_ticket(self, ticket: Ticket) -> None:
        """Send an inference between the opening and the closing of its application."""
        self._outstanding.tickets[ticket.item.request_id] = ticket
        if ticket.opening is not None:
            self._outstanding.open[ticket.opening.application_id] = ticket.opening
            self._send(ticket.opening)
        self._send(ticket.item)
        if ticket.is_last:
            self.close_application(ticket.item.application_id)

    # --- talking

    def _send(self, submission: Submission) -> None:
        self._unsent.append(submission)
        self._has_unsent.set()

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
                self._note_failed("submit_many", error)
                taken = False
            else:
                taken = self._read(mail, asked)
            if not taken:
                await self._submit_later(batch, asked)

    async def _submit_later(self, batch: list[Submission], asked: _Terms) -> None:
        """Nothing was taken: send it again, unless all there is was put into line meanwhile."""
        if self._terms == asked:
            if self._is_given_up():  # all of it is submitted again if there ever is another one
                batch = self._outstanding.closings_elsewhere(batch)
            self._unsent = batch + self._unsent
            await asyncio.sleep(_RETRY_S)
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
                self._note_failed("poll_grants", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if not self._read(mail, asked) and self._terms == asked:
                await asyncio.sleep(_RETRY_S)  # a scheduler of a lower epoch: not listened to

    @property
    def _terms(self) -> _Terms:
        """On what terms the scheduler is spoken to."""
        return _Terms(self.ingress_id, self._epoch)

    def _read(self, mail: IngressMail, asked: _Terms) -> bool:
        """Take in an answer; return whether the scheduler took the call."""
        self._superseded_at = None
        if mail.epoch != asked.epoch:
            self._take_epoch(mail.epoch)
            return False
        if mail.forgotten:
            if asked == self._terms:
                self._begin_again()
            return False
        if asked == self._terms:
            for message in self._cursor.fresh(mail.messages):
                if isinstance(message, EndApplication):
                    self._outstanding.ended(message.application_id)
                    self._on_application_ended(message)
                elif isinstance(message, RefuseApplication | ForgetApplication):
                    self._outstanding.forget(message.application_id)
                else:
                    self._deliver(message)
        return True

    def _deliver(self, message: Grant | Refuse) -> None:
        ticket = self._outstanding.tickets.get(message.request_id)
        if ticket is not None:
            ticket.answers.append(message)
            ticket.news.set()
        elif isinstance(message, Grant):
            self._send(InferenceCancelled(message.request_id))

    def _take_epoch(self, epoch: int) -> None:
        """Submit all that is outstanding to a new scheduler; a lower epoch is not listened to."""
        if epoch <= self._epoch:
            return
        again = self._epoch > 0
        self._epoch = epoch
        self._submit_everything(again=again)
        if again:
            self._run(self._greet(epoch))

    async def _greet(self, epoch: Epoch) -> None:
        """Tell the owner of a new scheduler, again while what it does there fails."""
        while epoch == self._epoch:
            try:
                await self._on_new_epoch()
                return
            except RayError as error:
                self._note_failed("on_new_epoch", error)
                await asyncio.sleep(_RETRY_S)

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

    def _speak_for(self, arrival: ApplicationArrived) -> None:
        """Tell the scheduler of now what was opened before, or by another name, meanwhile."""
        known = replace(arrival, ingress_id=self.ingress_id, again=True)
        self._outstanding.open[arrival.application_id] = known
        self._send(known)

    def _note_failed(self, call: str, error: RayError) -> None:
        """Log that the scheduler failed a call; one that is only being started again is no news.

        Of one that has lost its office for good, nothing is waited for any more.
        """
        if isinstance(error, SchedulerSuperseded):
            if self._superseded_at is None:
                self._superseded_at = asyncio.get_running_loop().time()
                logger.error("scheduler.superseded %s", error.message)
            elif self._is_given_up():
                self._refuse_all()
        elif not isinstance(error, RayActorError):
            logger.error("scheduler.call_failed call=%s error=%s", call, error)

    def _is_given_up(self) -> bool:
        since, now = self._superseded_at, asyncio.get_running_loop().time()
        return since is not None and now - since >= _GIVE_UP_S

    def _refuse_all(self) -> None:
        """Let all that waits for a lease wait no more."""
        for request_id, ticket in list(self._outstanding.tickets.items()):
            if ticket.lease_id is None and not ticket.answers:
                self._deliver(Refuse(request_id, self.ingress_id, Refusal.SUPERSEDED))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _new_ingress_id() -> IngressId:
    return f"ingress-{uuid.uuid4().hex[:12]}"
