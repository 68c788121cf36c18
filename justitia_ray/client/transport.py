"""Connections to the service: one protocol, implemented over HTTP and over a Ray Serve handle.

A transport transfers bytes and knows nothing of JSON, retries and applications. So a fake for tests
has two methods, and an agent inside Ray Serve can use a deployment handle.
"""

import asyncio
import contextvars
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx

from justitia_ray.errors import ConfigError
from justitia_ray.protocol.proxies import proxy_hint
from justitia_ray.units import Seconds


class ServiceUnreachable(ConnectionError):
    """The connection could not be opened. No request was sent, so it is safe to repeat the call."""


@dataclass(frozen=True, slots=True)
class Response:
    """Complete answer to an HTTP request."""

    status: int
    headers: Mapping[str, str]
    """HTTP headers with names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """Head of an HTTP answer, with its body as a stream; valid only inside the `stream` block."""

    status: int
    headers: Mapping[str, str]
    """HTTP headers with names in lower case."""
    chunks: AsyncIterator[bytes]
    """Chunks of the body, cut at arbitrary places."""


class Transport(Protocol):
    """Interface of a client's connection to the service, over HTTP or a Serve handle."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Send a request and return the whole answer, of any HTTP status.

        Cancelling the call cancels it in the service too.

        Raises:
            ServiceUnreachable: If nothing was sent.
            ConnectionError: If the connection broke before the answer was complete.
        """

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Send a request; return a context manager that yields its answer, of any HTTP status.

        Leaving the block before the end of the chunks cancels the call in the service.

        Raises:
            ServiceUnreachable: On entry, if nothing was sent.
            ConnectionError: On entry or between chunks, if the connection broke.
        """

    async def aclose(self) -> None:
        """Close all connections to the service. Calling it twice is safe."""


API_KEY_VARIABLE = "JUSTITIA_API_KEY"
"""Environment variable with the API key or token that clients and commands use by default."""


_THIS_MACHINE: dict[str, httpx.AsyncBaseTransport | None] = dict.fromkeys(
    ("all://localhost", "all://127.0.0.1", "all://[::1]")
)
"""Local host names, which are called directly even if the environment names a proxy."""


class HttpTransport:
    """Transport of a client over HTTP, with one connection pool.

    Args:
        base_url: URL of the application, e.g. `http://localhost:8000`; a trailing `/v1`, as the
            OpenAI client needs it, is accepted.
        headers: Headers sent with every request.
        api_key: An API key or a JSON Web Token, sent as `Authorization: Bearer …`; by default the
            value of the variable JUSTITIA_API_KEY, if it is set.
        connect_timeout_s: Timeout for opening a connection.
        read_timeout_s: Longest silence of the service. None by default, because an inference may
            wait in the queue for minutes.
        transport: Replaces the network in tests.

    Raises:
        ConfigError: If `base_url` is not an http(s) URL, or a timeout is not above 0.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        connect_timeout_s: Seconds = 10.0,
        read_timeout_s: Seconds | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        _check_url(base_url)
        for name, limit_s in (("connect", connect_timeout_s), ("read", read_timeout_s)):
            if limit_s is not None and not limit_s > 0:
                raise ConfigError(
                    f"{name}_timeout_s is {limit_s:g}: a number of seconds above 0 is allowed"
                )
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers=_with_credential(headers or {}, api_key),
            timeout=httpx.Timeout(None, connect=connect_timeout_s, read=read_timeout_s),
            # Calls wait in the service's queue, so the number of connections is not limited.
            # Idle connections are closed before uvicorn closes them after 5 s.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=1024, keepalive_expiry=2.0
            ),
            transport=transport,
            mounts=_THIS_MACHINE,
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
        """Send a request and yield its answer; see `Transport.stream`."""
        with _network_errors():
            async with self._client.stream(method, path, headers=headers, content=body) as answer:
                yield StreamedResponse(answer.status_code, answer.headers, _body_chunks(answer))

    async def aclose(self) -> None:
        await self._client.aclose()


def _check_url(base_url: str) -> None:
    """Check the URL of a service.

    Raises:
        ConfigError: If it has another scheme than http or https, no host, no valid port, or a query
            or fragment.
    """
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url must start with http:// or https://, got {base_url!r}")
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url is {base_url!r}: {error}") from None
    if not url.host or not 0 < (url.port or 80) < 65_536:
        raise ConfigError(
            f"base_url is {base_url!r}: a host, and a port from 1 to 65535, are required"
        )
    if url.query or url.fragment:
        raise ConfigError(
            f"base_url is {base_url!r}: a query (?) or fragment (#) is not allowed; paths are"
            " appended to the URL"
        )


def _with_credential(headers: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    said = {name.lower(): value for name, value in headers.items()}
    credential = os.environ.get(API_KEY_VARIABLE) if api_key is None else api_key
    if credential and not said.keys() & {"authorization", "x-api-key"}:
        said["authorization"] = f"Bearer {credential}"
    return said


async def _body_chunks(answer: httpx.Response) -> AsyncGenerator[bytes]:
    with _network_errors():
        async for chunk in answer.aiter_bytes():
            yield chunk


@contextmanager
def _network_errors() -> Generator[None]:
    """Convert httpx's errors into the built-in errors that every transport raises."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        url = error.request.url
        hint = proxy_hint(str(url), os.environ)
        reason = str(error) or "the time for it is over"
        raise ServiceUnreachable(f"no connection to {url.host}: {reason}{hint}") from error
    except httpx.RequestError as error:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        raise ConnectionError(f"the answer broke off: {reason}") from error


T = TypeVar("T")


class HandleTransport:
    """Transport of a client over a Ray Serve handle of the Ingress deployment.

    Args:
        handle: A `DeploymentHandle`, or an object with its methods.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Call the Ingress deployment and return the whole answer; see `Transport.request`."""
        call = _IngressCall(lambda: self._handle.call.remote(method, path, dict(headers), body))
        try:
            status, answer_headers, answer = await call.run_step(call.wait_for_result())
        finally:
            call.cancel_unless_ended()
        return Response(status, _lower_names(answer_headers), answer)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncGenerator[StreamedResponse]:
        """Call the Ingress deployment and yield its answer; see `Transport.stream`."""
        call = _IngressCall(
            lambda: self._handle.options(stream=True).stream.remote(
                method, path, dict(headers), body
            )
        )
        try:
            head = await call.run_step(call.next_item())
            if head is None:
                raise ConnectionError("the ingress ended a stream before its head")
            status, answer_headers = head
            yield StreamedResponse(status, _lower_names(answer_headers), call.iterate_chunks())
        finally:
            call.cancel_unless_ended()

    async def aclose(self) -> None:
        """Do nothing: the handle belongs to the caller."""


class _IngressCall:
    """Call of a Serve handle, run in its own contextvars context."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._context = contextvars.Context()
        self._start = start
        self._response: Any = None
        self._ended = False

    async def wait_for_result(self) -> Any:
        self._response = self._start()
        try:
            return await self._response
        finally:
            self._ended = True

    async def next_item(self) -> Any:
        """Return the next item of the streamed answer; None at its end."""
        if self._response is None:
            self._response = self._start()
        try:
            return await anext(self._response)
        except StopAsyncIteration:
            self._ended = True
            return None
        except BaseException:
            self._ended = True
            raise

    async def iterate_chunks(self) -> AsyncGenerator[bytes]:
        while (chunk := await self.run_step(self.next_item())) is not None:
            yield chunk

    async def run_step(self, step: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine in the contextvars context of the Serve call.

        Raises:
            ConnectionError: If the call failed; Serve's own error is its cause.
        """
        task = asyncio.get_running_loop().create_task(step, context=self._context)
        # `await task` could not tell a cancellation of this caller from one by Serve.
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.add_done_callback(_ignore_error)
            task.cancel()
            raise
        if task.cancelled():
            # Not a CancelledError, because only the called task was cancelled.
            raise ConnectionError("Serve cancelled the call to the ingress")
        try:
            return task.result()
        except Exception as error:
            raise ConnectionError(
                f"the call to the ingress failed with {type(error).__name__}"
            ) from error

    def cancel_unless_ended(self) -> None:
        if self._response is not None and not self._ended:
            self._ended = True
            self._response.cancel()


def _ignore_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of an abandoned task, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
