"""Processes of a history: what runs in one stands still and dies together.

A process is a mark in the context of its tasks and timers; `virtual_loop` looks at it before it
runs anything.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)
"""The process in which the running code is."""


class Process:
    """One of the processes of the service."""

    def __init__(self, name: str) -> None:
        """Start a process that runs nothing yet.

        Args:
            name: For the story, and for links: `scheduler`, `ingress-0`, `replica-1`, `store`.
        """
        self.name = name
        self.alive = True
        self.paused = False
        self.parked: list[asyncio.Handle] = []
        """What it should have done since it was paused."""
        self._context = Context()
        self._context.run(CURRENT.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine in this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in this process."""
        return self._context.copy().run(function, *args)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Note a task of this process; a dead one runs nothing any more."""
        self._tasks.append(task)
        if not self.alive:
            task.cancel()
        if len(self._tasks) > self._prune_at:
            self._tasks = self.tasks
            self._prune_at = 64 + 2 * len(self._tasks)

    @property
    def tasks(self) -> "list[asyncio.Task[Any]]":
        """What has not ended of its tasks, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def die(self) -> None:
        """End at this instant: nothing it does from now on is seen by others."""
        self.alive = False
        self.paused = False
        for task in self.tasks:
            task.cancel()
