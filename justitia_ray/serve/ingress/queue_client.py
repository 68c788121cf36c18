"""Queue client of an ingress: submits inferences, and delivers the scheduler's grants.

The `SchedulerSession` below it makes the calls: batches, long-poll, and submitting again to a new
scheduler. It returns the answers, whose messages the client passes to the waiting inferences.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.core.actions import (
    EndApplication,
    EndsStored,
    ForgetApplication,
    Grant,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    InferenceCancelled,
    InferenceSubmitted,
    NackReason,
)
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import QueueFull
from justitia_ray.protocol.errors import refusal_error
from justitia_ray.protocol.messages import IngressMessage
from justitia_ray.serve.ingress.pending_inferences import PendingInference, PendingInferences
from justitia_ray.serve.ingress.scheduler_session import SchedulerAnswer, SchedulerSession
from justitia_ray.serve.ingress.standings import TenantStandings
from justitia_ray.units import ApplicationId, ClientId, ReplicaId, Seconds, VirtualTime


@dataclass(frozen=True, slots=True)
class OpenedApplication:
    """Application that was open before a call or was opened by it."""

    arrival: ApplicationArrived
    """Event that opened the application."""
    virtual_finish_time: VirtualTime
    is_new: bool = True
    """Whether the call opened the application, as far as this ingress knows."""


class QueueClient:
    """Submits inferences to the scheduler of one model, and waits for their leases.

    Attributes:
        pending: Inferences and applications that have not ended.
        session: Session with the scheduler.
        standings: Limits of tenants, as last sent by the scheduler.

    Args:
        scheduler: Link to the scheduler.
        on_application_ended: Called at the end of each application that was opened here.
        on_new_epoch: Run when another scheduler has become leader.
        max_outstanding: Maximum pending inferences; further ones are refused.
        submit_interval_s: Minimum time between two batches of submissions.
        on_opening: Called with an application and whether it is open: True at each of its grants,
            False if it was refused or its end is reported to another ingress. May be None.
        note_addresses: Called with the addresses of grants' replicas.
    """

    def __init__(
        self,
        scheduler: Any,
        on_application_ended: Callable[[EndApplication], None],
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        max_outstanding: int,
        submit_interval_s: Seconds,
        on_opening: Callable[[ApplicationId, bool], None] | None = None,
        note_addresses: Callable[[Mapping[ReplicaId, str]], None] = lambda addresses: None,
    ) -> None:
        self.pending = PendingInferences()
        self.standings = TenantStandings()
        self.session = SchedulerSession(scheduler, self.pending, on_new_epoch, submit_interval_s)
        self._note_addresses = note_addresses
        self._receiving: set[asyncio.Task[None]] = set()
        """Running tasks; a failed task leaves the set, so that asyncio logs its exception."""
        self._on_opening = on_opening
        self._on_application_ended = on_application_ended
        self._max_outstanding = max_outstanding

    def start(self) -> None:
        """Start to send submissions to the scheduler and to poll its messages."""
        loop, session = asyncio.get_running_loop(), self.session
        for answers in (session.batches(), session.polls()):
            task = loop.create_task(self._process_answers(answers))
            self._receiving.add(task)
            task.add_done_callback(self._receiving.discard)

    async def stop(self) -> None:
        running = list(self._receiving)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.session.stop()

    # --- applications

    async def open_application(self, arrival: ApplicationArrived) -> OpenedApplication:
        """Open an application at the scheduler, unless it is already open there.

        Raises:
            AdmissionError: If there is no room for the application, it cannot be stored, or the
                scheduler no longer leads.
        """
        opened = await self.session.open_application(arrival)
        if opened.refusal is not None:
            raise refusal_error(
                opened.refusal, arrival.application_id, opened.limit, opened.retry_after_s
            )
        if opened.standings:
            self._note_standings({arrival.tenant: opened.standings})
        known = self.pending.applications.get(arrival.application_id) if opened.is_known else None
        if known is not None:
            arrival = known
        if arrival.ingress_id != self.session.ingress_id or opened.epoch < self.session.epoch:
            # Register an application again that was opened under an earlier epoch or ingress id.
            arrival = replace(arrival, ingress_id=self.session.ingress_id, resubmitted=True)
            self.session.send(arrival)
        self.pending.note_opened(arrival)
        return OpenedApplication(arrival, opened.virtual_finish_time, is_new=known is None)

    def close_application(self, application_id: ApplicationId) -> None:
        """Close an application: the scheduler accepts only inferences submitted before."""
        self.pending.note_closed(application_id)
        self.session.send(ApplicationClosed(application_id))

    # --- inferences

    def submit_inference(
        self,
        item: InferenceSubmitted,
        opening: ApplicationArrived | None = None,
        *,
        is_last: bool = False,
    ) -> PendingInference:
        """Submit an inference, which then waits for a lease.

        Args:
            item: The inference.
            opening: Its application, if the inference opens it.
            is_last: Whether the application is closed after the inference.

        Raises:
            QueueFull: If too many inferences are pending here.
        """
        if len(self.pending.inferences) >= self._max_outstanding:
            raise QueueFull(
                f"{self._max_outstanding} inferences are outstanding at this ingress",
                self.pending.next_slot(split_key(item.application_id)[0]),
            )
        application = opening or self.pending.applications.get(item.application_id)
        submitted_at = asyncio.get_running_loop().time()
        inference = PendingInference(item, submitted_at, opening, is_last, application)
        self._queue_submission(inference)
        self.pending.note_submitted(item)
        return inference

    async def next_grant(self, inference: PendingInference) -> Grant:
        """Wait for the next lease of an inference.

        While a replica runs the inference, each later lease is also passed to its `on_grant`, with
        which `Attempts` aborts that run; the caller of this method then comes back here.

        Raises:
            RequestError: If the scheduler refuses the inference.
            AdmissionError: If the scheduler has no room for the inference now.
        """
        while True:
            while not inference.answers:
                inference.news.clear()
                await inference.news.wait()
            answer = inference.answers.popleft()
            if isinstance(answer, Grant):
                if any(isinstance(later, Grant) for later in inference.answers):
                    continue  # A later lease has replaced this one.
                inference.lease_id = answer.lease_id
                # Only the wait for the first lease is limited by the deadline.
                inference.item = replace(inference.item, deadline_s=math.inf)
                return answer
            is_unknown = answer.reason is Refusal.UNKNOWN_APPLICATION
            if is_unknown and inference.answers:
                continue  # The batch was sent twice, and only the later answer counts.
            if not is_unknown or inference.application is None:
                name = inference.item.application_id
                raise refusal_error(answer.reason, name, answer.limit, answer.retry_after_s)
            # An application that was open before has expired, or has ended with a lost answer.
            self._submit_under_new_id(inference, was_closed=inference.item.resubmitted)

    async def nack_lease(
        self, inference: PendingInference, grant: Grant, reason: NackReason
    ) -> None:
        """Return a lease that could not be used; its inference waits for another lease."""
        inference.lease_id = None
        request_id = inference.item.request_id
        waits, answer = await self.session.nack_lease(request_id, grant, reason)
        self._process_answer(answer)
        if not waits and not inference.answers:
            self._submit_under_new_id(inference)

    def note_answered(self, inference: PendingInference) -> None:
        """Drop an answered inference, and return a lease that it was granted meanwhile."""
        unread = [grant for grant in inference.answers if isinstance(grant, Grant)]
        self.pending.note_answered(inference)
        if unread and unread[-1].lease_id != inference.lease_id:
            # Without a payload, the replica would keep the lease until it expires.
            self.session.send(InferenceCancelled(inference.item.request_id))

    def cancel_inference(self, inference: PendingInference) -> None:
        """Cancel an inference; no effect if it was answered."""
        if self.pending.remove(inference):
            self.pending.remember_ended_lease(inference, Outcome.CANCELLED)
            self.session.send(InferenceCancelled(inference.item.request_id))

    def _submit_under_new_id(self, inference: PendingInference, *, was_closed: bool = True) -> None:
        """Submit an inference under a new id, because the scheduler counts the old id as ended.

        Args:
            inference: The inference.
            was_closed: Whether the application, if it has ended, was closed before.
        """
        if self.pending.inferences.pop(inference.item.request_id, None) is None:
            return  # cancelled meanwhile
        inference.item = replace(
            inference.item,
            request_id=f"{inference.item.request_id}+",
            resubmitted=True,
            age_s=asyncio.get_running_loop().time() - inference.submitted_at,
            lease_id=None,
        )
        if inference.opening is None:
            inference.opening = self.pending.applications.get(inference.item.application_id)
        if inference.opening is None and inference.application is not None:
            inference.opening, inference.is_last = inference.application, was_closed
        if inference.opening is not None:
            # The scheduler reports the application's end to this ingress id.
            inference.opening = replace(
                inference.opening,
                ingress_id=self.session.ingress_id,
                resubmitted=True,
                # Only the answer was lost; the application's end was stored and counted.
                is_counted=inference.opening.is_counted or bool(inference.item.is_counted),
            )
        self._queue_submission(inference)

    def _queue_submission(self, inference: PendingInference) -> None:
        """Queue an inference after its application's opening, and before its closing."""
        self.pending.inferences[inference.item.request_id] = inference
        if inference.opening is not None:
            self.pending.applications[inference.opening.application_id] = inference.opening
            self.session.send(inference.opening)
        self.session.send(inference.item)
        if inference.is_last:
            self.close_application(inference.item.application_id)

    # --- messages from the scheduler

    def _note_standings(self, standings: Mapping[ClientId, tuple[LimitStanding, ...]]) -> None:
        self.standings.note(standings, asyncio.get_running_loop().time())

    async def _process_answers(self, answers: AsyncGenerator[SchedulerAnswer]) -> None:
        async for answer in answers:
            self._process_answer(answer)

    def _process_answer(self, answer: SchedulerAnswer) -> None:
        """Deliver the messages in an answer of the scheduler."""
        mail = answer.mail
        if mail is not None:
            if mail.addresses:
                self._note_addresses(mail.addresses)  # addresses are needed before leases
            if mail.standings:
                self._note_standings(mail.standings)
            self.pending.note_positions(mail.positions)
            self.pending.unstored.drop_old(asyncio.get_running_loop().time())
            for message in answer.messages:
                self._take_message(message)
        elif answer.given_up:
            self._refuse_all()

    def _take_message(self, message: IngressMessage) -> None:
        if isinstance(message, EndApplication):
            name = message.application_id
            is_again = name not in self.pending.applications
            is_again = is_again and self.pending.unstored.has_application(name)
            self.pending.note_ended(name)
            if not is_again:  # An application that was reopened only to count its end is left out.
                self._on_application_ended(message)
        elif isinstance(message, EndsStored):
            self.pending.note_stored(message)
        elif isinstance(message, RefuseApplication | ForgetApplication):
            if isinstance(message, ForgetApplication):
                self.pending.note_ended_elsewhere(message.application_id)
            else:
                self.pending.forget_application(message.application_id)
            if self._on_opening is not None:
                self._on_opening(message.application_id, False)
        else:
            self._deliver_message(message)

    def _deliver_message(self, message: Grant | Refuse) -> None:
        inference = self.pending.inferences.get(message.request_id)
        if inference is not None:
            if isinstance(message, Grant) and self._on_opening is not None:
                self._on_opening(inference.item.application_id, True)
            inference.answers.append(message)
            inference.news.set()
            if inference.on_grant is not None and isinstance(message, Grant):
                inference.on_grant(message)
        elif isinstance(message, Grant):
            self.session.send(InferenceCancelled(message.request_id))

    def _refuse_all(self) -> None:
        """Refuse all inferences that wait for a lease, because no scheduler leads."""
        for request_id, inference in list(self.pending.inferences.items()):
            if inference.lease_id is None and not inference.answers:
                self._deliver_message(
                    Refuse(request_id, self.session.ingress_id, Refusal.SUPERSEDED)
                )
