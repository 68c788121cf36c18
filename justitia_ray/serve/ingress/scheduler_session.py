"""The session of an ingress with the scheduler: batches, the one long-poll, epochs, failed calls.

Plain asyncio around the way to the scheduler. A scheduler that knows nothing of this ingress is
told everything that is pending, so nothing is lost with an old one.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from ray.exceptions import RayActorError, RayError

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived, NackReason, Resubmitted
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import ConnectionLost, JustitiaError, SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import IngressMail, IngressMessage, Opened, Submission
from justitia_ray.serve.ingress.pending_inferences import PendingInferences
from justitia_ray.units import ClientId, Epoch, IngressId, ReplicaId, RequestId, Seconds

logger = logging.getLogger("ray.serve")

BATCH = 500
"""Most submissions of one call: the scheduler stands still for 0.1 s with them. With the 20,000
that a new leader is sent it would for so long that its connections are taken for lost."""
_RETRY_S: Seconds = 0.2
"""Pause before a failed call is repeated."""
_PREPARED_WITHIN_S: Seconds = 5.0
"""Longest that submissions to a new leader wait for its settings."""
_GIVE_UP_S: Seconds = 10.0
"""After answering for so long that another one leads, a scheduler is given up: the handle does not
find its successor."""


class _Terms(NamedTuple):
    """The ingress id and the epoch that a call was made with."""

    ingress_id: IngressId
    epoch: Epoch


class SchedulerSession:
    """Sends submissions in batches, and hands on the scheduler's messages, each once."""

    def __init__(
        self,
        scheduler: Any,
        pending: PendingInferences,
        take: Callable[[IngressMessage], None],
        on_new_epoch: Callable[[], Coroutine[Any, Any, None]],
        on_given_up: Callable[[], None],
        submit_interval_s: Seconds,
        note_addresses: Callable[[Mapping[ReplicaId, str]], None],
        note_standings: Callable[[Mapping[ClientId, tuple[LimitStanding, ...]]], None],
    ) -> None:
        """Prepare to talk.

        Args:
            scheduler: The way to the scheduler.
            pending: Everything that a scheduler that knows nothing is told.
            take: Takes a message of the leading scheduler.
            on_new_epoch: Run when another scheduler has become leader, before anything is submitted
                to it: one that found no stored settings knows no quotas until it is told.
            on_given_up: Called at each failed call once the scheduler is given up.
            submit_interval_s: Least time from one batch of submissions to the next.
            note_addresses: Told where the replicas of grants are, before the grants are taken.
            note_standings: Told of the limits of the grants' tenants, before they are taken.
        """
        self.ingress_id = _new_ingress_id()
        """The scheduler's name for this ingress; a new one after the scheduler has expired it."""
        self.epoch: Epoch = 0
        """The scheduler's epoch, as last heard; 0 before."""
        self._scheduler = scheduler
        self._pending = pending
        self._take = take
        self._on_new_epoch = on_new_epoch
        self._on_given_up = on_given_up
        self._note_addresses = note_addresses
        self._note_standings = note_standings
        self._superseded_at: Seconds | None = None
        """When the scheduler began to answer that another one leads."""
        self._submit_interval_s = submit_interval_s
        self._cursor = Cursor()
        self._unsent: list[Submission] = []
        self._has_unsent = asyncio.Event()
        self.configured_epoch: Epoch = 0
        """Epoch of the scheduler that the owner gave its settings to last; 0 before."""
        self._is_prepared = asyncio.Event()
        """Set while the leader has the settings, or does not take them in time."""
        self._is_prepared.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to send batches and to poll for messages."""
        self._run(self._keep_submitting())
        self._run(self._keep_polling())

    async def stop(self) -> None:
        """End all calls to the scheduler."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, submission: Submission) -> None:
        """Queue a submission for the next batch, in order."""
        self._unsent.append(submission)
        self._has_unsent.set()

    # --- calls with an answer of their own

    async def open_application(self, arrival: ApplicationArrived) -> Opened:
        """Open an application; the call is repeated while the scheduler is being started.

        Raises:
            AdmissionError: If the scheduler is no leader any more, or is given no settings in time.
        """
        while True:
            await self._is_prepared.wait()
            try:
                opened: Opened = await self._scheduler.call("open_application", arrival)
            except ConnectionLost:
                await asyncio.sleep(_RETRY_S)
            else:
                return opened

    async def nack_lease(self, request_id: RequestId, grant: Grant, reason: NackReason) -> bool:
        """Give back a lease; return whether its inference waits again without further ado.

        False says that the scheduler holds the inference for ended. The reason, if there is one, is
        in the mail that was read meanwhile.
        """
        while True:
            asked = self._terms
            try:
                still_waits: bool = await self._scheduler.call(
                    "refuse_lease", request_id, grant.lease_id, reason
                )
                if not still_waits and self._terms == asked:
                    await self._read_reason(asked)
            except JustitiaError as error:
                self._note_failure("refuse_lease", error)
                if self._is_given_up():
                    return True  # everything pending is refused
                await asyncio.sleep(_RETRY_S)
            else:
                # If the terms changed, the inference was submitted again with all the rest.
                return still_waits or self._terms != asked

    async def _read_reason(self, asked: _Terms) -> None:
        """Read the mail now: an inference that ended because it was refused is not to run again.

        Example: its application was cancelled. The replica aborts it then, and the replica's answer
        may be here before the scheduler's refusal.
        """
        mail: IngressMail = await self._scheduler.call("submit_many", *asked, self._cursor.ack, ())
        self._read(mail, asked)

    # --- batches and mail

    async def _keep_submitting(self) -> None:
        """Send a batch at once after a pause; while one is on its way, the next one gathers."""
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
            asked = self._terms
            if not await self._ask("submit_many", tuple(batch)):
                await self._submit_later(batch, asked)

    async def _submit_later(self, batch: list[Submission], asked: _Terms) -> None:
        """Send a batch that was not taken again, unless everything was queued anew meanwhile."""
        if self._terms == asked:
            if self._is_given_up():
                # Everything pending is submitted again if there ever is another leader.
                batch = self._pending.closings_elsewhere(batch)
            self._unsent = batch + self._unsent
            await asyncio.sleep(_RETRY_S)
        else:
            self._unsent += self._pending.closings_elsewhere(batch)
        self._has_unsent.set()

    async def _keep_polling(self) -> None:
        """Long-poll for messages, one call after the other."""
        while True:
            asked = self._terms
            if not await self._ask("poll_grants") and self._terms == asked:
                await asyncio.sleep(_RETRY_S)  # it failed, or is a scheduler of a lower epoch

    async def _ask(self, method: str, *arguments: tuple[Submission, ...]) -> bool:
        """Call the scheduler and read its answer; return whether it took the call."""
        asked = self._terms
        try:
            mail: IngressMail = await self._scheduler.call(
                method, *asked, self._cursor.ack, *arguments
            )
        except JustitiaError as error:
            self._note_failure(method, error)
            return False
        return self._read(mail, asked)

    @property
    def _terms(self) -> _Terms:
        """The ingress id and the epoch of calls made now."""
        return _Terms(self.ingress_id, self.epoch)

    def _read(self, mail: IngressMail, asked: _Terms) -> bool:
        """Hand on the messages of an answer; return whether the scheduler took the call."""
        self._superseded_at = None
        if mail.epoch != asked.epoch:
            self._take_epoch(mail)
            return False
        if mail.forgotten:
            if asked == self._terms:
                self._change_ingress_id()
            return False
        if asked == self._terms:
            self._note_addresses(mail.addresses)
            if mail.standings:
                self._note_standings(mail.standings)
            self._pending.note_positions(mail.positions)
            self._pending.unstored.drop_old(asyncio.get_running_loop().time())
            for message in self._cursor.fresh(mail.messages):
                self._take(message)
        return True

    # --- another epoch, another ingress id

    def _take_epoch(self, mail: IngressMail) -> None:
        """Submit everything pending to a new leader; a lower epoch is not listened to."""
        epoch = mail.epoch
        if epoch <= self.epoch:
            return
        resubmitted = self.epoch > 0
        self.epoch = epoch
        self._submit_everything(resubmitted=resubmitted)
        if resubmitted or 0 < self.configured_epoch < epoch:
            self._is_prepared.clear()
            asyncio.get_running_loop().call_later(_PREPARED_WITHIN_S, self._is_prepared.set)
            self._run(self._announce_epoch(epoch))

    async def _announce_epoch(self, epoch: Epoch) -> None:
        """Run `on_new_epoch`, again while it fails; submissions wait for the first time only."""
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
        """Submit everything under another id: the scheduler has ended what the old one had."""
        self.ingress_id = _new_ingress_id()
        self._pending.change_ingress_id(self.ingress_id)
        self._submit_everything(resubmitted=True)

    def _submit_everything(self, *, resubmitted: bool) -> None:
        """Queue everything pending, for a scheduler that knows nothing of it."""
        self._cursor.reset()
        self._unsent = self._pending.all_submissions(self._unsent, resubmitted=resubmitted)
        self._unsent.append(Resubmitted(self.ingress_id))
        self._has_unsent.set()

    # --- calls that fail

    def _note_failure(self, call: str, error: Exception) -> None:
        """Log a failed call; a scheduler that is only being started again is no news."""
        if isinstance(error, SchedulerSuperseded):
            if self._superseded_at is None:
                self._superseded_at = asyncio.get_running_loop().time()
                log_event(logger, logging.ERROR, "scheduler.superseded", reason=error.message)
            elif self._is_given_up():
                self._on_given_up()
        elif isinstance(error, RayActorError | ConnectionLost):
            self._superseded_at = None  # the next to answer may be another one
        else:
            log_event(logger, logging.ERROR, "scheduler.call_failed", call=call, reason=str(error))

    def _is_given_up(self) -> bool:
        """Return whether the scheduler has answered for too long that another one leads."""
        since, now = self._superseded_at, asyncio.get_running_loop().time()
        return since is not None and now - since >= _GIVE_UP_S

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _new_ingress_id() -> IngressId:
    return f"ingress-{uuid.uuid4().hex[:12]}"
