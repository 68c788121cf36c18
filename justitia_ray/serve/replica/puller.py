"""Loop in which a replica reports to the scheduler and pulls leases from it.

It uses asyncio and a link to the scheduler. Only one pull waits at the scheduler: a newer pull ends
the wait of the earlier one.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from justitia_ray.config import ReplicaSection
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.errors import (
    ConnectionLost,
    EngineError,
    JustitiaError,
    SchedulerSuperseded,
)
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.engine import Engine, EngineCapacity
from justitia_ray.protocol.inspection import HeldLeaseReport, ReplicaReport
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import NOT_TAKEN, Pull, ReplicaMail
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.replica.stalls import StallWatch
from justitia_ray.units import Epoch, ReplicaId, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.serve.replica.call_holds import CallHolds

logger = logging.getLogger("ray.serve")  # Serve's logger adds the replica and the request.

_RETRY_S = 0.2
_GOODBYE_S = 2.0


class Puller:
    """Sends the replica's reports to the scheduler, whose answers it gives to the lease table.

    Args:
        replica_id: Id of this replica.
        scheduler: Link to the scheduler.
        leases: Leases of this replica.
        engine: Engine whose free memory is reported, and which is checked after every pull.
        capacity: Capacity of the engine.
        section: Intervals of reports.
        on_engine_died: Called each time the engine is found dead.
        address: Address at which ingresses can call this replica.
        stalls: Shows whether the engine is stalled.
        prefill: Cost of computing prompts that was measured; None: it was not measured.
        holds: Receives the holds of contexts; None: the engine holds none.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        scheduler: Any,
        leases: LeaseTable,
        engine: Engine,
        capacity: EngineCapacity,
        section: ReplicaSection,
        on_engine_died: Callable[[EngineError], None],
        address: str,
        stalls: StallWatch,
        prefill: MeasuredPrefill | None = None,
        holds: "CallHolds | None" = None,
    ) -> None:
        self._replica_id = replica_id
        self._scheduler = scheduler
        self._leases = leases
        self._engine = engine
        self._capacity = ReplicaCapacity(
            capacity.kv_tokens,
            capacity.block_size,
            capacity.max_num_seqs,
            capacity.caches_prefixes,
            capacity.holds_contexts,
            capacity.host_kv_tokens,
        )
        self._section = section
        self._on_engine_died = on_engine_died
        self._address = address
        self._stalls = stalls
        self._prefill = prefill
        self._holds = holds
        self.epoch: Epoch = 0
        """Epoch in the scheduler's last answer; 0 before any answer."""
        self._numbers = itertools.count(1)
        self._cursor = Cursor()
        self._progress_due_at = 0.0
        """Loop time from which the next call must report every held lease; 0 if an earlier report
        may be lost.
        """
        self.draining = False
        """Whether every report says that this replica accepts no new leases."""
        self.backlog_kv_tokens: Tokens = 0
        """KV tokens that all waiting inferences would need, in the scheduler's last answer."""

    async def run(self) -> None:
        """Send reports and fetch leases until cancelled; a newer call ends the wait of the last."""
        pulls: set[asyncio.Task[bool]] = set()
        loop = asyncio.get_running_loop()
        while True:
            pulled_at = loop.time()
            pull = asyncio.create_task(self._send_pull(self._next_pull(pulled_at)))
            pulls.add(pull)
            pull.add_done_callback(pulls.discard)
            news = asyncio.create_task(self._leases.news.wait())
            until_due_s = max(0.0, self._progress_due_at - pulled_at)
            try:
                await asyncio.wait(
                    [pull, news],
                    timeout=until_due_s if self._leases.held_leases else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                news.cancel()
            if not pull.done():
                pause_s = pulled_at + self._section.pull_interval_s - loop.time()
                await asyncio.sleep(max(0.0, pause_s))
            elif not pull.result():
                await asyncio.sleep(_RETRY_S)
            if (trouble := self._engine_error()) is not None:
                self._on_engine_died(trouble)

    async def leave(self) -> None:
        """Report the last ended leases and leave the scheduler, after `run` has ended; at most 2 s.

        A lease whose end is not reported would be treated as lost with the replica, and its
        inference would run again. A scheduler that cannot be reached notices the replica's absence
        itself.
        """
        with suppress(JustitiaError, TimeoutError):
            await asyncio.wait_for(self._leave_scheduler(), _GOODBYE_S)

    async def _leave_scheduler(self) -> None:
        while self._leases.unconfirmed:
            if not await self._send_pull(
                self._next_pull(asyncio.get_running_loop().time(), wait_s=0.0)
            ):
                await asyncio.sleep(_RETRY_S)
        await self._scheduler.call("leave", self._replica_id)

    def report(self) -> ReplicaReport:
        """Return the state of this replica's engine and leases, for an inspection."""
        trouble = self._engine_error()
        now = asyncio.get_running_loop().time()
        return ReplicaReport(
            epoch=self.epoch,
            draining=self.draining,
            engine=None if trouble is None else str(trouble),
            stalled_s=self._stalls.stalled_s,
            kv_tokens=self._capacity.kv_tokens,
            free_kv_tokens=self._engine.free_kv_tokens(),
            held={
                lease_id: HeldLeaseReport(
                    state="armed" if lease.task is None else "running",
                    age_s=now - lease.armed_at,
                    aborted=lease.aborted,
                )
                for lease_id, lease in self._leases.held_leases.items()
            },
            unconfirmed=tuple(self._leases.unconfirmed),
        )

    def _next_pull(self, now: Seconds, wait_s: Seconds | None = None) -> Pull:
        """Return the next report: ended leases without confirmation and, if due, all held leases.

        Args:
            now: Current time (loop clock).
            wait_s: How long the scheduler may hold the pull; None: as configured.
        """
        progress = None
        if now >= self._progress_due_at:
            self._progress_due_at = now + self._section.report_interval_s
            progress = self._leases.report_progress()
        failure = self._leases.failure
        if wait_s is None:
            is_urgent = failure is not None and not self._leases.failure_told.is_set()
            wait_s = 0.0 if is_urgent else self._section.heartbeat_s
        return Pull(
            replica_id=self._replica_id,
            epoch=self.epoch,
            number=next(self._numbers),
            ack=self._cursor.ack,
            capacity=self._capacity,
            free_kv_tokens=self._engine.free_kv_tokens(),
            progress=progress,
            finished=self._leases.report_ends(),
            preemptions=self._engine.preemptions(),
            wait_s=wait_s,
            draining=self.draining,
            address=self._address,
            stalled=self._stalls.is_stalled,
            hangs=self._stalls.hangs,
            failure=failure,
            prefill=self._prefill,
            kept=None if self._holds is None else self._engine.kept_kv(),
        )

    async def _send_pull(self, pull: Pull) -> bool:
        """Send a report to the scheduler; return whether the next may follow at once.

        It may not if no scheduler was reached, or only one that this replica ignores: one with a
        lower epoch answers at once, for as long as the store that lost the epochs is unreachable.
        """
        try:
            mail: ReplicaMail = await self._scheduler.call("pull", pull)
        except JustitiaError as error:
            self._progress_due_at = 0.0
            # Errors of a restarting scheduler are not logged; the sender logs SchedulerSuperseded.
            if not isinstance(error, ConnectionLost | SchedulerSuperseded):
                reason = str(error)
                log_event(
                    logger, logging.ERROR, "scheduler.call_failed", call="pull", reason=reason
                )
            return False
        if mail.epoch != pull.epoch:
            self._progress_due_at = 0.0
            self._take_epoch(mail.epoch)
            return mail.epoch == NOT_TAKEN or mail.epoch > pull.epoch
        if mail.epoch == self.epoch:  # Another scheduler may have become leader during the call.
            self._leases.confirm_ends(pull.finished)
            if pull.failure is not None:
                self._leases.failure_told.set()
            messages = self._cursor.fresh(mail.messages)
            if self._holds is not None:
                self._holds.read(messages)
            self._leases.read_messages(messages)
            self.backlog_kv_tokens = mail.backlog_kv_tokens
        return True

    def _take_epoch(self, epoch: Epoch) -> None:
        """Start over with a scheduler that has a higher epoch; ignore lower epochs."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._cursor.reset()
            self._leases.report_ends_again()
            self._leases.news.set()

    def _engine_error(self) -> EngineError | None:
        try:
            self._engine.check()
        except EngineError as error:
            return error
        return None
