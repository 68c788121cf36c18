"""Session of an ingress with the scheduler: batches, long polls, epochs and failed calls.

Plain asyncio over the scheduler link. A scheduler without state of this ingress is sent everything
that is pending, so a scheduler's death loses nothing.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from ray.exceptions import RayActorError, RayError

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived, NackReason, Resubmitted
from justitia_ray.errors import ConnectionLost, JustitiaError, SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import IngressMail, IngressMessage, Opened, Submission
from justitia_ray.serve.ingress.pending_inferences import PendingInferences
from justitia_ray.units import Epoch, IngressId, RequestId, Seconds

logger = logging.getLogger("ray.serve")

BATCH = 500
"""Maximum number of submissions in one call, because this number blocks the scheduler for 0.1 s."""
_RETRY_S: Seconds = 0.2
"""Seconds before a failed call to the scheduler is repeated."""
_PREPARED_WITHIN_S: Seconds = 5.0
"""Maximum seconds for which submissions wait until a new leader has received its settings."""
_GIVE_UP_S: Seconds = 10.0
"""Seconds after which pending inferences are refused if the scheduler answers that it does not
lead.
"""


class _Terms(NamedTuple):
    """Ingress id and epoch with which a call to the scheduler was made."""

    ingress_id: IngressId
    epoch: Epoch


class SchedulerAnswer(NamedTuple):
    """Result of a call to the scheduler."""

    accepted: bool = False
    """Whether the scheduler accepted the call."""
    mail: IngressMail | None = None
    """Answer of the scheduler; None without an answer, or if ingress id or epoch have changed since
    the call.
    """
    messages: Sequence[IngressMessage] = ()
    """Messages in the answer that were not in an earlier answer."""
    given_up: bool = False
    """Whether the call failed because no scheduler has led for longer than `_GIVE_UP_S`."""


class SchedulerSession:
    """Sends submissions to a scheduler in batches, and yields each of its messages once.

    Args:
        scheduler: Link to the scheduler.
        pending: Inferences and applications to submit again to a scheduler without state.
        on_new_epoch: Run when another scheduler has become leader, before anything is submitted to
            it: without stored settings the new leader has no quotas until it receives them.
        submit_interval_s: Minimum time between two batches of submissions.
    """

    def __init__(
        self,
        scheduler: Any,
        pending: PendingInferences,
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        submit_interval_s: Seconds,
    ) -> None:
        self.ingress_id = _new_ingress_id()
        """Id of this ingress at the scheduler, replaced when the scheduler has expired it."""
        self.epoch: Epoch = 0
        """Highest epoch that a scheduler has reported; 0 before any report."""
        self._scheduler = scheduler
        self._pending = pending
        self._on_new_epoch = on_new_epoch
        self._superseded_at: Seconds | None = None
        """Loop time since which the called scheduler answers that it does not lead; None: it leads.
        """
        self._submit_interval_s = submit_interval_s
        self._cursor = Cursor()
        self._unsent: list[Submission] = []
        self._has_unsent = asyncio.Event()
        self.configured_epoch: Epoch = 0
        """Epoch of the scheduler that received the last change of settings; 0 without a change."""
        self._is_prepared = asyncio.Event()
        """Event that is set unless submissions wait for a new leader to receive its settings."""
        self._is_prepared.set()
        self._announcing: set[asyncio.Task[None]] = set()
        """Tasks that run the callback `on_new_epoch`."""

    async def stop(self) -> None:
        """Stop the running callbacks `on_new_epoch`."""
        tasks = list(self._announcing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, submission: Submission) -> None:
        """Queue a submission for the next batch, in order."""
        self._unsent.append(submission)
        self._has_unsent.set()

    # --- single calls

    async def open_application(self, arrival: ApplicationArrived) -> Opened:
        """Open an application at the scheduler; repeat the call while the scheduler restarts.

        Raises:
            AdmissionError: If the scheduler no longer leads, or did not receive its settings in
                time.
        """
        while True:
            await self._is_prepared.wait()
            try:
                opened: Opened = await self._scheduler.call("open_application", arrival)
            except ConnectionLost:
                await asyncio.sleep(_RETRY_S)
            else:
                return opened

    async def nack_lease(
        self, request_id: RequestId, grant: Grant, reason: NackReason
    ) -> tuple[bool, SchedulerAnswer]:
        """Return a lease; the result is whether the scheduler queued its inference again.

        False means that the scheduler considers the inference ended. Its reason, if any, is in the
        answer that is returned with it.
        """
        while True:
            asked, answer = self._present_terms, SchedulerAnswer()
            try:
                still_waits: bool = await self._scheduler.call(
                    "refuse_lease", request_id, grant.lease_id, reason
                )
                if not still_waits and self._present_terms == asked:
                    answer = await self._read_reason(asked)
            except JustitiaError as error:
                answer = self._note_failure("refuse_lease", error)
                if self._is_given_up():
                    # Pending inferences are then refused by the caller.
                    return True, answer
                await asyncio.sleep(_RETRY_S)
            else:
                # If epoch or ingress id changed, the inference was resubmitted with all others.
                return still_waits or self._present_terms != asked, answer

    async def _read_reason(self, asked: _Terms) -> SchedulerAnswer:
        """Fetch messages at once, because a refused inference must not run again.

        Example: its application was cancelled. The replica then aborts the inference, and the
        replica's answer may arrive before the scheduler's refusal.
        """
        mail: IngressMail = await self._scheduler.call("submit_many", *asked, self._cursor.ack, ())
        return self._read_answer(mail, asked)

    # --- batches and mail

    async def batches(self) -> AsyncGenerator[SchedulerAnswer]:
        """Send submissions in batches, and yield the answer to each batch.

        Submissions that are queued during a call go into the next batch.
        """
        loop = asyncio.get_running_loop()
        sent_at = 0.0
        while True:
            await self._has_unsent.wait()
            await asyncio.sleep(sent_at + self._submit_interval_s - loop.time())
            await self._is_prepared.wait()
            sent_at = loop.time()
            batch, self._unsent = self._unsent[:BATCH], self._unsent[BATCH:]
            batch = self._pending.current(batch)
            if not self._unsent:
                self._has_unsent.clear()
            asked = self._present_terms
            answer = await self._call_scheduler("submit_many", tuple(batch))
            yield answer
            if not answer.accepted:
                await self._requeue_batch(batch, asked)

    async def _requeue_batch(self, batch: list[Submission], asked: _Terms) -> None:
        """Queue a failed batch again, unless all pending submissions were queued meanwhile."""
        if self._present_terms == asked:
            if self._is_given_up():
                # The other submissions stay pending until another scheduler becomes leader.
                batch = self._pending.closings_elsewhere(batch)
            self._unsent = batch + self._unsent
            await asyncio.sleep(_RETRY_S)
        else:
            self._unsent += self._pending.closings_elsewhere(batch)
        self._has_unsent.set()

    async def polls(self) -> AsyncGenerator[SchedulerAnswer]:
        """Long-poll for messages, one call at a time, and yield each answer."""
        while True:
            asked = self._present_terms
            answer = await self._call_scheduler("poll_grants")
            yield answer
            if not answer.accepted and self._present_terms == asked:
                # The call failed, or a scheduler with a lower epoch answered.
                await asyncio.sleep(_RETRY_S)

    async def _call_scheduler(
        self, method: str, *arguments: tuple[Submission, ...]
    ) -> SchedulerAnswer:
        """Call the scheduler and process its answer."""
        asked = self._present_terms
        try:
            mail: IngressMail = await self._scheduler.call(
                method, *asked, self._cursor.ack, *arguments
            )
        except JustitiaError as error:
            return self._note_failure(method, error)
        return self._read_answer(mail, asked)

    @property
    def _present_terms(self) -> _Terms:
        """Ingress id and epoch for calls made now."""
        return _Terms(self.ingress_id, self.epoch)

    def _read_answer(self, mail: IngressMail, asked: _Terms) -> SchedulerAnswer:
        """Adopt the epoch or ingress id in an answer; return the answer's mail and new messages."""
        self._superseded_at = None
        if mail.epoch != asked.epoch:
            self._take_epoch(mail)
            return SchedulerAnswer()
        is_current = asked == self._present_terms
        if mail.forgotten:
            if is_current:
                self._change_ingress_id()
            return SchedulerAnswer()
        if not is_current:
            return SchedulerAnswer(accepted=True)
        return SchedulerAnswer(True, mail, self._cursor.fresh(mail.messages))

    # --- changes of epoch and of ingress id

    def _take_epoch(self, mail: IngressMail) -> None:
        """Submit all pending to a new leader; ignore an answer with a lower epoch."""
        epoch = mail.epoch
        if epoch <= self.epoch:
            return
        resubmitted = self.epoch > 0
        self.epoch = epoch
        self._submit_everything(resubmitted=resubmitted)
        if resubmitted or 0 < self.configured_epoch < epoch:
            self._is_prepared.clear()
            asyncio.get_running_loop().call_later(_PREPARED_WITHIN_S, self._is_prepared.set)
            task = asyncio.get_running_loop().create_task(self._announce_epoch(epoch))
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)

    async def _announce_epoch(self, epoch: Epoch) -> None:
        """Run `on_new_epoch` until it succeeds; submissions wait for the first run only."""
        while epoch == self.epoch:
            try:
                await self._on_new_epoch()
                return
            except (RayError, ConnectionLost) as error:
                self._note_failure("on_new_epoch", error)
            finally:
                if epoch == self.epoch:
                    self._is_prepared.set()
            await asyncio.sleep(_RETRY_S)

    def _change_ingress_id(self) -> None:
        """Submit everything under a new ingress id; the scheduler has expired the old one."""
        self.ingress_id = _new_ingress_id()
        self._pending.change_ingress_id(self.ingress_id)
        self._submit_everything(resubmitted=True)

    def _submit_everything(self, *, resubmitted: bool) -> None:
        """Queue everything pending, for a scheduler that knows nothing of this ingress."""
        self._cursor.reset()
        self._unsent = self._pending.all_submissions(self._unsent, resubmitted=resubmitted)
        self._unsent.append(Resubmitted(self.ingress_id))
        self._has_unsent.set()

    # --- calls that fail

    def _note_failure(self, call: str, error: Exception) -> SchedulerAnswer:
        """Log a failed call, unless the scheduler is only restarting; return the call's result."""
        if isinstance(error, SchedulerSuperseded):
            if self._superseded_at is None:
                self._superseded_at = asyncio.get_running_loop().time()
                log_event(logger, logging.ERROR, "scheduler.superseded", reason=error.message)
            elif self._is_given_up():
                return SchedulerAnswer(given_up=True)
        elif isinstance(error, RayActorError | ConnectionLost):
            self._superseded_at = None  # Another scheduler may answer the next call.
        else:
            log_event(logger, logging.ERROR, "scheduler.call_failed", call=call, reason=str(error))
        return SchedulerAnswer()

    def _is_given_up(self) -> bool:
        """Return whether the scheduler has reported for too long that another scheduler leads."""
        since, now = self._superseded_at, asyncio.get_running_loop().time()
        return since is not None and now - since >= _GIVE_UP_S


def _new_ingress_id() -> IngressId:
    return f"ingress-{uuid.uuid4().hex[:12]}"
