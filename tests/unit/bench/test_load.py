"""The calls of a benchmark and its client, against a server with fixed answers."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from scripts.bench.load import CallFailed, Shape, Target, make_calls, run_closed_loop

UNARY = Shape(False, (2, 4), (5, 9))
STREAM = Shape(True, (2, 4), (5, 9))


class CannedServer:
    """HTTP server that answers every request with the same bytes and records the requests."""

    def __init__(self, answer: bytes, *, closes: bool) -> None:
        self.answer = answer
        self.closes = closes
        self.bodies: list[bytes] = []
        self.open = 0
        self.most_open = 0

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError):
            answered = False
            while not (self.closes and answered):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                await asyncio.sleep(0)  # lets every other caller run
                writer.write(self.answer)
                self.open -= 1
                answered = True
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def run_canned_server(
    answer: bytes, *, closes: bool = False
) -> AsyncIterator[tuple[CannedServer, Target]]:
    """Run a `CannedServer`, which may close each connection after the first answer."""
    canned = CannedServer(answer, closes=closes)
    server = await asyncio.start_server(canned.serve_connection, "127.0.0.1", 0)
    async with server:
        yield canned, Target(server.sockets[0].getsockname()[1], "/direct")
    await server.wait_closed()


def chunked_response(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def plain_response(status: bytes, body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body)


async def test_closed_loop_makes_every_call_once_with_limited_concurrency() -> None:
    call = make_calls(UNARY, 1, random.Random(1), "m")[0]
    answer = json.dumps({"usage": {"completion_tokens": call.output_tokens}}).encode()
    async with run_canned_server(plain_response(b"200 OK", answer)) as (canned, target):
        samples = await run_closed_loop(target, [call] * 40, 4, 0.0, random.Random(1))

    assert 40 == len(samples) == len(canned.bodies)
    assert 1 <= canned.most_open <= 4


async def test_connection_closed_by_an_answer_is_reopened() -> None:
    """HAProxy closes connections in this way when Serve restarts it."""
    call = make_calls(UNARY, 1, random.Random(1), "m")[0]
    body = json.dumps({"usage": {"completion_tokens": call.output_tokens}}).encode()
    answer = plain_response(b"200 OK", body, b"Connection: close\r\n")
    async with run_canned_server(answer, closes=True) as (canned, target):
        samples = await run_closed_loop(target, [call] * 5, 1, 0.0, random.Random(1))

    assert 5 == len(samples) == len(canned.bodies)


async def test_call_on_a_connection_closed_without_notice_fails() -> None:
    call = make_calls(UNARY, 1, random.Random(1), "m")[0]
    body = json.dumps({"usage": {"completion_tokens": call.output_tokens}}).encode()
    async with run_canned_server(plain_response(b"200 OK", body), closes=True) as (_, target):
        with pytest.raises(CallFailed, match="closed before an answer"):
            await run_closed_loop(target, [call] * 2, 1, 0.0, random.Random(1))


@pytest.mark.parametrize(
    ("shape", "answer", "says"),
    [
        (
            UNARY,
            plain_response(b"503 Service Unavailable", b"no replica"),
            "status 503.*no replica",
        ),
        (UNARY, plain_response(b"200 OK", b'{"usage": {"completion_tokens": 1}}'), "1 tokens came"),
        (STREAM, chunked_response(b"data: a\n\n", b'data: {"error": 1}\n\n'), "ended with.*error"),
        (STREAM, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n", "closed in an"),
    ],
    ids=["refused", "short", "cut by an event", "cut"],
)
async def test_incomplete_answer_fails_the_benchmark(
    shape: Shape, answer: bytes, says: str
) -> None:
    """A failed call ends early, so its time must never count as that of a successful one."""
    calls = make_calls(shape, 1, random.Random(1), "m")
    async with run_canned_server(answer, closes=True) as (_, target):
        with pytest.raises(CallFailed, match=says):
            await run_closed_loop(target, calls, 1, 0.0, random.Random(1))
