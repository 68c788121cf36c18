"""Calls to the scheduler that fail: what is logged, and when nothing is waited for any more."""

import asyncio
import logging
from collections.abc import Callable

from ray.exceptions import RayActorError, RayError

from justitia_ray.errors import SchedulerSuperseded
from justitia_ray.observability.log_events import log_event
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_RETRY_S: Seconds = 0.2
_GIVE_UP_S: Seconds = 10.0
"""A scheduler that lost its office to its own successor is not reached any more after so long."""


class FailedCalls:
    """Notices when a scheduler has lost its office for good."""

    def __init__(self, on_given_up: Callable[[], None]) -> None:
        """Begin with a scheduler that answers.

        Args:
            on_given_up: Called at every failure from when it is given up until it answers.
        """
        self._on_given_up = on_given_up
        self._superseded_at: Seconds | None = None
        """Since when the scheduler says that another one is in office."""

    def answered(self) -> None:
        """A scheduler in office has answered."""
        self._superseded_at = None

    def note(self, call: str, error: RayError) -> None:
        """Log that it failed a call; one that is only being started again is no news."""
        if isinstance(error, SchedulerSuperseded):
            if self._superseded_at is None:
                self._superseded_at = asyncio.get_running_loop().time()
                log_event(logger, logging.ERROR, "scheduler.superseded", reason=error.message)
            elif self.is_given_up():
                self._on_given_up()
        elif not isinstance(error, RayActorError):
            log_event(logger, logging.ERROR, "scheduler.call_failed", call=call, reason=str(error))

    def is_given_up(self) -> bool:
        """Return whether it has said for too long that another one is in office."""
        since, now = self._superseded_at, asyncio.get_running_loop().time()
        return since is not None and now - since >= _GIVE_UP_S


async def pause() -> None:
    """Wait before a call is repeated."""
    await asyncio.sleep(_RETRY_S)
