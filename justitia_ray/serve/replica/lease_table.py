"""Leases of one replica: armed (waiting for their payload), running, finished; and their reports.

It uses asyncio, but not Ray. Messages from the scheduler arrive through `read_messages`, payloads
through `hold_lease`, and `report_ends` and `report_progress` create the next report.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.events import EngineFailed, LeaseFinished, LeaseProgress, LeaseRun
from justitia_ray.errors import EngineError, UnknownLease
from justitia_ray.protocol.engine import Engine
from justitia_ray.protocol.messages import ReplicaMessage
from justitia_ray.units import LeaseId, ReplicaId, Seconds, Tokens

_REMEMBERED_S: Seconds = 60.0
"""Seconds for which finished leases are reported to a new leader, in case the last leader did not
store them.
"""


@dataclass(slots=True)
class HeldLease:
    """Lease that the replica may run once the payload arrives, or runs already."""

    lease_id: LeaseId
    priority: int
    armed_at: Seconds
    """Time at which the replica received the lease, in seconds of the loop's clock."""
    task: asyncio.Task[object] | None = None
    """Task that runs the lease's payload; None before the payload has arrived."""
    running_since: Seconds = 0.0
    """Time at which the lease's payload arrived, in seconds of the loop's clock."""
    aborted: bool = False
    outcome: Outcome | None = Outcome.CANCELLED
    """Outcome to report when the lease ends; None if the engine died or the call may run again
    elsewhere.
    """


class LeaseTable:
    """Leases that a replica holds, from their grant by the scheduler to the last report.

    Args:
        replica_id: Id of this replica, for errors.
        engine: Engine whose progress is read.
        grace_s: Grace period for a payload that arrives before the grant of its lease.
    """

    def __init__(self, replica_id: ReplicaId, engine: Engine, grace_s: Seconds) -> None:
        self._replica_id = replica_id
        self._engine = engine
        self._grace_s = grace_s
        self.held_leases: dict[LeaseId, HeldLease] = {}
        """Leases that the replica may run or runs, by id. Other objects must not change them."""
        self.parked: dict[LeaseId, asyncio.Event] = {}
        """Events, by lease id, that wake up a payload when its lease arrives later."""
        self.unconfirmed: dict[LeaseId, LeaseFinished] = {}
        """Reports of ended leases that the scheduler has not confirmed, by lease id."""
        self._remembered: deque[tuple[Seconds, LeaseFinished]] = deque()
        self.failure: EngineFailed | None = None
        """How the engine has failed; None while the engine is alive."""
        self.failure_told = asyncio.Event()
        """Event that is set once the current leader has received `failure`."""
        self._cut: list[LeaseRun] = []
        """Leases cut off by the engine's death, kept until the engine's failure is recorded."""
        self.prompt_tokens: Tokens = 0
        """Prompt tokens of all calls that have ended on this replica."""
        self.output_tokens: Tokens = 0
        """Output tokens of all calls that have ended on this replica."""
        self.cached_tokens: Tokens = 0
        """Prompt tokens of ended calls that were found in the engine's prefix cache."""
        self.news = asyncio.Event()
        """Event that is set when a report is urgent."""
        self._freed = asyncio.Event()

    def read_messages(self, messages: Iterable[ReplicaMessage]) -> None:
        """Accept granted leases and abort others, as the scheduler's messages say."""
        now = asyncio.get_running_loop().time()
        for message in messages:
            if not isinstance(message, Grant | Abort):
                continue  # `CallHolds` reads the orders to hold contexts.
            lease_id = message.lease_id
            lease = self.held_leases.get(lease_id)
            if isinstance(message, Grant):
                if lease is None:
                    self.held_leases[lease_id] = HeldLease(lease_id, message.priority, now)
                    if lease_id in self.parked:
                        self.parked[lease_id].set()
            elif lease is not None:
                if lease.task is None:
                    lease.aborted = True
                    self._finish_lease(lease)
                elif not lease.aborted:
                    lease.aborted = True
                    lease.task.cancel()

    @asynccontextmanager
    async def hold_lease(self, lease_id: LeaseId) -> AsyncGenerator[HeldLease]:
        """Run a payload under its lease in the current task, until the `with` block ends.

        Raises:
            UnknownLease: If the lease is not granted within the grace period, runs already, or is
                aborted while its payload runs.
        """
        if lease_id not in self.held_leases:
            await self._await_grant(lease_id)
        lease = self.held_leases.get(lease_id)
        if lease is None or lease.task is not None:
            raise UnknownLease(lease_id, self._replica_id)
        lease.task = asyncio.current_task()
        lease.running_since = asyncio.get_running_loop().time()
        try:
            yield lease
        except EngineError:
            lease.outcome = None
            self._cut.append(_lease_run(lease))
            raise
        except asyncio.CancelledError:
            if lease.aborted and lease.task is not None and not lease.task.uncancel():
                raise UnknownLease(lease_id, self._replica_id) from None
            raise
        finally:
            self._finish_lease(lease)

    def note_engine_failed(self, cause: FailureCause) -> None:
        """Record the engine's failure and the running leases, for all later reports."""
        running = [
            _lease_run(lease) for lease in self.held_leases.values() if lease.task is not None
        ]
        self.failure = EngineFailed(
            self._replica_id, self._replica_id, cause, (*self._cut, *running)
        )
        self.news.set()

    def report_ends(self) -> tuple[LeaseFinished, ...]:
        """Return the reports of ended leases that the scheduler has not confirmed; clear `news`.

        A lease's end is repeated in every report until it is confirmed: if two reports overtake
        each other the older one is ignored, and a lease missing in both would count as lost.
        """
        self.news.clear()
        return tuple(self.unconfirmed.values())

    def report_progress(self) -> tuple[LeaseProgress, ...]:
        progress = []
        for lease_id, lease in self.held_leases.items():
            used = self._engine.progress(lease_id)
            is_running = lease.task is not None
            progress.append(
                LeaseProgress(
                    lease_id,
                    used.prompt_tokens,
                    used.output_tokens,
                    is_running,
                    used.cached_tokens,
                    used.recomputed_tokens,
                )
            )
        return tuple(progress)

    def confirm_ends(self, finished: Iterable[LeaseFinished]) -> None:
        """Record that the scheduler has received leases' ends; remember them for a new leader."""
        now = asyncio.get_running_loop().time()
        for end in finished:
            if self.unconfirmed.pop(end.lease_id, None) is not None:
                self._remembered.append((now, end))
        while self._remembered and self._remembered[0][0] < now - _REMEMBERED_S:
            self._remembered.popleft()

    def report_ends_again(self) -> None:
        """Report recently finished leases again, because another scheduler has become leader."""
        booked = {end.lease_id: end._replace(booked=True) for _, end in self._remembered}
        self.unconfirmed = booked | self.unconfirmed
        self._remembered.clear()
        self.failure_told.clear()

    async def until_empty(self) -> None:
        """Wait until the replica holds no lease."""
        while self.held_leases:
            self._freed.clear()
            await self._freed.wait()

    async def _await_grant(self, lease_id: LeaseId) -> None:
        """Wait for the grant of a lease whose payload has arrived first."""
        arrival = self.parked.setdefault(lease_id, asyncio.Event())
        try:
            await asyncio.wait_for(arrival.wait(), self._grace_s)
        except TimeoutError:
            raise UnknownLease(lease_id, self._replica_id) from None
        finally:
            self.parked.pop(lease_id, None)

    def _finish_lease(self, lease: HeldLease) -> None:
        used = self._engine.release(lease.lease_id)
        self.prompt_tokens += used.prompt_tokens
        self.output_tokens += used.output_tokens
        self.cached_tokens += used.cached_tokens or 0
        del self.held_leases[lease.lease_id]
        self._freed.set()
        outcome = lease.outcome
        if lease.aborted and outcome is Outcome.CANCELLED:
            # A new scheduler that has not seen the abort may repeat the call.
            outcome = None
        self.unconfirmed[lease.lease_id] = LeaseFinished(
            lease.lease_id,
            used.prompt_tokens,
            used.output_tokens,
            outcome,
            cached_tokens=used.cached_tokens,
            recomputed_tokens=used.recomputed_tokens,
        )
        self.news.set()


def _lease_run(lease: HeldLease) -> LeaseRun:
    return LeaseRun(lease.lease_id, asyncio.get_running_loop().time() - lease.running_since)
