"""Waiting until something holds on a cluster that is being broken."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds

PATIENCE_S: Seconds = 300.0
"""A process that was killed is started again within this: an engine on busy cores takes longest."""
_POLL_S: Seconds = 0.05


async def until(
    ask: Callable[[], Awaitable[bool]], what: str, within_s: Seconds = PATIENCE_S
) -> None:
    """Return once `ask` answers with true.

    Raises:
        JustitiaError: If it does not in time; the message says what was waited for.
    """
    deadline = time.monotonic() + within_s
    while not await ask():
        if time.monotonic() > deadline:
            raise JustitiaError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(_POLL_S)


def in_thread(condition: Callable[..., bool], *arguments: Any) -> Callable[[], Awaitable[bool]]:
    """Return how to ask for what blocks while it looks."""
    return partial(asyncio.to_thread, condition, *arguments)
