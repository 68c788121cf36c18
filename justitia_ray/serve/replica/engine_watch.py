"""Loop that watches an engine's steps and reports when it stalls and when it continues."""

import asyncio
import logging
from collections.abc import Callable

from justitia_ray.errors import EngineError
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.engine import Engine
from justitia_ray.serve.replica.stalls import LOOK_S, StallWatch

logger = logging.getLogger("ray.serve")  # Serve's logger adds the replica and the request.


class EngineWatch:
    """Watches an engine for stalls; after a lasting stall kills it, so that it is replaced.

    Args:
        engine: The engine.
        stalls: Detects the engine's stalls.
        on_change: Called when the engine stalls, and when it continues.
        on_killed: Called with the reason after the engine was killed.
    """

    def __init__(
        self,
        engine: Engine,
        stalls: StallWatch,
        on_change: Callable[[], None],
        on_killed: Callable[[EngineError], None],
    ) -> None:
        self._engine = engine
        self._stalls = stalls
        self._on_change = on_change
        self._on_killed = on_killed

    async def run(self) -> None:
        """Watch the engine until it is killed for a lasting stall."""
        stalls, clock = self._stalls, asyncio.get_running_loop().time
        while not stalls.is_lasting:
            was_stalled, silent_s = stalls.is_stalled, stalls.silent_s + (stalls.stalled_s or 0.0)
            stalls.look(clock(), self._engine.steps(), self._engine.suspended)
            if stalls.is_stalled and not was_stalled:
                self._log_stall()
                self._on_change()
            elif was_stalled and not stalls.is_stalled:
                log_event(logger, logging.WARNING, "replica.goes_on", silent_s=round(silent_s, 1))
                self._on_change()
            await asyncio.sleep(LOOK_S)
        reason = (
            f"the engine has made no step for {stalls.silent_s + (stalls.stalled_s or 0.0):.0f} s"
            f" although it had work{self._suspension_note()}; it was killed"
        )
        await asyncio.to_thread(self._engine.kill)
        self._on_killed(EngineError(reason))

    def _log_stall(self) -> None:
        stalls = self._stalls
        log_event(
            logger,
            logging.ERROR,
            "replica.stalled",
            silent_s=round(stalls.silent_s, 1),
            limit_s=round(stalls.limit_s, 1),
            suspended=self._engine.suspended() or None,
        )

    def _suspension_note(self) -> str:
        suspended = self._engine.suspended()
        return f": {suspended} is suspended" if suspended else ""
