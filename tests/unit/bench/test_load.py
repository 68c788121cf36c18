"""The calls of a benchmark and the client that makes them, against a server of canned answers."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from justitia_ray.bench.load import CallFailed, Shape, Target, make_calls, run_closed_loop

UNARY = Shape(False, (2, 4), (5, 9))
STREAM = Shape(True, (2, 4), (5, 9))


class CannedServer:
    """Answers every request with the same bytes and keeps what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.open = 0
        self.most_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                await asyncio.sleep(0)  # lets every other caller in
                writer.write(self.answer)
                self.open -= 1
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[tuple[CannedServer, Target]]:
    canned = CannedServer(answer)
    server = await asyncio.start_server(canned.serve, "127.0.0.1", 0)
    async with server:
        yield canned, Target(server.sockets[0].getsockname()[1], "/direct")
    await server.wait_closed()


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def plain(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_both_arms_get_the_same_calls() -> None:
    """Only what is compared may differ between the arms."""
    ours, theirs = (make_calls(UNARY, 20, random.Random(7), "m") for _ in range(2))

    assert ours == theirs
    assert len({call.body for call in ours}) == 20


def test_calls_have_the_sizes_of_their_shape() -> None:
    """Prompts are token ids and stop tokens are ignored, so that costs are exact."""
    for call in make_calls(STREAM, 50, random.Random(1), "tiny"):
        body = json.loads(call.body)

        assert 2 <= len(body["prompt"]) <= 4
        assert 5 <= call.output_tokens <= 9
        assert (call.output_tokens, True, True) == (
            body["max_tokens"],
            body["ignore_eos"],
            body["stream"],
        )


async def test_stream_is_read_to_its_end() -> None:
    """Chunks are counted, and the first byte is stamped no later than the last."""
    async with serving(chunked(b"data: a\n\n", b"data: b\n\ndata: [DONE]\n\n")) as (_, target):
        calls = make_calls(STREAM, 3, random.Random(1), "m")
        samples = await run_closed_loop(target, calls, 1, 0.0, random.Random(1))

    assert [2, 2, 2] == [sample.chunks for sample in samples]
    assert all(0 < sample.ttft_s <= sample.latency_s for sample in samples)


async def test_every_call_is_made_once_by_so_many_callers() -> None:
    """A closed loop neither drops calls nor makes more at a time than it says."""
    call = make_calls(UNARY, 1, random.Random(1), "m")[0]
    answer = json.dumps({"usage": {"completion_tokens": call.output_tokens}}).encode()
    async with serving(plain(b"200 OK", answer)) as (canned, target):
        samples = await run_closed_loop(target, [call] * 40, 4, 0.0, random.Random(1))

    assert 40 == len(samples) == len(canned.bodies)
    assert 1 <= canned.most_open <= 4


@pytest.mark.parametrize(
    ("shape", "answer", "says"),
    [
        (UNARY, plain(b"503 Service Unavailable", b"no replica"), "status 503.*no replica"),
        (UNARY, plain(b"200 OK", b'{"usage": {"completion_tokens": 1}}'), "1 tokens came"),
        (STREAM, chunked(b"data: a\n\n", b'data: {"error": 1}\n\n'), "ended with.*error"),
        (STREAM, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n", "closed"),
    ],
    ids=["refused", "short", "cut by an event", "cut"],
)
async def test_incomplete_answer_fails_the_benchmark(
    shape: Shape, answer: bytes, says: str
) -> None:
    """A failed call is fast: its time must never count as a good one."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        target = Target(server.sockets[0].getsockname()[1], "/direct")
        calls = make_calls(shape, 1, random.Random(1), "m")
        with pytest.raises(CallFailed, match=says):
            await run_closed_loop(target, calls, 1, 0.0, random.Random(1))
    await server.wait_closed()
