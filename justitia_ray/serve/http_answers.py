"""Answers over HTTP: whole, or as a stream of events that is kept alive while it waits."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from fastapi.responses import Response, StreamingResponse

from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.error_forms import engine_error_in_form, error_event
from justitia_ray.serve.keepalive import KEEPALIVE
from justitia_ray.serve.replica_calls import Answer, Head, StreamItem
from justitia_ray.units import Seconds

_EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


async def unary(path: str, items: AsyncGenerator[StreamItem]) -> Response:
    """Answer with all of it.

    Args:
        path: The endpoint's.
        items: (status, headers), then the body; closed here.

    Raises:
        JustitiaError: As the items do, before the first of them.
    """
    async with aclosing(items):
        return await _whole(path, _as_head(await anext(items)), items)


def answered(path: str, answer: Answer) -> Response:
    """Return an answer that is there already."""
    status, head, body = answer
    if status >= 400:
        body = engine_error_in_form(path, status, body)
    return Response(body, status, head)


async def stream(path: str, items: AsyncGenerator[StreamItem], keepalive_s: Seconds) -> Response:
    """Answer with a stream: with the replica's own status if it comes soon.

    While it does not, a stream of status 200 is begun and kept alive by comments; an error that
    comes later is an event in it.

    Args:
        path: The endpoint's.
        items: (status, headers), then the body in chunks; closed with the answer.
        keepalive_s: How soon, and how often a comment comes.

    Raises:
        JustitiaError: As the items do, if that is soon.
    """
    first = asyncio.ensure_future(anext(items))
    try:
        await asyncio.wait([first], timeout=keepalive_s)
        if first.done():
            status, head = _as_head(first.result())
            if status >= 400:
                async with aclosing(items):
                    return await _whole(path, (status, head), items)
            return StreamingResponse(_chunks(items), status, head)
    except BaseException:
        await _abandon(first, items)
        raise
    return StreamingResponse(_kept_alive(path, first, items, keepalive_s), 200, _EVENTS)


async def _whole(path: str, head: Head, items: AsyncGenerator[StreamItem]) -> Response:
    chunks = [item async for item in items if isinstance(item, bytes)]
    return answered(path, (*head, b"".join(chunks)))


async def _chunks(items: AsyncGenerator[StreamItem]) -> AsyncGenerator[bytes]:
    async with aclosing(items):
        async for item in items:
            if isinstance(item, bytes):
                yield item


async def _kept_alive(
    path: str,
    first: asyncio.Future[StreamItem],
    items: AsyncGenerator[StreamItem],
    keepalive_s: Seconds,
) -> AsyncGenerator[bytes]:
    try:
        while not first.done():
            yield KEEPALIVE
            await asyncio.wait([first], timeout=keepalive_s)
        try:
            status, _ = _as_head(first.result())
        except JustitiaError as error:
            yield error_event(path, error, 0)
            return
        async for chunk in _chunks(items):
            if status < 400:
                yield chunk
            else:
                yield b"data: " + engine_error_in_form(path, status, chunk) + b"\n\n"
    finally:
        await _abandon(first, items)


async def _abandon(first: asyncio.Future[StreamItem], items: AsyncGenerator[StreamItem]) -> None:
    first.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration, JustitiaError):
        await first
    await items.aclose()


def _as_head(item: StreamItem) -> Head:
    if isinstance(item, bytes):
        raise TypeError("a stream must begin with its head")
    return item
