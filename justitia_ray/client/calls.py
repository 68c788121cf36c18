"""JSON calls over a transport, repeated where that is safe."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from justitia_ray.client.answers import is_success, json_object, response_error
from justitia_ray.client.sse import json_events
from justitia_ray.client.transport import ServiceUnreachable, StreamedResponse, Transport
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.units import Seconds

T = TypeVar("T")

Sleep = Callable[[Seconds], Awaitable[None]]

_NOT_TAKEN = frozenset({429, 503})
"""Statuses by which the service says that it has not begun: queue full, no replicas."""
_FIRST_BACKOFF_S = 0.5
"""Doubles with each attempt; long enough for a restarting proxy to listen again."""
_LONGEST_WAIT_S = 60.0
"""A service that asks for more is not waited for: the caller should know."""


class JsonCalls:
    """JSON calls over a transport.

    A call is repeated only if the service cannot have begun it: no connection could be made, or it
    answered 429 or 503. Nothing is repeated once a stream has begun.

    Args:
        transport: The way to the service.
        max_retries: How often one call is repeated, at most.
        sleep: Waits that many seconds; a test passes its own.

    Raises:
        ConfigError: If `max_retries` is negative.
    """

    def __init__(
        self, transport: Transport, *, max_retries: int = 2, sleep: Sleep = asyncio.sleep
    ) -> None:
        if max_retries < 0:
            raise ConfigError(f"max_retries must be >= 0, got {max_retries}")
        self._transport = transport
        self._max_retries = max_retries
        self._sleep = sleep

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a JSON body and return the JSON object that comes back.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If it did not answer.
        """
        head, payload = _encode(body, headers)

        async def attempt() -> dict[str, Any]:
            return json_object(await self._transport.request(method, path, head, payload))

        return await self._repeat(attempt)

    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Post a JSON body and yield the JSON objects streamed back.

        Closing the generator early tells the service that its caller has gone.

        Raises:
            ResponseError: If the service answered, or ended the stream, with an error.
            ConnectionError: If it did not answer, or the stream broke off.
        """
        head, payload = _encode(body, headers)

        async def attempt() -> tuple[AsyncExitStack, StreamedResponse]:
            async with AsyncExitStack() as stack:
                streamed = await stack.enter_async_context(
                    self._transport.stream("POST", path, head, payload)
                )
                if not is_success(streamed.status):
                    error = b"".join([chunk async for chunk in streamed.chunks])
                    raise response_error(streamed.status, streamed.headers, error)
                return stack.pop_all(), streamed

        opened, streamed = await self._repeat(attempt)
        async with opened:
            async for event in json_events(streamed.chunks):
                yield event

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for repeats in range(self._max_retries):
            wait_s = _FIRST_BACKOFF_S * 2**repeats
            try:
                return await attempt()
            except ServiceUnreachable:
                pass
            except ResponseError as error:
                if error.retry_after_s is not None:
                    wait_s = error.retry_after_s
                if error.status not in _NOT_TAKEN or wait_s > _LONGEST_WAIT_S:
                    raise
            await self._sleep(wait_s)
        return await attempt()


def _encode(
    body: Mapping[str, Any] | None, headers: Mapping[str, str] | None
) -> tuple[dict[str, str], bytes]:
    if body is None:
        return dict(headers or {}), b""
    payload = json.dumps(body, allow_nan=False).encode()
    return {"content-type": "application/json", **(headers or {})}, payload
