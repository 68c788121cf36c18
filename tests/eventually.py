"""Polling for a condition in tests, in place of fixed sleeps."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def eventually(
    condition: Callable[[], Any], what: str, within_s: float = 10.0, *, every_s: float = 0.02
) -> Any:
    """Return the first true result of `condition`; fail the test if none comes in time.

    Args:
        condition: Asked again and again; plain or asynchronous.
        what: What is waited for, for the failure.
        within_s: Deadline, in seconds; generous, for it is only waited for by a failing test.
        every_s: Between two questions, in seconds; longer where a question is much work.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        held = await answer if inspect.isawaitable(answer) else answer
        if held:
            return held
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(every_s)
