"""Streamed HTTP answers: keepalives during silence, and errors in the form of the path's API."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import EngineFailed, JustitiaError, StreamRefused
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.errors import engine_error_in_form, engine_error_object, status_of
from justitia_ray.protocol.stream_forms import Keepalive, StreamForm
from justitia_ray.serve.asgi import Send
from justitia_ray.serve.ingress.http_errors import UNFORESEEN, headers_of_limits
from justitia_ray.serve.ingress.replica_calls import Head, StreamItem
from justitia_ray.serve.ingress.waiting_streams import KEEPALIVE, PlainWait, Wait, silence_s
from justitia_ray.units import Seconds

_STREAM_HEAD = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Response headers of a stream, for proxies; nginx would otherwise buffer it."""
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
_SLACK_S: Seconds = 0.001
"""Seconds by which a timer of keepalives may fire early."""


@dataclass(frozen=True, slots=True)
class KeepaliveTerms:
    """Interval and form of the keepalives of a silent stream."""

    interval_s: Seconds
    """Longest silence of a stream before a keepalive, in seconds."""
    kind: Keepalive = Keepalive.EVENT


class SignsOfLife:
    """Keepalives of one stream; the first may start the response, with status 200.

    A stream has one timer, which a chunk does not reset: when it fires, it checks when the last
    bytes were sent, and is set again for the remaining time.

    Args:
        reply: The answer to the call.
        form: Event format of the stream.
        terms: Interval and form of the keepalives.
        since: Time of the request (loop clock, seconds).
    """

    def __init__(
        self, reply: "Reply", form: StreamForm, terms: KeepaliveTerms, since: Seconds
    ) -> None:
        self.form = form
        self.spoke_at = since
        """Time at which the last bytes of the stream were sent, in seconds of the loop's clock."""
        self._reply = reply
        self._kind = terms.kind
        self._quiet_s = silence_s(terms.interval_s)
        self._early_s = terms.interval_s - self._quiet_s
        self._wait: Wait = PlainWait()
        self._waits = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        if self._kind is not Keepalive.NONE:
            self._timer = self._loop.call_at(since + self._quiet_s, self._keep_alive_if_due)

    def begin_wait(self, wait: Wait) -> None:
        """Note that the stream waits for a lease; keepalive comments then describe the wait."""
        self.note_wait(waits=False)
        self._wait = wait
        self.note_wait(waits=True)

    def note_wait(self, *, waits: bool) -> None:
        """Note whether the stream waits for a lease."""
        if waits != self._waits:
            self._waits = waits
            (self._wait.begin if waits else self._wait.end)()

    @property
    def is_speaking(self) -> bool:
        """Whether a keepalive is being sent; `settle` must be awaited before any other send."""
        return self._task is not None

    async def settle(self) -> None:
        """Wait until a keepalive is sent, or cancel it if it is only being prepared."""
        task = self._task
        if task is None:
            return
        if not self._is_sending:
            task.cancel()
        await asyncio.wait({task})
        if self._task is None:
            return
        self._restart_timer()
        if not task.cancelled():
            task.result()

    async def stop(self) -> None:
        """Stop the keepalives; one that is being sent is completed."""
        await self.settle()
        self.end()

    def end(self) -> None:
        """Stop the keepalives at once, even while one is being sent."""
        self.note_wait(waits=False)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_retrieve_failure)

    # --- timer

    def _keep_alive_if_due(self) -> None:
        if self._reply.has_ended:
            return
        now = self._loop.time()
        due_at = self.spoke_at + self._quiet_s
        if due_at - now > _SLACK_S:
            self._timer = self._loop.call_at(due_at, self._keep_alive_if_due)
        elif self._reply.is_sending or not self.form.is_between_events:
            self._timer = self._loop.call_at(now + self._early_s, self._keep_alive_if_due)
        else:
            self._task = asyncio.create_task(self._send_keepalive())

    async def _send_keepalive(self) -> None:
        comment = KEEPALIVE
        if self._waits and self._kind is not Keepalive.CHUNK:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._early_s / 2):
                    comment = await self._wait.comment()
        self._is_sending = True
        if not self._reply.begun:
            await self._reply.begin(200, {**_EVENTS, **_STREAM_HEAD, **self._reply.early_head})
        is_news = comment is not KEEPALIVE
        await self._reply.send_chunk(self.form.keepalive(self._kind, comment, is_news=is_news))
        self._restart_timer()

    def _restart_timer(self) -> None:
        self._task, self._is_sending = None, False
        self.spoke_at = self._loop.time()
        self._timer = self._loop.call_at(self.spoke_at + self._quiet_s, self._keep_alive_if_due)


def _retrieve_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # asyncio reports exceptions that are never retrieved


class Reply:
    """Answer to one call, sent whole or in chunks."""

    def __init__(self, path: str, send: Send) -> None:
        self.path = path
        """Path of the call's endpoint, which determines the form of its errors."""
        self.begun = False
        """Whether the response's head (status and headers) was sent."""
        self.is_sending = False
        """Whether a send is in progress, for example to a caller that reads slowly."""
        self.has_ended = False
        """Whether the end of the answer was sent, after which nothing may follow."""
        self.standings: Callable[[], tuple[LimitStanding, ...]] = tuple
        """Function that returns the rate limits of the caller's tenant; set once the tenant is
        known.
        """
        self.early_head: Mapping[str, str] = {}
        """Additional response headers of a stream that starts with a keepalive."""
        self.on_failure: Callable[[int], None] = lambda status: None
        """Function that is called with an error's HTTP status if the stream fails after its head.
        """
        self.signs: SignsOfLife | None = None
        """Keepalives of the stream; None before `keep_alive` is called."""
        self._send = send

    async def send_whole(self, answer: Answer) -> None:
        """Send an engine's whole answer; an error takes the form of the endpoint's API."""
        status, head, body = answer
        if status >= 400:
            body = engine_error_in_form(self.path, status, body)
        self.has_ended = True
        await self.begin(status, {"content-length": str(len(body))} | head)
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, head: Mapping[str, str]) -> None:
        standings = self.standings()
        if standings:
            head = {**head, **headers_of_limits(self.path, standings)}
        raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in head.items()]
        self.begun = self.is_sending = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        self.is_sending = False

    async def send_chunk(self, chunk: bytes) -> None:
        self.is_sending = True
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.is_sending = False

    async def end(self) -> None:
        self.has_ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    # --- streams

    def keep_alive(self, form: StreamForm, terms: KeepaliveTerms, since: Seconds) -> None:
        """Send keepalives from now on, because the answer will be a stream.

        Args:
            form: Event format of the stream.
            terms: Interval and form of the keepalives.
            since: Time of the request (loop clock, seconds).
        """
        self.signs = SignsOfLife(self, form, terms, since)

    async def fail(self, error: Exception) -> None:
        """End a started stream with an error event, unless the engine has sent one."""
        if self.signs is None or self.has_ended:
            return
        await self.signs.stop()
        told = error if isinstance(error, JustitiaError) else UNFORESEEN
        self.on_failure(status_of(told)[0])
        form = self.signs.form
        if isinstance(told, StreamRefused):
            await self.send_chunk(form.refusal(told.status, told.error))
        elif not isinstance(told, EngineFailed):
            await self.send_chunk(form.failure(told))
        await self.end()


@asynccontextmanager
async def ended_in_form(reply: Reply) -> AsyncIterator[None]:
    """If the block fails after the head was sent, end the stream in the form of its API.

    The error is raised again: Serve counts it.
    """
    try:
        yield
    except Exception as error:
        if reply.begun:
            await reply.fail(error)
        raise
    finally:
        if reply.signs is not None:
            reply.signs.end()


async def send_stream(
    reply: Reply, items: AsyncGenerator[StreamItem], wait: Wait | None = None
) -> None:
    """Send a streamed answer, with the replica's own status if it arrives before a keepalive.

    Otherwise a keepalive starts the stream with status 200, and a later error becomes an event.

    Args:
        reply: The answer to the call, with `keep_alive` called.
        items: (status, headers), then the body in chunks; an empty chunk means that the stream
            waits for a lease again. The iterator is closed at the end.
        wait: Source of the keepalive comments while the stream waits for a lease; None: a plain
            comment.

    Raises:
        JustitiaError: If `items` raise it; `StreamRefused` for an error status after a keepalive.
    """
    signs, time = reply.signs, asyncio.get_running_loop().time
    assert signs is not None
    signs.begin_wait(wait or PlainWait())
    async with aclosing(items):
        status, head = as_head(await anext(items))
        if status >= 400:
            whole = await rest_of(items)
            await signs.stop()
            if not reply.begun:
                await reply.send_whole((status, head, whole))
                return
            raise StreamRefused(status, engine_error_object(reply.path, status, whole))
        await signs.settle()
        if not reply.begun:
            await reply.begin(status, head | _STREAM_HEAD)
            signs.spoke_at = time()
        signs.note_wait(waits=False)
        async for chunk in cast("AsyncGenerator[bytes]", items):
            signs.note_wait(waits=not chunk)
            if not chunk:
                continue
            if signs.is_speaking:
                await signs.settle()
            passed = signs.form.passed(chunk)
            if passed:
                await reply.send_chunk(passed)
                signs.spoke_at = time()
        await signs.stop()
        await reply.end()


def as_head(item: StreamItem) -> Head:
    """Check that the first item of an answer's stream is status and headers, and return it.

    Raises:
        TypeError: If the item is a part of the body.
    """
    if isinstance(item, bytes):
        raise TypeError("a stream must begin with its head")
    return item


async def rest_of(items: AsyncGenerator[StreamItem]) -> bytes:
    """Return the rest of an answer's body, in one piece."""
    return b"".join(cast("list[bytes]", [item async for item in items]))
