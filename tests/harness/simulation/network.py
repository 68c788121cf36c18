"""Simulated network: calls on Ray's handles that are late, lost, repeated or overtaken.

The network fails as Ray does: a call that gets no answer raises RayActorError eventually and may
have been executed. Streams keep the order of their items, as one connection does. The service's own
connections are in `connections`.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from tests.harness.simulation.virtual_loop import CURRENT, Process


class Response:
    """Simulated call without an answer so far; awaiting it gives the answer."""

    def __init__(self, answer: "asyncio.Future[Any]", cancel: Callable[[], None]) -> None:
        self._answer = answer
        self._cancel_call = cancel

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer.__await__()

    def cancel(self) -> None:
        """Cancel the call at the called process; the caller stops waiting."""
        self._cancel_call()


class Stream:
    """Simulated streamed call."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()
        self._cancel_call = cancel
        self.arrives_at: Seconds = 0.0
        """Earliest arrival time of the next item."""

    def put(self, item: Any) -> None:
        """Deliver an item; an exception or None ends the stream."""
        self._items.append(item)
        self._news.set()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def cancel(self) -> None:
        self._cancel_call()


_FAST_S: tuple[Seconds, Seconds] = (0.0002, 0.003)
GAP_S: Seconds = 1e-6
"""Shortest time in seconds between two items of a stream: simultaneous events have no fixed order.
"""
NOTICED_S: tuple[Seconds, Seconds] = (0.001, 0.5)
"""Range of the seconds until a caller notices that its call, or the called process, is lost."""


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """Probabilities that simulated messages are late, lost or repeated."""

    slow: float = 0.02
    slow_s: Seconds = 0.2
    """Largest delay of a slow message, in seconds."""
    lost: float = 0.0
    unanswered: float = 0.0
    """Probability that a call is executed and its answer lost."""
    repeated: float = 0.0
    """Probability that a call is executed twice."""
    broken: float = 0.0
    """Probability that a frame's connection breaks before or after its arrival."""

    @property
    def loses_no_message(self) -> bool:
        """Whether no message is lost."""
        return not self.lost and not self.unanswered and not self.broken


class CutKind(StrEnum):
    """Effect of a cut network link on its connections."""

    LATE = "late"
    """Delays all messages until the link is restored."""
    RESET = "reset"
    """Connections break at once, and new ones are refused."""
    SILENT = "silent"
    """Connections never deliver anything again; attempts to open new ones get no answer."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut of a network link, which delivers nothing until a given time."""

    until: Seconds
    kind: CutKind
    """Effect of the cut on connections; Ray calls over the link are late or lost accordingly."""


class Network:
    """Network between simulated processes: it delays, loses and repeats their calls."""

    def __init__(self, rng: random.Random, on_bug: Callable[[str, BaseException], None]) -> None:
        """Create a network that loses no message.

        Args:
            rng: Decides the fate of every message.
            on_bug: Told of a call that raised what no caller should see.
        """
        self.conditions = NetworkConditions()
        self.struck: dict[str, int] = {"lost": 0, "unanswered": 0, "repeated": 0, "broken": 0}
        """Number of disturbed calls and frames, by kind of disturbance."""
        self.rng = rng
        self._on_bug = on_bug
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._loop = asyncio.get_running_loop()
        self._nowhere = Context()

    @property
    def now(self) -> Seconds:
        return self._loop.time()

    def cut(self, one: str, other: str, cut: Cut) -> None:
        self._cuts[link_name(one, other)] = cut

    def cut_between(self, one: str, other: str) -> Cut | None:
        """Return the current cut of the link between two processes; None if the link works."""
        cut = self._cuts.get(link_name(one, other)) if self._cuts else None
        return None if cut is None or cut.until <= self._loop.time() else cut

    def call(
        self,
        source: Process,
        target: Process,
        work: Callable[[], Coroutine[Any, Any, Any]],
        what: str,
        not_before: Seconds = 0.0,
    ) -> Response:
        """Run a coroutine in another process, and return its future answer."""
        tasks: list[asyncio.Task[Any]] = []
        answer = self._loop.create_future()
        response = Response(answer, lambda: self._cancel_call(source, target, tasks))
        if not source.alive:
            answer.cancel()
            return response

        def run_at_target(first: bool) -> None:
            if not target.alive:
                self.deliver_error(answer, RayActorError())
                return
            task = target.start(work())
            tasks.append(task)
            if first:
                task.add_done_callback(send_answer, context=self._nowhere)
            else:
                task.add_done_callback(_discard_result, context=self._nowhere)

        def send_answer(task: "asyncio.Task[Any]") -> None:
            error = self._error_at_caller(task, target, what)
            at = self._arrival_time(target, source)
            if at is None or not target.alive or self.draw_disturbance("unanswered"):
                self.deliver_error(answer, RayActorError())
            else:
                self.at(at, _settle_future, answer, None if error else task.result(), error)

        at = self._arrival_time(source, target)
        if at is None or self.draw_disturbance("lost"):
            self.deliver_error(answer, RayActorError())
            return response
        self.at(max(at, not_before), run_at_target, True)
        if self.draw_disturbance("repeated"):
            again = self._arrival_time(source, target)
            if again is not None:
                self.at(again + self.rng.uniform(0.0, 1.0), run_at_target, False)
        return response

    def stream(
        self,
        source: Process,
        target: Process,
        work: Callable[[], AsyncIterator[Any]],
        what: str,
        not_before: Seconds = 0.0,
    ) -> Stream:
        """Run an iterator in another process, and return the stream of its items."""
        tasks: list[asyncio.Task[Any]] = []
        stream = Stream(lambda: self._cancel_call(source, target, tasks))

        def send_item(item: Any) -> None:
            at = self._arrival_time(target, source)
            if at is None or not target.alive:
                send_failure()
                return
            stream.arrives_at = max(stream.arrives_at + GAP_S, at)
            self.at(stream.arrives_at, stream.put, item)

        def send_failure() -> None:
            at = self._loop.time() + self.rng.uniform(*NOTICED_S)
            stream.arrives_at = max(stream.arrives_at + GAP_S, at)
            self.at(stream.arrives_at, stream.put, RayActorError())

        async def run_iterator() -> None:
            async for item in work():
                send_item(item)

        def start_at_target() -> None:
            if not target.alive:
                send_failure()
                return
            task = target.start(run_iterator())
            tasks.append(task)
            task.add_done_callback(send_end, context=self._nowhere)

        def send_end(task: "asyncio.Task[Any]") -> None:
            error = self._error_at_caller(task, target, what)
            if target.alive:
                send_item(error)
            else:
                send_failure()

        at = self._arrival_time(source, target)
        if not source.alive:
            return stream
        if at is None or self.draw_disturbance("lost"):
            send_failure()
        else:
            self.at(max(at, not_before), start_at_target)
        return stream

    def deliver_error(self, answer: "asyncio.Future[Any]", error: BaseException) -> None:
        """Deliver an error to a caller, with a short delay."""
        at = self._loop.time() + self.rng.uniform(*NOTICED_S)
        self.at(at, _settle_future, answer, None, error)

    def later(self, delay_s: Seconds, action: Callable[[], None]) -> None:
        """Schedule an action outside every simulated process, after a delay."""
        self.at(self._loop.time() + delay_s, action)

    def _cancel_call(
        self, source: Process, target: Process, tasks: "list[asyncio.Task[Any]]"
    ) -> None:
        at = self._arrival_time(source, target)
        if at is not None and source.alive:
            self.at(at, lambda: [task.cancel() for task in tasks])

    def _arrival_time(self, source: Process, target: Process) -> Seconds | None:
        """Return the arrival time of a message sent now; None if the message is lost."""
        delay = self.delay()
        cut = self.cut_between(source.name, target.name)
        if cut is not None:
            return cut.until + delay if cut.kind is CutKind.LATE else None
        return self._loop.time() + delay

    def delay(self) -> Seconds:
        """Return a random delay of a message on a link that is not cut."""
        rng, conditions = self.rng, self.conditions
        delay = rng.uniform(*_FAST_S)
        if rng.random() < conditions.slow:
            delay += rng.uniform(0.0, conditions.slow_s)
        return delay

    def draw_disturbance(self, fate: str) -> bool:
        """Decide at random whether a message is disturbed in one way, and count the disturbance."""
        probability: float = getattr(self.conditions, fate)
        struck = probability > 0 and self.rng.random() < probability
        self.struck[fate] += struck
        return struck

    def _error_at_caller(
        self, task: "asyncio.Task[Any]", target: Process, what: str
    ) -> BaseException | None:
        """Return the error that Ray would raise at the caller of an ended call, or None."""
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

    def at(self, at: Seconds, action: Callable[..., Any], *args: Any) -> None:
        """Schedule an action outside every simulated process, at a given time."""
        self._loop.call_at(at, action, *args, context=self._nowhere)


def current_process() -> Process:
    """Return the process whose code is running."""
    process = CURRENT.get()
    assert process is not None, "only a process calls others"
    return process


def link_name(one: str, other: str) -> tuple[str, str]:
    """Return the name of the link between two processes, independent of direction."""
    return (one, other) if one < other else (other, one)


def _settle_future(
    answer: "asyncio.Future[Any]", result: Any, error: BaseException | None = None
) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
        return
    answer.set_exception(error)
    answer.exception()  # Marks the exception as seen, since no caller may await it any more.


def _discard_result(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


class CallTarget(Protocol):
    """Simulated process that takes calls for its actor."""

    process: Process

    @property
    def actor(self) -> Any:
        pass


class _HandleMethod:
    """Method of a simulated actor handle, with its `remote`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class DetachedHandle:
    """Simulated handle of a Ray actor: a scheduler, or the quota service."""

    def __init__(self, network: Network, find: Callable[[Process], CallTarget | None]) -> None:
        self._network = network
        self._find = find

    def __getattr__(self, name: str) -> _HandleMethod:
        def call(*args: Any) -> Response:
            source = current_process()
            found = self._find(source)
            if found is None:
                return failed_call(self._network, RayActorError())
            return self._network.call(
                source, found.process, lambda: getattr(found.actor, name)(*args), name
            )

        method = _HandleMethod(call)
        setattr(self, name, method)
        return method


class UnreachableHandle:
    """Simulated handle of a deployment that cannot be reached."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> _HandleMethod:
        return _HandleMethod(lambda *args: failed_call(self._network, RayActorError()))


def failed_call(network: Network, error: Exception) -> Response:
    answer = asyncio.get_running_loop().create_future()
    network.deliver_error(answer, error)
    return Response(answer, lambda: None)
