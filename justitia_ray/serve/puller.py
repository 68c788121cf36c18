"""The loop in which a replica reports to the scheduler and asks it for work.

Plain asyncio around a scheduler handle: one pull is outstanding, and a newer one releases it.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ray.exceptions import RayActorError, RayError

from justitia_ray.config import ReplicaSection
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.errors import EngineError, SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import Pull, ReplicaMail
from justitia_ray.serve.engine import Engine, EngineCapacity
from justitia_ray.serve.lease_desk import LeaseDesk
from justitia_ray.units import Epoch, ReplicaId, Tokens

logger = logging.getLogger("ray.serve")  # Serve adds the replica and the request

_RETRY_S = 0.2
_REJOIN_S = 5.0
"""Serve stops a replica that is to leave within 2 s after its last call."""
_GOODBYE_S = 2.0


class Puller:
    """Carries a desk's reports to the scheduler, and the scheduler's messages to the desk."""

    def __init__(
        self,
        replica_id: ReplicaId,
        scheduler: Any,
        desk: LeaseDesk,
        engine: Engine,
        capacity: EngineCapacity,
        section: ReplicaSection,
        on_engine_died: Callable[[EngineError], None],
    ) -> None:
        """Prepare; `run` begins to pull.

        Args:
            replica_id: Under which this replica pulls.
            scheduler: Handle of the scheduler actor.
            desk: The leases of this replica.
            engine: Whose memory is told, and which is looked at after every pull.
            capacity: What the engine can hold.
            section: How often to report.
            on_engine_died: Told each time the engine is found dead.
        """
        self._replica_id = replica_id
        self._scheduler = scheduler
        self._desk = desk
        self._engine = engine
        self._capacity = ReplicaCapacity(
            capacity.kv_tokens, capacity.block_size, capacity.max_num_seqs
        )
        self._section = section
        self._on_engine_died = on_engine_died
        self._epoch: Epoch = 0
        self._numbers = itertools.count(1)
        self._cursor = Cursor()
        self._unused_since: float | None = None
        self.draining = False
        """Set it, and every pull from then on says that no new lease is taken."""
        self.backlog_kv_tokens: Tokens = 0
        """KV that everything waiting would need, as the scheduler last said."""

    @property
    def epoch(self) -> Epoch:
        """The scheduler's epoch, as last heard; 0 before."""
        return self._epoch

    async def run(self) -> None:
        """Report and ask for work for ever; a newer pull releases the one before it."""
        pulls: set[asyncio.Task[bool]] = set()
        loop = asyncio.get_running_loop()
        while True:
            pulled_at = loop.time()
            pull = asyncio.create_task(self._pull())
            pulls.add(pull)
            pull.add_done_callback(pulls.discard)
            news = asyncio.create_task(self._desk.news.wait())
            try:
                await asyncio.wait(
                    [pull, news],
                    timeout=self._section.report_interval_s if self._desk.held else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                news.cancel()
            if not pull.done():
                pause_s = pulled_at + self._section.pull_interval_s - loop.time()
                await asyncio.sleep(max(0.0, pause_s))
            elif not pull.result():
                await asyncio.sleep(_RETRY_S)
            self._look_at_engine()

    async def leave(self) -> None:
        """Tell the scheduler that this replica is gone; one that cannot be reached finds out."""
        with suppress(RayError, TimeoutError):
            await asyncio.wait_for(self._scheduler.leave.remote(self._replica_id), _GOODBYE_S)

    async def _pull(self) -> bool:
        """Pull once; return whether the scheduler could be reached."""
        progress, finished = self._desk.report()
        pull = Pull(
            replica_id=self._replica_id,
            epoch=self._epoch,
            number=next(self._numbers),
            ack=self._cursor.ack,
            capacity=self._capacity,
            free_kv_tokens=self._engine.free_kv_tokens(),
            progress=progress,
            finished=finished,
            preemptions=self._engine.preemptions(),
            wait_s=self._section.heartbeat_s,
            draining=self.draining,
        )
        try:
            mail: ReplicaMail = await self._scheduler.pull.remote(pull)
        except RayError as error:
            # The one is only being started again, the other says itself what is wrong.
            if not isinstance(error, RayActorError | SchedulerSuperseded):
                reason = str(error)
                log_event(
                    logger, logging.ERROR, "scheduler.call_failed", call="pull", reason=reason
                )
            return False
        if mail.epoch != pull.epoch:
            self._take_epoch(mail.epoch)
            return True
        if mail.epoch == self._epoch:  # another scheduler may have taken office meanwhile
            self._desk.confirm(finished)
            self._desk.read(self._cursor.fresh(mail.messages))
            self.backlog_kv_tokens = mail.backlog_kv_tokens
            await self._rejoin_if_unused(mail.draining)
        return True

    async def _rejoin_if_unused(self, told_to_drain: bool) -> None:
        """Begin anew if this replica is taken for one that leaves, and Serve lets it be.

        An ingress reports a replica gone that Serve has not told it of in time. Serve stops one
        that really leaves as soon as nothing runs on it.
        """
        now = asyncio.get_running_loop().time()
        if not told_to_drain or self.draining or self._desk.held:
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = now
        elif now - self._unused_since >= _REJOIN_S:
            self._unused_since = None
            log_event(logger, logging.WARNING, "replica.rejoins")
            with suppress(RayError):
                await self._scheduler.leave.remote(self._replica_id)

    def _take_epoch(self, epoch: Epoch) -> None:
        """Report to a new scheduler from the start; one of a lower epoch is not listened to."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._cursor.reset()
            self._desk.report_all_again()
            self._desk.news.set()

    def _look_at_engine(self) -> None:
        try:
            self._engine.check()
        except EngineError as error:
            self._on_engine_died(error)
