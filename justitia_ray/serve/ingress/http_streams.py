"""Streamed answers over HTTP: never silent for long, and failed in the form of their API."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import EngineFailed, JustitiaError, StreamRefused
from justitia_ray.protocol.errors import engine_error_in_form, engine_error_object, status_of
from justitia_ray.protocol.stream_forms import Keepalive, StreamForm
from justitia_ray.serve.asgi import Send
from justitia_ray.serve.ingress.http_errors import UNFORESEEN, headers_of_limits
from justitia_ray.serve.ingress.replica_calls import Answer, Head, StreamItem
from justitia_ray.serve.ingress.waiting_streams import KEEPALIVE, PlainWait, Wait, silence_s
from justitia_ray.units import Seconds

_STREAM_HEAD = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of a stream for proxies: nginx buffers a response without them."""
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
_SLACK_S: Seconds = 0.001
"""Silence by which a timer may be early."""


@dataclass(frozen=True, slots=True)
class KeepaliveTerms:
    """When and how a silent stream gets a sign of life."""

    interval_s: Seconds
    """Longest silence."""
    kind: Keepalive = Keepalive.EVENT


class SignsOfLife:
    """Signs of life in one stream; the first may begin it, with status 200.

    One timer a stream, which a chunk does not touch: it looks when the last bytes went when it is
    due, and waits for the rest.
    """

    def __init__(
        self, reply: "Reply", form: StreamForm, terms: KeepaliveTerms, since: Seconds
    ) -> None:
        """Begin to watch a stream.

        Args:
            reply: The answer to the call.
            form: Its events.
            terms: When and how.
            since: Loop time of the request.
        """
        self.form = form
        self.spoke_at = since
        """Loop time of the last bytes."""
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
            self._timer = self._loop.call_at(since + self._quiet_s, self._look)

    def begin_wait(self, wait: Wait) -> None:
        """Note that the stream waits for a lease; comments say how it stands."""
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
        """Whether `settle` has to be awaited before anything else is sent."""
        return self._task is not None

    async def settle(self) -> None:
        """Let a sign of life that is being sent be whole, and drop one that is only being made."""
        task = self._task
        if task is None:
            return
        if not self._is_sending:
            task.cancel()
        await asyncio.wait({task})
        if self._task is None:
            return
        self._rest()
        if not task.cancelled():
            task.result()

    async def stop(self) -> None:
        """Send no more, once a sign of life that is being sent is whole."""
        await self.settle()
        self.end()

    def end(self) -> None:
        """Send no more."""
        self.note_wait(waits=False)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_take_failure)

    # --- inside

    def _look(self) -> None:
        if self._reply.has_ended:
            return
        now = self._loop.time()
        due_at = self.spoke_at + self._quiet_s
        if due_at - now > _SLACK_S:
            self._timer = self._loop.call_at(due_at, self._look)
        elif self._reply.is_sending or not self.form.is_between_events:
            self._timer = self._loop.call_at(now + self._early_s, self._look)
        else:
            self._task = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
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
        self._rest()

    def _rest(self) -> None:
        self._task, self._is_sending = None, False
        self.spoke_at = self._loop.time()
        self._timer = self._loop.call_at(self.spoke_at + self._quiet_s, self._look)


def _take_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # taken, so that asyncio does not report it as never retrieved


class Reply:
    """The answer to one call, sent whole or in chunks."""

    def __init__(self, path: str, send: Send) -> None:
        self.path = path
        """Path of the call's endpoint, whose clients know a form of errors."""
        self.begun = False
        """Whether the caller has a status."""
        self.is_sending = False
        """Whether the head or a chunk waits for a caller that reads slowly."""
        self.has_ended = False
        """Whether nothing more may be sent: the end, or a whole answer, is sent."""
        self.standings: Callable[[], tuple[LimitStanding, ...]] = tuple
        """Returns the limits of the caller's tenant, once that is known."""
        self.early_head: Mapping[str, str] = {}
        """Headers of a stream that begins with a sign of life, beside its content type."""
        self.on_failure: Callable[[int], None] = lambda status: None
        """Told the status that the call would have had, if it fails after its head."""
        self.signs: SignsOfLife | None = None
        """Signs of life of a stream."""
        self._send = send

    async def send_whole(self, answer: Answer) -> None:
        """Send an engine's whole answer, its error in the form of the endpoint's clients."""
        status, head, body = answer
        if status >= 400:
            body = engine_error_in_form(self.path, status, body)
        self.has_ended = True
        await self.begin(status, {"content-length": str(len(body))} | head)
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, head: Mapping[str, str]) -> None:
        """Send status and headers."""
        standings = self.standings()
        if standings:
            head = {**head, **headers_of_limits(self.path, standings)}
        raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in head.items()]
        self.begun = self.is_sending = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        self.is_sending = False

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a piece of the body."""
        self.is_sending = True
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.is_sending = False

    async def end(self) -> None:
        """Say that the body was all."""
        self.has_ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    # --- streams

    def keep_alive(self, form: StreamForm, terms: KeepaliveTerms, since: Seconds) -> None:
        """Keep the answer alive from now on: it will be a stream.

        Args:
            form: The stream's events.
            terms: When and how it gets a sign of life.
            since: Loop time of the request.
        """
        self.signs = SignsOfLife(self, form, terms, since)

    async def fail(self, error: Exception) -> None:
        """End a stream that has begun with the event that says why, unless the engine has said."""
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
    """End a stream that fails in the block after its head in the form of its API.

    The error goes on: Serve counts it.
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
    """Send a streamed answer, with the replica's own status if that comes soon.

    Otherwise a stream of status 200 begins with a sign of life; an error that comes later is an
    event in the stream.

    Args:
        reply: The answer to the call, which is kept alive.
        items: (status, headers), then the body in chunks; an empty one says that the stream waits
            again. Closed at the end.
        wait: What comments say while it waits for a lease; None: that it waits.

    Raises:
        JustitiaError: As the items do, and `StreamRefused`.
    """
    signs, time = reply.signs, asyncio.get_running_loop().time
    assert signs is not None
    signs.begin_wait(wait or PlainWait())
    waits = True
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
        waits = False
        async for chunk in cast("AsyncGenerator[bytes]", items):
            if waits != (not chunk):
                waits = not chunk
                signs.note_wait(waits=waits)
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
    """Return the first item of an answer.

    Raises:
        TypeError: If it is none.
    """
    if isinstance(item, bytes):
        raise TypeError("a stream must begin with its head")
    return item


async def rest_of(items: AsyncGenerator[StreamItem]) -> bytes:
    """Return the body of an answer whose head was read."""
    return b"".join(cast("list[bytes]", [item async for item in items]))
