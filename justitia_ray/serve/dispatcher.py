"""The ingress's side of the queue: what it has outstanding, and what the scheduler grants of it.

How the two talk, and what a new scheduler is told, is the `Conversation`'s job.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

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
from justitia_ray.errors import QueueFull
from justitia_ray.protocol.messages import IngressMessage
from justitia_ray.protocol.status import refusal_error
from justitia_ray.serve.conversation import Conversation
from justitia_ray.serve.outstanding import Outstanding, Ticket
from justitia_ray.units import ApplicationId, Epoch, IngressId, RequestId, Seconds, VirtualTime


class Dispatcher:
    """Lets inferences wait, and hands out their grants."""

    def __init__(
        self,
        scheduler: Any,
        on_application_ended: Callable[[EndApplication], None],
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        max_outstanding: int,
        submit_interval_s: Seconds,
        on_opening: Callable[[ApplicationId, bool], None] = lambda application_id, is_open: None,
    ) -> None:
        """Prepare; `start` begins to talk.

        Args:
            scheduler: Handle of the scheduler actor.
            on_application_ended: Told of every application opened here, once it is over.
            on_new_epoch: Run when another scheduler has taken office.
            max_outstanding: More inferences at once are refused.
            submit_interval_s: Least time from one batch of submissions to the next.
            on_opening: Told of an application at each grant for it that it is open, and that it is
                not when it was refused, or its end is told to another ingress.
        """
        self._on_opening = on_opening
        self._on_application_ended = on_application_ended
        self._max_outstanding = max_outstanding
        self._outstanding = Outstanding()
        self._conversation = Conversation(
            scheduler,
            self._outstanding,
            self._hear,
            on_new_epoch,
            self._refuse_all,
            submit_interval_s,
        )

    @property
    def ingress_id(self) -> IngressId:
        """The name under which the scheduler knows this ingress now."""
        return self._conversation.ingress_id

    @property
    def epoch(self) -> Epoch:
        """The scheduler's epoch, as last heard; 0 before."""
        return self._conversation.epoch

    @property
    def outstanding(self) -> int:
        """Inferences submitted and not ended."""
        return len(self._outstanding.tickets)

    def tickets(self) -> Mapping[RequestId, Ticket]:
        """Return what is submitted and not ended, for reading."""
        return self._outstanding.tickets

    def open_applications(self) -> int:
        """Return how many applications were opened here whose end was not heard of."""
        return len(self._outstanding.open)

    def start(self) -> None:
        """Begin to submit and to listen."""
        self._conversation.start()

    async def stop(self) -> None:
        """Talk no more."""
        await self._conversation.stop()

    # --- applications

    async def open_application(self, arrival: ApplicationArrived) -> VirtualTime:
        """Open an application and return its tag.

        Raises:
            AdmissionError: If there is no room for it, it cannot be stored, or the scheduler has
                lost its office.
        """
        opened = await self._conversation.open_application(arrival)
        if opened.refusal is not None:
            raise refusal_error(opened.refusal, arrival.application_id)
        self._outstanding.open[arrival.application_id] = arrival
        if arrival.ingress_id != self.ingress_id or opened.epoch < self.epoch:
            self._speak_for(arrival)
        return opened.virtual_finish_time

    def _speak_for(self, arrival: ApplicationArrived) -> None:
        """Tell the scheduler of now what was opened before, or by another name, meanwhile."""
        known = replace(arrival, ingress_id=self.ingress_id, again=True)
        self._outstanding.open[arrival.application_id] = known
        self._conversation.send(known)

    def opened_here(self, application_id: ApplicationId) -> ApplicationArrived | None:
        """Return the application if it was opened here and its end was not heard of."""
        return self._outstanding.open.get(application_id)

    def next_stage(self, application_id: ApplicationId) -> tuple[int, int]:
        """Return the stage of what an application submits next, and how many are at it then."""
        return self._outstanding.next_stage(application_id)

    def close_application(self, application_id: ApplicationId) -> None:
        """Take no more inferences of it, in order with what was submitted before."""
        self.note_closed(application_id)
        self._conversation.send(ApplicationClosed(application_id))

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
        known = opening or self._outstanding.open.get(item.application_id)
        ticket = Ticket(item, asyncio.get_running_loop().time(), opening, is_last, known)
        self._send(ticket)
        self._outstanding.submitted(item)
        return ticket

    async def next_grant(self, ticket: Ticket) -> Grant:
        """Wait for the inference's next lease.

        Raises:
            RequestError: If the scheduler refuses the inference.
            AdmissionError: If it has no room for it now.
        """
        while True:
            while not ticket.answers:
                ticket.news.clear()
                await ticket.news.wait()
            answer = ticket.answers.popleft()
            if isinstance(answer, Grant):
                ticket.lease_id = answer.lease_id
                return answer
            is_unknown = answer.reason is Refusal.UNKNOWN_APPLICATION
            if not (is_unknown and ticket.item.again and ticket.known is not None):
                raise refusal_error(answer.reason, ticket.item.application_id)
            # The scheduler before this one had ended it with its inference; the answer was lost.
            self._submit_anew(ticket)

    async def refuse(self, ticket: Ticket, grant: Grant, *, replica_gone: bool) -> None:
        """Give back a lease that could not be used; the inference waits again."""
        ticket.lease_id = None
        waits = await self._conversation.refuse_lease(
            ticket.item.request_id, grant, replica_gone=replica_gone
        )
        if not waits and not ticket.answers:
            self._submit_anew(ticket)

    def end(self, ticket: Ticket) -> None:
        """The inference has its answer."""
        self._outstanding.answered(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """The inference is not wanted any more."""
        if self._outstanding.tickets.pop(ticket.item.request_id, None) is not None:
            self._conversation.send(InferenceCancelled(ticket.item.request_id))

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
        if ticket.opening is None and ticket.known is not None:  # closed, and ended meanwhile
            ticket.opening, ticket.is_last = ticket.known, True
        if ticket.opening is not None:
            ticket.opening = replace(ticket.opening, again=True)
        self._send(ticket)

    def _send(self, ticket: Ticket) -> None:
        """Send an inference between the opening and the closing of its application."""
        self._outstanding.tickets[ticket.item.request_id] = ticket
        if ticket.opening is not None:
            self._outstanding.open[ticket.opening.application_id] = ticket.opening
            self._conversation.send(ticket.opening)
        self._conversation.send(ticket.item)
        if ticket.is_last:
            self.close_application(ticket.item.application_id)

    # --- what the scheduler says

    def _hear(self, message: IngressMessage) -> None:
        if isinstance(message, EndApplication):
            self._outstanding.ended(message.application_id)
            self._on_application_ended(message)
        elif isinstance(message, RefuseApplication | ForgetApplication):
            self._outstanding.forget(message.application_id)
            self._on_opening(message.application_id, False)
        else:
            self._deliver(message)

    def _deliver(self, message: Grant | Refuse) -> None:
        ticket = self._outstanding.tickets.get(message.request_id)
        if ticket is not None:
            if isinstance(message, Grant):
                self._on_opening(ticket.item.application_id, True)
            ticket.answers.append(message)
            ticket.news.set()
        elif isinstance(message, Grant):
            self._conversation.send(InferenceCancelled(message.request_id))

    def _refuse_all(self) -> None:
        """Let all that waits for a lease wait no more."""
        for request_id, ticket in list(self._outstanding.tickets.items()):
            if ticket.lease_id is None and not ticket.answers:
                self._deliver(Refuse(request_id, self.ingress_id, Refusal.SUPERSEDED))
