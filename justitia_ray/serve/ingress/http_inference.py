"""The inference endpoints over HTTP: plain ASGI, whole answers, and streams kept alive in waits.

The table of endpoints stands in `protocol.endpoints`; the answers are vLLM's. Nothing but these
paths is hot: a framework's request and response would be a tenth of what the ingress costs.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from justitia_ray.application_key import application_key
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS, read_tier
from justitia_ray.protocol.errors import engine_error_in_form, error_event
from justitia_ray.protocol.inference_body import read_object
from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send
from justitia_ray.serve.ingress.body_room import BodyRoom
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.http_deadline import within_time
from justitia_ray.serve.ingress.http_errors import (
    error_response,
    headers_of_limits,
    unforeseen_response,
)
from justitia_ray.serve.ingress.idempotency import IdempotentAttempts
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import Answer, Head, StreamItem, end_task
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.waiting_streams import PlainWait, Wait
from justitia_ray.units import Seconds

_READ_ON_LOOP_BYTES = 256 * 2**10
"""Longest body that is parsed on the loop: some milliseconds."""
_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


class Reply:
    """The answer to one call, sent whole or in chunks."""

    def __init__(self, path: str, send: Send) -> None:
        self.path = path
        """Path of the call's endpoint, whose clients know a form of errors."""
        self.begun = False
        """Whether the caller has a status."""
        self.standings: Callable[[], tuple[LimitStanding, ...]] = tuple
        """Returns the limits of the caller's tenant, once that is known."""
        self._send = send

    async def send_whole(self, answer: Answer) -> None:
        """Send an engine's whole answer, its error in the form of the endpoint's clients."""
        status, head, body = answer
        if status >= 400:
            body = engine_error_in_form(self.path, status, body)
        await self.begin(status, {"content-length": str(len(body))} | head)
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, head: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.begun = True
        standings = self.standings()
        if standings:
            head = {**head, **headers_of_limits(self.path, standings)}
        raw = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in head.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send_chunk(self, chunk: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """Say that the body was all."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class Comments:
    """Comments in a stream while it waits; the first begins it, with status 200."""

    def __init__(self, reply: Reply, interval_s: Seconds, wait: Wait) -> None:
        self._reply = reply
        self._interval_s = interval_s
        self._wait = wait
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send a comment after each interval from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._begin_task)
        self._wait.begin()

    async def end(self) -> None:
        """Send no more; anything else may be sent afterwards."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._wait.end()
        if self._task is not None:
            await end_task(self._task)
            self._task = None

    def _begin_task(self) -> None:
        self._task = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        while True:
            if not self._reply.begun:
                await self._reply.begin(200, _EVENTS)
            await self._reply.send_chunk(await self._wait.comment())
            await asyncio.sleep(self._interval_s)


async def send_stream(
    reply: Reply,
    items: AsyncGenerator[StreamItem],
    keepalive_s: Seconds,
    wait: Wait | None = None,
) -> None:
    """Send a streamed answer, with the replica's own status if that comes soon.

    Otherwise a stream of status 200 begins and is kept alive by comments; an error that comes later
    is an event in the stream.

    Args:
        reply: The answer to the call.
        items: (status, headers), then the body in chunks; an empty one says that the stream waits
            again. Closed at the end.
        keepalive_s: Time until the first comment of a wait, and between comments.
        wait: What the comments say; None: that it waits.

    Raises:
        JustitiaError: As the items do.
    """
    comments = Comments(reply, keepalive_s, wait or PlainWait())
    comments.begin()
    waits = True
    try:
        async with aclosing(items):
            status, head = _as_head(await anext(items))
            await comments.end()
            if status >= 400:
                whole = b"".join(cast("list[bytes]", [item async for item in items]))
                if not reply.begun:
                    await reply.send_whole((status, head, whole))
                    return
                error = engine_error_in_form(reply.path, status, whole)
                await reply.send_chunk(b"data: " + error + b"\n\n")
                await reply.end()
                return
            if not reply.begun:
                await reply.begin(status, head)
            waits = False
            async for chunk in cast("AsyncGenerator[bytes]", items):
                if waits:
                    await comments.end()
                waits = not chunk
                if waits:
                    comments.begin()
                else:
                    await reply.send_chunk(chunk)
            await comments.end()
            await reply.end()
    finally:
        await comments.end()


def _as_head(item: StreamItem) -> Head:
    if isinstance(item, bytes):
        raise TypeError("a stream must begin with its head")
    return item


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do work for a caller, and cancel it as soon as the caller leaves."""
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not has_left or task.uncancel():
            raise
    finally:
        watcher.cancel()


Respond = Callable[[Reply, RequestContext, bytes], Coroutine[Any, Any, None]]
"""Answers a call, given its context and its body."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A POST path as an ASGI application of its own, which answers errors as all routes do."""

    path: str
    bodies: BodyReader
    respond: Respond
    limit_s: Seconds | None = None
    """Time that a call may take, from its head to the end of its answer; None: any."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one call."""
        reply = Reply(self.path, send)
        try:
            async with within_time(scope, self.limit_s):
                encodings = _header_values(scope, b"content-encoding")
                body = await self.bodies.read_body(_declared_length(scope), receive, encodings)
                await until_disconnect(receive, self.respond(reply, context_of(scope), body))
        except JustitiaError as error:
            if not reply.begun:
                await error_response(self.path, error, reply.standings())(scope, receive, send)
                return
            await reply.send_chunk(error_event(self.path, error, 0))
            await reply.end()
        except Exception as error:
            response = unforeseen_response(scope["path"], error)
            if not reply.begun:
                await response(scope, receive, send)
            raise


async def _close_elsewhere(
    models: ServedModels, model: ServedModel, context: RequestContext
) -> None:
    """Close an application at the other models: its last inference closes it at this one."""
    assert context.application_id is not None
    key = application_key(context.tenant, context.application_id)
    others = [other.scheduler.close_application(key) for other in models if other is not model]
    # One that does not answer now ends the application when that is idle.
    await asyncio.gather(*others, return_exceptions=True)


def _declared_length(scope: Message) -> str:
    return next(iter(_header_values(scope, b"content-length")), "")


def _header_values(scope: Message, name: bytes) -> list[str]:
    return [v.decode("latin-1") for k, v in scope["headers"] if k == name]


async def _read_fields(raw: bytes) -> dict[str, Any]:
    """Return a body's fields; a long one is read in a thread, which lets the loop turn."""
    if len(raw) <= _READ_ON_LOOP_BYTES:
        return read_object(raw)
    return await asyncio.to_thread(read_object, raw)


def inference_endpoints(
    models: ServedModels,
    bodies: BodyReader,
    finder: ApplicationFinder,
    limit_s: Seconds | None = None,
) -> dict[str, AsgiApp]:
    """Return the inference endpoints by path; they share attempts with a key and large bodies.

    Args:
        models: The served models.
        bodies: Reads request bodies.
        finder: Finds the application of each call.
        limit_s: Time that a call may take; None: any.
    """
    section = models.first.config.ingress
    room = BodyRoom(section.max_body_bytes_held)
    attempts = IdempotentAttempts(
        section.retry_linger_s, section.retry_kept_s, section.retry_kept_bytes
    )

    async def infer(reply: Reply, context: RequestContext, raw: bytes) -> None:
        async with room.turn(context.tenant, len(raw)):
            fields = await _read_fields(raw)
            model = models.asked_for(fields)
            gateway = model.gateway
            await gateway.check_served(reply.path)
            body = gateway.parse(reply.path, raw, fields)
            context = replace(context, tier=read_tier(fields))
            body = await gateway.counted(context, body)
        found = await finder.find(context, reply.path, fields)
        reply.standings = partial(gateway.standings, found.context)
        if found.context.is_final and models.only is None:
            await _close_elsewhere(models, model, found.context)
        key = context.idempotency_key
        if key is None and not body.stream:
            answer = await gateway.answer(reply.path, found.context, body)
            await found.read_answer(answer)
            await reply.send_whole(answer)
            return

        application_id = found.context.application_id
        named = None
        if application_id is not None:
            named = application_key(found.context.tenant, application_id)
        wait = gateway.outlooks.wait(named)

        def stream() -> AsyncGenerator[StreamItem]:
            items = gateway.stream(reply.path, found.context, body, wait.note_application)
            return found.reading(items, stream=body.stream)

        if key is None:
            items = stream()
        else:
            # By what the caller says: a retry is to join the attempt whose conversation it begins.
            scope = (context.tenant, context.application_id, key)
            items = attempts.join_attempt(
                hashlib.sha256(json.dumps(scope).encode()).hexdigest(),
                reply.path.encode() + raw,
                stream,
            )
        if body.stream:
            await send_stream(reply, items, section.keepalive_s, wait)
            return
        async with aclosing(items):
            status, head = _as_head(await anext(items))
            whole = b"".join(cast("list[bytes]", [item async for item in items]))
        await reply.send_whole((status, head, whole))

    async def ask_any(reply: Reply, context: RequestContext, raw: bytes) -> None:
        async with room.turn(context.tenant, len(raw)):
            fields = await _read_fields(raw)
            gateway = models.asked_for(fields).gateway
            answer = await gateway.unscheduled(reply.path, raw, fields)
        await reply.send_whole(answer)

    responds: dict[str, Respond] = dict.fromkeys(INFERENCE_PATHS, infer)
    responds |= dict.fromkeys(UNSCHEDULED_PATHS, ask_any)
    return {path: Endpoint(path, bodies, respond, limit_s) for path, respond in responds.items()}
