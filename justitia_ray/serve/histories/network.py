"""What stands between the processes of a history: calls that are late, lost, repeated, overtaken.

It fails as Ray does: a call whose answer will not come raises RayActorError in the end, and may
have been executed. Streams keep the order of their items, as one connection does.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError

from justitia_ray.errors import JustitiaError
from justitia_ray.serve.histories.calls import Response, Stream
from justitia_ray.serve.histories.process import CURRENT, Process
from justitia_ray.units import Seconds

_FAST_S: tuple[Seconds, Seconds] = (0.0002, 0.003)
_GAP_S: Seconds = 1e-6
"""Between two items of a stream: what happens at one instant may happen in any order."""
_NOTICED_S: tuple[Seconds, Seconds] = (0.001, 0.5)
"""How long until a caller hears that its call, or the process that had it, is lost."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How calls fare, as probabilities of one message."""

    slow: float = 0.02
    slow_s: Seconds = 0.2
    """A slow message takes up to so much longer."""
    lost: float = 0.0
    unanswered: float = 0.0
    """The call is executed, its answer is lost."""
    repeated: float = 0.0
    """The call is executed twice."""

    @property
    def calm(self) -> bool:
        """Whether nothing is lost."""
        return not self.lost and not self.unanswered


@dataclass(frozen=True, slots=True)
class Cut:
    """A link that carries nothing until an instant."""

    until: Seconds
    loses: bool
    """What is sent is lost; otherwise it arrives when the link is whole again."""


class Network:
    """Carries calls between processes."""

    def __init__(self, lots: random.Random, on_bug: Callable[[str, BaseException], None]) -> None:
        """Start in fair weather.

        Args:
            lots: Decides the fate of every message.
            on_bug: Told of a call that raised what no caller should see.
        """
        self.weather = Weather()
        self.struck: dict[str, int] = {"lost": 0, "unanswered": 0, "repeated": 0}
        """How many calls had that fate."""
        self._lots = lots
        self._on_bug = on_bug
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._loop = asyncio.get_running_loop()
        self._nowhere = Context()

    @property
    def now(self) -> Seconds:
        """The instant, in the loop's seconds."""
        return self._loop.time()

    def cut(self, one: str, other: str, cut: Cut) -> None:
        """Cut the link between two processes, by name."""
        self._cuts[_link(one, other)] = cut

    def joins(self, one: str, other: str) -> bool:
        """Return whether the link between two processes is whole."""
        cut = self._cuts.get(_link(one, other))
        return cut is None or cut.until <= self._loop.time()

    def call(
        self,
        source: Process,
        target: Process,
        work: Callable[[], Coroutine[Any, Any, Any]],
        what: str,
        not_before: Seconds = 0.0,
    ) -> Response:
        """Let another process do something, and return what will be its answer."""
        tasks: list[asyncio.Task[Any]] = []
        answer = self._loop.create_future()
        response = Response(answer, lambda: self._cancel(source, target, tasks))
        if not source.alive:
            answer.cancel()
            return response

        def execute(first: bool) -> None:
            if not target.alive:
                self.fail(answer, RayActorError())
                return
            task = target.start(work())
            tasks.append(task)
            if first:
                task.add_done_callback(answered, context=self._nowhere)
            else:
                task.add_done_callback(_forget, context=self._nowhere)

        def answered(task: "asyncio.Task[Any]") -> None:
            error = self._error_of(task, target, what)
            at = self._arrival(target, source)
            if at is None or not target.alive or self._strikes("unanswered"):
                self.fail(answer, RayActorError())
            else:
                self._at(at, _settle, answer, None if error else task.result(), error)

        at = self._arrival(source, target)
        if at is None or self._strikes("lost"):
            self.fail(answer, RayActorError())
            return response
        self._at(max(at, not_before), execute, True)
        if self._strikes("repeated"):
            again = self._arrival(source, target)
            if again is not None:
                self._at(again + self._lots.uniform(0.0, 1.0), execute, False)
        return response

    def stream(
        self,
        source: Process,
        target: Process,
        work: Callable[[], AsyncIterator[Any]],
        what: str,
        not_before: Seconds = 0.0,
    ) -> Stream:
        """Let another process make items, and return what they arrive in."""
        tasks: list[asyncio.Task[Any]] = []
        stream = Stream(lambda: self._cancel(source, target, tasks))

        def send(item: Any) -> None:
            at = self._arrival(target, source)
            if at is None or not target.alive:
                fail()
                return
            stream.arrives_at = max(stream.arrives_at + _GAP_S, at)
            self._at(stream.arrives_at, stream.put, item)

        def fail() -> None:
            at = self._loop.time() + self._lots.uniform(*_NOTICED_S)
            stream.arrives_at = max(stream.arrives_at + _GAP_S, at)
            self._at(stream.arrives_at, stream.put, RayActorError())

        async def run() -> None:
            async for item in work():
                send(item)

        def execute() -> None:
            if not target.alive:
                fail()
                return
            task = target.start(run())
            tasks.append(task)
            task.add_done_callback(ended, context=self._nowhere)

        def ended(task: "asyncio.Task[Any]") -> None:
            error = self._error_of(task, target, what)
            if target.alive:
                send(error)
            else:
                fail()

        at = self._arrival(source, target)
        if not source.alive:
            return stream
        if at is None or self._strikes("lost"):
            fail()
        else:
            self._at(max(at, not_before), execute)
        return stream

    def fail(self, answer: "asyncio.Future[Any]", error: BaseException) -> None:
        """Let a caller hear of an error, soon."""
        at = self._loop.time() + self._lots.uniform(*_NOTICED_S)
        self._at(at, _settle, answer, None, error)

    def later(self, delay_s: Seconds, action: Callable[[], None]) -> None:
        """Let something happen that no process does."""
        self._at(self._loop.time() + delay_s, action)

    def _cancel(self, source: Process, target: Process, tasks: "list[asyncio.Task[Any]]") -> None:
        at = self._arrival(source, target)
        if at is not None and source.alive:
            self._at(at, lambda: [task.cancel() for task in tasks])

    def _arrival(self, source: Process, target: Process) -> Seconds | None:
        """Return when a message sent now arrives; None if it is lost."""
        now, lots, weather = self._loop.time(), self._lots, self.weather
        delay = lots.uniform(*_FAST_S)
        if lots.random() < weather.slow:
            delay += lots.uniform(0.0, weather.slow_s)
        cut = self._cuts.get(_link(source.name, target.name)) if self._cuts else None
        if cut is not None and cut.until > now:
            return None if cut.loses else cut.until + delay
        return now + delay

    def _strikes(self, fate: str) -> bool:
        probability: float = getattr(self.weather, fate)
        struck = probability > 0 and self._lots.random() < probability
        self.struck[fate] += struck
        return struck

    def _error_of(
        self, task: "asyncio.Task[Any]", target: Process, what: str
    ) -> BaseException | None:
        """Return what Ray would raise at the caller of a call that has ended; None if nothing."""
        if task.cancelled():
            stopped: BaseException = TaskCancelledError() if target.alive else RayActorError()
            return stopped
        error: BaseException | None = task.exception()
        if error is None:
            return None
        if not isinstance(error, JustitiaError):
            self._on_bug(what, error)
        raised = RayTaskError(what, "", error, proctitle="", pid=1, ip="0.0.0.0")
        seen: BaseException = raised.as_instanceof_cause()
        return seen

    def _at(self, at: Seconds, action: Callable[..., Any], *args: Any) -> None:
        self._loop.call_at(at, action, *args, context=self._nowhere)


def here() -> Process:
    """Return the process in which the running code is."""
    process = CURRENT.get()
    assert process is not None, "only a process calls others"
    return process


def _link(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def _settle(answer: "asyncio.Future[Any]", result: Any, error: BaseException | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
        return
    answer.set_exception(error)
    answer.exception()  # nobody may wait for it any more


def _forget(task: "asyncio.Task[Any]") -> None:
    """Whatever a repeated call did, nobody hears of it."""
    if not task.cancelled():
        task.exception()
