"""A scheduler's time in office: its epoch, how it is confirmed, and how it ends."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.errors import SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.intake import Intake
from justitia_ray.serve.saver import Saver
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import StaleEpoch, StoredState
from justitia_ray.units import Epoch, Seconds

logger = logging.getLogger(__name__)

_ADVICE = (
    "two deployments of one name and model on one Redis take the office from each other: give one"
    " of them another name; to take it back here, end the other one, then run `justitia shutdown`"
    " and deploy again"
)


class Tenure:
    """From taking office to losing it to a later scheduler."""

    def __init__(
        self,
        keeper: StateKeeper,
        intake: Intake,
        state: Callable[[], tuple[SchedulerCore, dict[str, Any]]],
        on_lost: Callable[[], None],
        on_outranked: Callable[[Epoch], None],
        save_interval_s: Seconds,
        clock: SteadyClock,
    ) -> None:
        """Prepare; `begin` takes office.

        Args:
            keeper: Of the durable state.
            intake: Told which applications are stored.
            state: Returns what is to be saved: the core, and the settings in force.
            on_lost: Called when another scheduler turns out to be in office; `lost` says who.
            on_outranked: Called with a higher epoch that callers know though the store does not:
                it was emptied or set back. Nobody who knows that epoch listens to this scheduler,
                so one has to take office above it.
            save_interval_s: See `Saver`.
            clock: See `Saver`.
        """
        self.epoch: Epoch = 0
        self.in_office = asyncio.Event()
        """Set once what the last scheduler left is there to go on with, and not cleared."""
        self.lost: str | None = None
        """Who is in office instead, and what to do."""
        self.succeeded = False
        """Whether that is another process of this very actor, started in its place."""
        self._keeper = keeper
        self._intake = intake
        self._state = state
        self._on_lost = on_lost
        self._on_outranked = on_outranked
        self._heard: Epoch = 0
        self._saver = Saver(self._save, lambda: keeper.trouble is not None, save_interval_s, clock)

    async def begin(self, above: Epoch) -> StoredState:
        """Take office, above another epoch too, and return what the last scheduler left."""
        self.epoch, stored = await self._keeper.take_office(above)
        self._saver.took_office()
        return stored

    async def keep_saving(self) -> None:
        """Save until cancelled; have a store that fails started again if it is ours."""
        await self._saver.run(self._keeper.revive)

    def end_saving(self) -> None:
        """Let `keep_saving` end when it is cancelled."""
        self._saver.end()

    async def save_a_last_time(self) -> None:
        """Save what there is, once `keep_saving` has ended; then nothing is stored any more."""
        await self._saver.save_once()
        self._intake.close()

    def save_soon(self) -> None:
        """Save without waiting, unless the store is away: then it is tried often enough."""
        if self._keeper.trouble is None:
            self._saver.save_soon()

    def check(self) -> None:
        """Let nobody be served by a scheduler that has lost its office.

        Raises:
            SchedulerSuperseded: If so.
        """
        if self.lost is not None:
            raise SchedulerSuperseded(self.lost)

    def standing(self) -> dict[str, Any]:
        """Return whether it serves calls, what is wrong, and its epoch."""
        return {
            "ready": self.in_office.is_set() and self.lost is None,
            "degraded": self.lost or self._keeper.trouble,
            "epoch": self.epoch,
        }

    async def confirmed(self) -> None:
        """Wait until what was decided may be handed out, unless `check` then says that it may not.

        See `Saver` for when that takes a save.
        """
        if not self._saver.is_confirmed():
            await self._saver.next_save()

    def heard_of(self, epoch: Epoch) -> None:
        """Somebody called who knows another epoch; see at once what the store says to a higher."""
        if epoch > max(self.epoch, self._heard):
            self._heard = epoch
            self._saver.save_soon()

    async def _save(self) -> bool:
        if self.lost is not None:
            return False
        heard, arrived = self._heard, self._intake.unstored()
        core, settings = self._state()
        try:
            saved = await self._keeper.save(core, self.epoch, settings)
        except StaleEpoch as error:
            self._lose(error)
            return False
        if saved:
            self._intake.stored(arrived)
        if saved and heard > self.epoch:
            self._heard = 0
            log_event(
                logger, logging.WARNING, "scheduler.outranked", epoch=self.epoch, heard_of=heard
            )
            self._on_outranked(heard)
        return saved

    def _lose(self, error: StaleEpoch) -> None:
        self.succeeded = error.succeeded
        self.lost = f"this scheduler has lost its office: {error}; {_ADVICE}"
        log_event(logger, logging.WARNING, "scheduler.superseded", reason=str(error))
        self._intake.close()
        self._on_lost()
