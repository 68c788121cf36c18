"""Several inferences of one application at once."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def fan_out(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls side by side and return their results in order.

    The first failure cancels the others, which frees what the service had set aside for them, and
    is raised as it is; `asyncio.TaskGroup` would wrap it, `asyncio.gather` leave the rest running.

    ```
    texts = await fan_out(app.chat(part, max_tokens=200) for part in parts)
    ```
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* Exception as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first
