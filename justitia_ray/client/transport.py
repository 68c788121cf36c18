"""How a client reaches the service: one Protocol, and its HTTP form.

A transport moves bytes. It knows nothing of JSON, retries or applications, so that a test's fake is
two methods and an agent inside Ray Serve can use a deployment handle instead (`handle_transport`).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import httpx

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds


class ServiceUnreachable(ConnectionError):
    """Nothing was sent, because no connection could be made; the call is safe to repeat."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """The head of an answer, and its body as it comes. Valid only inside the `stream` block."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    chunks: AsyncIterator[bytes]
    """The body, cut anywhere."""


class Transport(Protocol):
    """One way to reach the service."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Send a request and return the whole answer, whatever its status.

        Cancelling the call tells the service that its caller has gone.

        Raises:
            ServiceUnreachable: If nothing was sent.
            ConnectionError: If the connection broke before the answer was complete.
        """

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Send a request and enter its answer, whatever its status.

        Leaving the block before the chunks have ended tells the service that its caller has gone.

        Raises:
            ServiceUnreachable: On entry, if nothing was sent.
            ConnectionError: On entry or between chunks, if the connection broke.
        """

    async def aclose(self) -> None:
        """Give back every connection. Safe to call twice."""


class HttpTransport:
    """The service over HTTP, with one connection pool.

    Args:
        base_url: Where the application is mounted, e.g. `http://localhost:8000`; a trailing `/v1`,
            as the OpenAI client wants it, is accepted.
        headers: Sent with every request, e.g. `{"authorization": "Bearer …"}`.
        connect_timeout_s: How long a connection may take to be made.
        read_timeout_s: How long the service may be silent. None by default: an inference may wait
            for minutes in the queue, and that is the service working as meant.
        transport: Takes the place of the network, for tests.

    Raises:
        ConfigError: If `base_url` is not an http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: Seconds = 10.0,
        read_timeout_s: Seconds | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must start with http:// or https://, got {base_url!r}")
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=httpx.Timeout(None, connect=connect_timeout_s, read=read_timeout_s),
            # An application may fan out as wide as it likes: the queue is in the service. Idle
            # connections go before uvicorn's 5 s, else a call now and then meets a closing one.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=1024, keepalive_expiry=2.0
            ),
            transport=transport,
        )

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Send a request and return the whole answer; see `Transport.request`."""
        with _network_errors():
            answer = await self._client.request(method, path, headers=headers, content=body)
        return Response(answer.status_code, answer.headers, answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncGenerator[StreamedResponse]:
        """Send a request and enter its answer; see `Transport.stream`."""
        with _network_errors():
            async with self._client.stream(method, path, headers=headers, content=body) as answer:
                yield StreamedResponse(answer.status_code, answer.headers, _chunks(answer))

    async def aclose(self) -> None:
        """Close the pool."""
        await self._client.aclose()


async def _chunks(answer: httpx.Response) -> AsyncGenerator[bytes]:
    with _network_errors():
        async for chunk in answer.aiter_bytes():
            yield chunk


@contextmanager
def _network_errors() -> Generator[None]:
    """Turn httpx's errors into the builtin ones that every transport raises."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise ServiceUnreachable(f"no connection to {error.request.url.host}: {error}") from error
    except httpx.RequestError as error:
        raise ConnectionError(f"the answer broke off: {type(error).__name__}: {error}") from error
