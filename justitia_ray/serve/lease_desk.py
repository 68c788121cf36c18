"""The leases of one replica: armed, running, finished; what the next pull has to say of them.

Plain asyncio, without Ray. Messages from the scheduler come in through `read`, payloads through
`hold`, and `report` makes the next report.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.errors import EngineError, UnknownLease
from justitia_ray.protocol.messages import ReplicaMessage
from justitia_ray.serve.engine import Engine
from justitia_ray.units import LeaseId, ReplicaId, Seconds, Tokens

_REMEMBERED_S: Seconds = 60.0
"""A scheduler that takes office is told what finished so lately: its ingresses may not know."""


class HeldState(StrEnum):
    """Where a held lease is."""

    ARMED = "armed"
    RUNNING = "running"


@dataclass(slots=True)
class HeldLease:
    """A lease that this replica may run, or runs."""

    lease_id: LeaseId
    priority: int
    armed_at: Seconds
    """By the loop's clock."""
    state: HeldState = HeldState.ARMED
    task: asyncio.Task[object] | None = None
    """What runs it."""
    aborted: bool = False
    outcome: Outcome | None = Outcome.CANCELLED
    """What to report at the end; whoever runs the call sets it."""


class LeaseDesk:
    """Arms, holds and reports leases."""

    def __init__(self, replica_id: ReplicaId, engine: Engine, grace_s: Seconds) -> None:
        """Start with no lease.

        Args:
            replica_id: This replica, for errors.
            engine: Whose meters are read.
            grace_s: How long a payload may come before its lease.
        """
        self._replica_id = replica_id
        self._engine = engine
        self._grace_s = grace_s
        self._held: dict[LeaseId, HeldLease] = {}
        self._arrivals: dict[LeaseId, asyncio.Event] = {}
        self._finished: dict[LeaseId, LeaseFinished] = {}
        """Not confirmed."""
        self._remembered: deque[tuple[Seconds, LeaseFinished]] = deque()
        self.prompt_tokens: Tokens = 0
        """Of all calls that have ended here."""
        self.output_tokens: Tokens = 0
        """Likewise."""
        self.news = asyncio.Event()
        """Set when a report is worth making before its time."""

    @property
    def held(self) -> int:
        """Leases armed or running."""
        return len(self._held)

    def leases(self) -> Mapping[LeaseId, HeldLease]:
        """Return the leases armed or running, for reading."""
        return self._held

    def unconfirmed(self) -> list[LeaseId]:
        """Return the leases whose end the scheduler has not confirmed."""
        return list(self._finished)

    @property
    def parked(self) -> int:
        """Leases whose payload is here and that are not armed yet."""
        return len(self._arrivals)

    def read(self, messages: Iterable[ReplicaMessage]) -> None:
        """Take in what the scheduler says."""
        for message in messages:
            if isinstance(message, Grant):
                self._arm(message)
            else:
                self._abort(message)

    @asynccontextmanager
    async def hold(self, lease_id: LeaseId) -> AsyncGenerator[HeldLease]:
        """Run a payload under its lease, in this task; its end is the lease's.

        Raises:
            UnknownLease: If the lease does not come within the grace time, runs already, or is
                aborted while its payload runs.
        """
        lease = await self._find(lease_id)
        lease.state = HeldState.RUNNING
        lease.task = asyncio.current_task()
        try:
            yield lease
        except EngineError:
            lease.outcome = None
            raise
        except asyncio.CancelledError:
            if lease.aborted and lease.task is not None and not lease.task.uncancel():
                raise UnknownLease(lease_id, self._replica_id) from None
            raise
        finally:
            self._finish(lease)

    def report(self) -> tuple[tuple[LeaseProgress, ...], tuple[LeaseFinished, ...]]:
        """Return the progress of every held lease, and the ends that are not confirmed.

        An end is in every report until it is confirmed: of two reports that overtake each other
        the older one is not taken, and a lease that neither names would be taken for lost.
        """
        self.news.clear()
        progress = []
        for lease_id, lease in self._held.items():
            used = self._engine.progress(lease_id)
            is_running = lease.state is HeldState.RUNNING
            progress.append(
                LeaseProgress(lease_id, used.prompt_tokens, used.output_tokens, is_running)
            )
        return tuple(progress), tuple(self._finished.values())

    def confirm(self, finished: Iterable[LeaseFinished]) -> None:
        """The scheduler has these ends; remember them in case it is replaced."""
        now = asyncio.get_running_loop().time()
        for end in finished:
            if self._finished.pop(end.lease_id, None) is not None:
                self._remembered.append((now, end))
        while self._remembered and self._remembered[0][0] < now - _REMEMBERED_S:
            self._remembered.popleft()

    def report_all_again(self) -> None:
        """Another scheduler took office: tell it what finished lately too."""
        booked = {end.lease_id: end._replace(booked=True) for _, end in self._remembered}
        self._finished = booked | self._finished
        self._remembered.clear()

    def _arm(self, grant: Grant) -> None:
        if grant.lease_id in self._held:
            return
        now = asyncio.get_running_loop().time()
        self._held[grant.lease_id] = HeldLease(grant.lease_id, grant.priority, now)
        waiting = self._arrivals.pop(grant.lease_id, None)
        if waiting is not None:
            waiting.set()

    def _abort(self, abort: Abort) -> None:
        lease = self._held.get(abort.lease_id)
        if lease is None:
            return
        if lease.task is None:
            del self._held[abort.lease_id]
        elif not lease.aborted:
            lease.aborted = True
            lease.task.cancel()

    async def _find(self, lease_id: LeaseId) -> HeldLease:
        if lease_id not in self._held:
            # The pull's answer may be on its way: park the payload.
            arrival = self._arrivals.setdefault(lease_id, asyncio.Event())
            try:
                await asyncio.wait_for(arrival.wait(), self._grace_s)
            except TimeoutError:
                raise UnknownLease(lease_id, self._replica_id) from None
            finally:
                self._arrivals.pop(lease_id, None)
        lease = self._held.get(lease_id)
        if lease is None or lease.state is HeldState.RUNNING:
            raise UnknownLease(lease_id, self._replica_id)
        return lease

    def _finish(self, lease: HeldLease) -> None:
        used = self._engine.release(lease.lease_id)
        self.prompt_tokens += used.prompt_tokens
        self.output_tokens += used.output_tokens
        del self._held[lease.lease_id]
        if not lease.aborted:  # whoever aborted it has forgotten it
            self._finished[lease.lease_id] = LeaseFinished(
                lease.lease_id, used.prompt_tokens, used.output_tokens, lease.outcome
            )
            self.news.set()
