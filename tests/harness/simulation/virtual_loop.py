"""Event loop whose time jumps to the next deadline, and simulated processes on it.

Minutes pass in milliseconds, in one deterministic order. The loop uses public methods of asyncio's
base loop, without sockets and threads. A process is a marker in the context of its tasks and
timers: the loop checks it before each callback, so that everything in one process pauses and dies
together.
"""

import asyncio
import heapq
import random
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, ClassVar, TypeVar

from justitia_ray.units import Seconds

T = TypeVar("T")

CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)
"""The simulated process whose code is running."""


class Process:
    """Simulated process of the service, with its tasks."""

    def __init__(self, name: str) -> None:
        """Create a process without tasks.

        Args:
            name: For the trace, and for links: `scheduler`, `ingress-0`, `replica-1`, `store`.
        """
        self.name = name
        self.alive = True
        self.paused = False
        self.parked: list[asyncio.Handle] = []
        """Callbacks held back since the process was paused."""
        self._context = Context()
        self._context.run(CURRENT.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def run(self, function: Callable[..., T], *args: Any) -> T:
        return self._context.copy().run(function, *args)

    def register_task(self, task: "asyncio.Task[Any]") -> None:
        """Register a task of this process; cancel the task if the process is dead."""
        self._tasks.append(task)
        if not self.alive:
            task.cancel()
        if len(self._tasks) > self._prune_at:
            self._tasks = self.running_tasks
            self._prune_at = 64 + 2 * len(self._tasks)

    @property
    def running_tasks(self) -> "list[asyncio.Task[Any]]":
        """Tasks that have not ended, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def die(self) -> None:
        """End the process now; none of its later actions has an effect."""
        self.alive = False
        self.paused = False
        for task in self.running_tasks:
            task.cancel()


_MOST_TURNS = 400_000
"""Callback limit that detects endless loops; a simulation takes some ten thousand callbacks."""


class NothingLeftToDo(RuntimeError):
    """All tasks wait for an event that will never happen, or the loop never ends."""


class _Callback(asyncio.TimerHandle):
    """Event-loop callback with the process that it belongs to."""

    __slots__ = ("is_timer", "process")

    def __init__(
        self,
        at: Seconds,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
        *,
        is_timer: bool,
    ) -> None:
        super().__init__(at, callback, args, loop, context)
        self.is_timer = is_timer
        self.process = CURRENT.get() if context is None else context.get(CURRENT)


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop that runs each process only while the process lives and is not paused."""

    STARTS_AT: ClassVar[Seconds] = 1_000.0

    def __init__(self, rng: random.Random | None = None) -> None:
        super().__init__()
        self._rng = rng
        self._now = self.STARTS_AT
        self._turns: deque[_Callback] = deque()
        self._timers: list[tuple[Seconds, int, _Callback]] = []
        self._sequence = 0
        self._halted = False
        self._generators: weakref.WeakSet[AsyncGenerator[Any]] = weakref.WeakSet()
        self.taken = 0
        """Number of callbacks run so far."""
        self.uncaught_errors: list[str] = []
        """Errors that no task or caller has caught."""

    def time(self) -> Seconds:
        return self._now

    def call_soon(  # type: ignore[override]  # Unpack is not needed here
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback at the current time, after the callbacks that are ready now."""
        turn = _Callback(self._now, callback, args, self, context, is_timer=False)
        self._turns.append(turn)
        return turn

    def call_at(  # type: ignore[override]  # as above
        self,
        when: Seconds,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        turn = _Callback(when, callback, args, self, context, is_timer=True)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, turn))
        return turn

    def create_task(  # type: ignore[override]  # the base's signature differs by version
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        """Run a coroutine in the process that starts it."""
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is None and context is not None:
            process = CURRENT.get()
            context.run(CURRENT.set, process)
        task = super().create_task(coro, context=context)
        if process is not None:
            process.register_task(task)
        return task

    def run_in_executor(  # type: ignore[override]  # as above
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run a function meant for another thread at once, in this thread."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def run_forever(self) -> None:
        """Run until `stop` is called; raise NothingLeftToDo if nothing can call it."""
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generators.add, self._schedule_generator_close)
        asyncio._set_running_loop(self)
        self._halted = False
        try:
            while not self._halted:
                self._run_callbacks()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*before)

    def stop(self) -> None:
        """Make `run_forever` return after the callbacks that are ready now."""
        self._halted = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an uncaught error."""
        error = context.get("exception")
        self.uncaught_errors.append(f"{context.get('message')}: {error!r}")

    async def close_generators(self) -> None:
        """Close asynchronous generators that were left open."""
        for generator in list(self._generators):
            await generator.aclose()

    def _schedule_generator_close(self, generator: AsyncGenerator[Any]) -> None:
        self.create_task(_close_generator(generator))

    def _run_callbacks(self) -> None:
        turns, timers = self._turns, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not turns:
            if not timers:
                raise NothingLeftToDo("everything waits, and nothing will ever happen")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            turns.append(heapq.heappop(timers)[2])
        if self._rng is not None and len(turns) > 1:
            self._rng.shuffle(turns)
        self.taken += len(turns)
        if self.taken > _MOST_TURNS:
            raise NothingLeftToDo(f"after {_MOST_TURNS} callbacks there is no end")
        for _ in range(len(turns)):
            turn = turns.popleft()
            if turn.cancelled():
                continue
            process = turn.process
            if process is None or (process.alive and not process.paused):
                turn._run()
            elif process.paused:
                process.parked.append(turn)
            elif not turn.is_timer:
                turn._run()  # Tasks of dead processes end without effects outside the loop.

    def unpark(self, process: Process) -> None:
        """Schedule the held-back callbacks of a process that resumes."""
        self._turns.extend(turn for turn in process.parked if isinstance(turn, _Callback))
        process.parked.clear()


def unpark(process: Process) -> None:
    """Schedule the held-back callbacks of a process that resumes, on the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.unpark(process)


async def _close_generator(generator: AsyncGenerator[Any]) -> None:
    await generator.aclose()


def run_virtually(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run a coroutine to its end on a loop of virtual time, and close the loop.

    Raises:
        NothingLeftToDo: If it waits for what never happens.
    """
    loop = VirtualLoop() if loop is None else loop
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
