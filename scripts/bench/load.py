"""Seeded HTTP calls of a benchmark, closed loops of callers, and a cheap HTTP connection."""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds, Tokens

_LONGEST_HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP answer with the arrival times of its parts."""

    status: int
    body: bytes
    chunks: int
    """Number of chunks in which the body was sent; 1 if the body was not chunked."""
    sent_at: Seconds
    first_byte_at: Seconds
    """Arrival time of the first byte of the body (monotonic seconds)."""
    ended_at: Seconds
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by lower-case name."""


class HttpConnection:
    """Connection to one host for one request at a time; reopened after the host closes it.

    HAProxy closes connections after their next answer when Serve replaces its process, as it does
    whenever an application or an ingress is added or removed.
    """

    def __init__(self, host: str, port: int, credential: str = "") -> None:
        self._host = host
        self._port = port
        self._more_headers = f"authorization: Bearer {credential}\r\n" if credential else ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._has_ended = False
        """Whether the host closed the connection with its last answer."""

    async def __aenter__(self) -> "HttpConnection":
        await self._open_connection()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_connection()

    async def get(self, path: str) -> Reply:
        return await self._send_request(b"GET", path, b"", {})

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Reply:
        """Send a JSON body with additional headers, and return the answer.

        Raises:
            ConnectionError: If the service closes the connection before the answer is complete.
        """
        return await self._send_request(b"POST", path, body, headers)

    async def _open_connection(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, limit=_LONGEST_HEAD_BYTES
        )
        self._has_ended = False

    async def _close_connection(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            await writer.wait_closed()

    async def _send_request(
        self, method: bytes, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Reply:
        if self._has_ended:
            await self._close_connection()
            await self._open_connection()
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise ConnectionError("the connection is not open: use `async with`")
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f" {path} HTTP/1.1\r\nhost: {self._host}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{self._more_headers}{more}\r\n"
        )
        sent_at = time.perf_counter()
        status, answered = 0, dict[str, str]()
        writer.write(method + head.encode() + body)
        try:
            status, answered = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            if answered.get("transfer-encoding") == "chunked":
                pieces, first_byte_at = await _read_chunks(reader)
            else:
                pieces = [await reader.readexactly(int(answered.get("content-length", "0")))]
                first_byte_at = time.perf_counter()
        except asyncio.IncompleteReadError as error:
            where = "in an answer" if status or error.partial else "before an answer"
            raise ConnectionError(f"{path}: the connection was closed {where}") from error
        ended_at = time.perf_counter()
        self._has_ended = answered.get("connection", "").lower() == "close"
        whole = b"".join(pieces)
        return Reply(status, whole, len(pieces), sent_at, first_byte_at, ended_at, answered)


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[list[bytes], Seconds]:
    pieces: list[bytes] = []
    first_byte_at = 0.0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        piece = (await reader.readexactly(size + 2))[:-2]
        if not pieces:
            first_byte_at = time.perf_counter()
        pieces.append(piece)
    await reader.readexactly(2)
    return pieces, first_byte_at or time.perf_counter()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers


_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 100, 2000
"""Range of token ids that are ordinary words in every tokenizer in use."""
_END_OF_STREAM = b"data: [DONE]\n\n"


class CallFailed(JustitiaError):
    """A call got no complete answer, so the benchmark's figures are invalid."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranges from which the prompt and output sizes of calls are drawn uniformly."""

    stream: bool
    prompt_tokens: tuple[Tokens, Tokens]
    output_tokens: tuple[Tokens, Tokens]

    def __str__(self) -> str:
        kind = "streams" if self.stream else "unary calls"
        prompts, outputs = map(_format_range, (self.prompt_tokens, self.output_tokens))
        return f"{kind}, {prompts} -> {outputs} tokens"


@dataclass(frozen=True, slots=True)
class Call:
    """Completion call to send, with its sizes."""

    body: bytes
    stream: bool
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class Sample:
    ttft_s: Seconds
    """Seconds from sending the call to the first byte of its answer."""
    latency_s: Seconds
    ended_at: Seconds
    output_tokens: Tokens
    chunks: int


@dataclass(frozen=True, slots=True)
class Target:
    """Address at which an application answers, with the credential of its callers."""

    port: int
    route_prefix: str
    host: str = "127.0.0.1"
    credential: str = ""
    """API key or token sent with every call; empty for none."""

    def open(self) -> HttpConnection:
        """Return a new connection, to be used as a context manager."""
        return HttpConnection(self.host, self.port, self.credential)

    @property
    def completions(self) -> str:
        return f"{self.route_prefix}/v1/completions"


def make_calls(shape: Shape, count: int, rng: random.Random, model: str) -> list[Call]:
    """Return calls of exact sizes: prompts of token ids, and output that no stop token ends."""
    calls = []
    for _ in range(count):
        prompt_tokens = rng.randint(*shape.prompt_tokens)
        output_tokens = rng.randint(*shape.output_tokens)
        body = {
            "model": model,
            "prompt": [rng.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": shape.stream,
        }
        calls.append(Call(json.dumps(body).encode(), shape.stream, output_tokens))
    return calls


async def make_call(connection: HttpConnection, path: str, call: Call) -> Sample:
    """Send one call and return its sample.

    Raises:
        CallFailed: If its answer is an error or incomplete.
    """
    try:
        reply = await connection.post(path, call.body)
    except ConnectionError as error:
        raise CallFailed(str(error)) from error
    _check_reply(reply, call)
    return Sample(
        reply.first_byte_at - reply.sent_at,
        reply.ended_at - reply.sent_at,
        reply.ended_at,
        call.output_tokens,
        reply.chunks,
    )


async def run_closed_loop(
    target: Target,
    calls: Sequence[Call],
    concurrency: int,
    most_think_s: Seconds,
    rng: random.Random,
) -> list[Sample]:
    """Send all calls with fixed concurrency; return samples in the order of their ends.

    Args:
        target: Whom to call.
        calls: Taken in their order.
        concurrency: Callers, each on a connection of its own.
        most_think_s: A caller waits up to so long, uniformly, before each call. Without it all
            callers of an engine with fixed iterations would call in step with them.
        rng: Draws those times.

    Raises:
        CallFailed: If an answer is an error or incomplete.
    """
    left = deque(calls)
    samples: list[Sample] = []
    seeds = [rng.getrandbits(32) for _ in range(concurrency)]

    async def run_caller(connection: HttpConnection, own: random.Random) -> None:
        while left:
            call = left.popleft()
            if most_think_s:
                await asyncio.sleep(own.uniform(0.0, most_think_s))
            samples.append(await make_call(connection, target.completions, call))

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(target.open()) for _ in seeds]
        try:
            async with asyncio.TaskGroup() as group:
                for connection, seed in zip(connections, seeds, strict=True):
                    group.create_task(run_caller(connection, random.Random(seed)))
        except* CallFailed as failures:
            raise failures.exceptions[0] from None
    return samples


def _check_reply(reply: Reply, call: Call) -> None:
    if reply.status != 200:
        raise CallFailed(f"status {reply.status}: {reply.body[:500]!r}")
    if call.stream:
        if not reply.body.endswith(_END_OF_STREAM):
            raise CallFailed(f"a stream ended with {reply.body[-500:]!r}")
        return
    made = json.loads(reply.body)["usage"]["completion_tokens"]
    if made != call.output_tokens:
        raise CallFailed(f"{made} tokens came where {call.output_tokens} were asked for")


def _format_range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"
