"""The caller's end of a connection: calls with an answer, and streams with flow control."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from justitia_ray.errors import ConnectionLost, RemoteFailure, error_class
from justitia_ray.serve.transport.connection import Connection, Socket
from justitia_ray.serve.transport.frames import (
    Answer,
    Call,
    Cancel,
    End,
    Failure,
    Item,
    Message,
    PauseStream,
    ResumeStream,
)
from justitia_ray.serve.transport.methods import Method
from justitia_ray.units import Seconds

_PAUSED_ITEMS = 64
"""Number of unread items after which a stream is paused, to limit memory."""


class Link(Protocol):
    """A connection to another process, over which its methods are called."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost, so that every further call fails."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return the answer of a method; a cancellation cancels the call in the other process.

        Raises:
            ConnectionLost: If the connection is lost first; the call may have been executed.
            JustitiaError: The errors of the method.
        """

    def stream(self, method: str, *arguments: Any) -> AsyncGenerator[list[Any]]:
        """Yield the items of a method's stream in lists, each with all that have arrived.

        Closing the generator early cancels the call at the other side.

        Raises:
            ConnectionLost: If the connection is lost first.
            JustitiaError: The errors of the method.
        """

    def abandon(self, first: object, error: Exception) -> None:
        """End calls whose first argument is `first` with an error, also in the other process."""

    async def close(self) -> None: ...


class _Pending:
    """State of a running call: the received answers, and the task that waits for more."""

    __slots__ = ("error", "first", "is_ended", "is_paused", "items", "waiter")

    def __init__(self, first: object) -> None:
        self.first = first
        self.items: deque[msgspec.Raw] = deque()
        self.error: Exception | None = None
        self.is_ended = False
        self.is_paused = False
        self.waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def end(self, error: Exception | None = None) -> None:
        self.is_ended, self.error = True, error
        self.wake()


class SocketLink:
    """Connection to another process over a WebSocket, for calling its methods.

    Args:
        socket: The WebSocket, after its handshake.
        peer: Name of the process at the other end, for errors.
        methods: Methods that can be called there.
        standstill_s: Longest silence of the process while its machine answers.
    """

    def __init__(
        self,
        socket: Socket,
        peer: str,
        methods: Mapping[str, Method],
        standstill_s: Seconds = 0.0,
    ) -> None:
        self._peer = peer
        self._methods = methods
        self._connection = Connection(socket, self._take_message, self._end_all, standstill_s)
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._reason = ""
        self.is_lost = False
        """Whether the connection is lost, so that every further call fails."""
        self._running = asyncio.get_running_loop().create_task(self._connection.run())

    async def call(self, method: str, *arguments: Any) -> Any:
        number, pending = self._begin_call(method, arguments)
        try:
            if not pending.is_ended:
                await pending.wait()
            if pending.error is not None:
                raise pending.error
            return self._decode_answer(method, pending.items.popleft())
        finally:
            self._end_call(number, pending)

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[list[Any]]:
        number, pending = self._begin_call(method, arguments)
        try:
            while True:
                if not pending.items:
                    if pending.error is not None:
                        raise pending.error
                    if pending.is_ended:
                        return
                    await pending.wait()
                    continue
                items = [self._decode_answer(method, raw) for raw in pending.items]
                pending.items.clear()
                if pending.is_paused:
                    pending.is_paused = False
                    self._connection.send(ResumeStream(number))
                yield items
        finally:
            self._end_call(number, pending)

    def abandon(self, first: object, error: Exception) -> None:
        """End some running calls with an error; see `Link.abandon`. O(running calls)."""
        for number, pending in self._pending.items():
            if pending.first == first and not pending.is_ended:
                self._connection.send(Cancel(number))
                pending.items.clear()  # Items that the caller has not read are dropped.
                pending.end(error)

    async def close(self) -> None:
        self.is_lost = True
        self._connection.abort("it is closed here")
        await asyncio.wait([self._running])

    def _begin_call(self, method: str, arguments: tuple[Any, ...]) -> tuple[int, _Pending]:
        if self.is_lost:
            raise self._lost_error()
        number, pending = next(self._numbers), _Pending(arguments[0] if arguments else None)
        packed: Any = self._methods[method].pack_arguments(arguments)
        self._connection.send(Call(number, method, packed))
        self._pending[number] = pending
        return number, pending

    def _decode_answer(self, method: str, raw: msgspec.Raw) -> Any:
        try:
            return self._methods[method].read_answer(raw)
        except (msgspec.MsgspecError, KeyError) as error:
            raise RemoteFailure(
                f"the answer of {self._peer} to {method} cannot be read: {error}"
            ) from None

    def _end_call(self, number: int, pending: _Pending) -> None:
        if self._pending.pop(number, None) is not None and not pending.is_ended:
            self._connection.send(Cancel(number))

    def _take_message(self, message: Message) -> None:
        pending = self._pending.get(message.id)
        if pending is None or pending.is_ended:
            return  # The call has already ended on this side; its caller may have dropped items.
        if isinstance(message, Item):
            pending.items.append(message.value)
            pending.wake()
            if len(pending.items) >= _PAUSED_ITEMS and not pending.is_paused:
                pending.is_paused = True
                self._connection.send(PauseStream(message.id))
        elif isinstance(message, Answer):
            pending.items.append(message.value)
            pending.end()
        elif isinstance(message, End):
            pending.end()
        elif isinstance(message, Failure):
            pending.end(_error_of(message, self._peer))

    def _end_all(self, reason: str) -> None:
        self.is_lost, self._reason = True, reason
        for pending in self._pending.values():
            if not pending.is_ended:
                pending.end(self._lost_error())

    def _lost_error(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self._peer} is lost: {self._reason}")


def _error_of(failure: Failure, peer: str) -> Exception:
    """Return the error with which a call failed in the other process."""
    kind = error_class(failure.error)
    if kind is not None:
        with suppress(TypeError):  # An argument that could not be encoded was sent as text.
            return kind(*failure.arguments)
    return RemoteFailure(f"{peer} failed to answer: {failure.error}; its log says why")
