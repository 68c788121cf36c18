"""Streams over several leases: continued after a cut, or ended with an error."""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import pytest

from justitia_ray.config import IngressSection
from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted, NackReason
from justitia_ray.errors import (
    ApplicationIsClosed,
    ConnectionLost,
    EngineError,
    EngineFailed,
    JustitiaError,
    StreamRefused,
    StreamUnfinished,
)
from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.protocol.engine import EngineCall, ResponseHead
from justitia_ray.protocol.generation_bodies import CHAT
from justitia_ray.protocol.inference_body import InferenceBody
from justitia_ray.protocol.stream_parts import Part, Resume, in_parts, without_delivered
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.ingress.attempts import Attempts, served_by
from justitia_ray.serve.ingress.idempotency import IdempotentAttempts
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.replica_calls import Head, ReplicaCalls, StreamItem
from tests.unit.serve.ingress.test_gateway import context


def test_stream_head_has_replica_queue_time_and_engine_headers() -> None:
    """The headers distinguish a slow engine from a full queue."""
    grant = Grant("r", "i", "lease", "replica-7", 0, 100, waited_s=1.25)
    head = {"content-type": "application/json"}
    item = InferenceSubmitted("r", "acme/search|run/7", "q", "i", 1, 1, 1)
    opened = ApplicationArrived(item.application_id, "chat", "acme", 1.0, 1.0, "i", tier="flex")

    assert {
        "content-type": "application/json",
        "x-justitia-application": "run/7",
        "x-justitia-replica": "replica-7",
        "x-justitia-tier": "flex",
        "x-justitia-waited-s": "1.2500",
    } == served_by(head, grant, PendingInference(item, 0.0, application=opened))
    placed = PendingInference(item, 0.0, application=opened, position=7)
    assert "7" == served_by(head, grant, placed)["x-justitia-position"]
    assert ["content-type"] == list(head)


_TOKENS = 6
_NEVER_S = 3600.0


class FakeQueueClient:
    """Fake queue client that grants lease after lease until the test stops it."""

    def __init__(self) -> None:
        self.may_grant = asyncio.Event()
        self.may_grant.set()
        self.refusals: deque[JustitiaError] = deque()
        """Errors raised instead of grants, after the first grant."""
        self.granted = 0
        self.given_back: list[tuple[str, NackReason]] = []
        """(lease, reason) of each returned lease."""
        self.ended = 0
        self.cancelled = 0

    async def submit_inference(self, *_: Any) -> PendingInference:
        return PendingInference(InferenceSubmitted("q", "t|a", "1", "i", 1, 1, 1), 0.0)

    async def next_grant(self, inference: PendingInference) -> Grant:
        await self.may_grant.wait()
        if self.granted and self.refusals:
            raise self.refusals.popleft()
        self.granted += 1
        return Grant("r", "i", f"lease-{self.granted}", "replica", 0, 0, 0.0)

    async def nack_lease(
        self, inference: PendingInference, grant: Grant, reason: NackReason
    ) -> None:
        self.given_back.append((grant.lease_id, reason))

    def note_answered(self, inference: PendingInference) -> None:
        self.ended += 1

    def cancel_inference(self, inference: PendingInference) -> None:
        self.cancelled += 1


class CutCalls:
    """Calls to a fake engine, each cut after a given number of items."""

    def __init__(self, engine: FakeEngine, cuts: list[int], error: Exception) -> None:
        self._engine = engine
        self._cuts = deque(cuts)
        self._error = error
        self.resumed: list[Resume | None] = []
        self.tenants: list[str] = []

    async def stream(
        self,
        grant: Grant,
        path: str,
        body: bytes,
        resume: Resume | None,
        headers: Mapping[str, str],
    ) -> AsyncGenerator[Head | Part]:
        self.resumed.append(resume)
        self.tenants.append(headers[TENANT_HEADER])
        left = self._cuts.popleft() if self._cuts else -1
        earlier = () if resume is None else resume.outputs
        call = EngineCall(grant.lease_id, 0, path, {}, body, earlier)
        parts = in_parts(self._engine.call(call), self._engine, grant.lease_id)
        if resume is not None:
            parts = without_delivered(parts, resume)
        async with aclosing(parts) as items:
            async for item in items:
                if not left:
                    raise self._error
                left -= 1
                if isinstance(item, ResponseHead):
                    yield item.status, dict(item.headers)
                else:
                    yield item


class StreamRig:
    def __init__(self, engine: FakeEngine) -> None:
        self.client = FakeQueueClient()
        self.dropped: list[type[JustitiaError]] = []
        """Types of the errors that were counted as dropped calls."""
        self._engine = engine

    def run_chat(
        self,
        *cuts: int,
        error: Exception | None = None,
        attempts: int = 9,
        **fields: Any,
    ) -> AsyncGenerator[StreamItem]:
        """Run a chat that is cut after each of the given numbers of items."""
        self.calls = CutCalls(self._engine, [*cuts], error or ConnectionLost("cut"))
        client = cast("Any", self.client)
        streams = Attempts(
            client,
            client,
            cast("ReplicaCalls", self.calls),
            IngressSection(attempts=attempts),
            cast("Any", self),
        )
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        body |= {"max_tokens": _TOKENS, "stream_options": {"include_usage": True}, **fields}
        payload = json.dumps(body).encode()
        parsed = InferenceBody(body, ["hi"], stream=True, payload=payload)
        return streams.stream(CHAT, context({}), parsed)

    def record_drop(self, error: JustitiaError) -> None:
        self.dropped.append(type(error))


@pytest.fixture
async def stream_rig() -> AsyncIterator[StreamRig]:
    engine = FakeEngine("fake", kv_tokens=200, iteration_s=0)
    await engine.start()
    yield StreamRig(engine)
    await engine.stop()


def without_lease_id(body: bytes) -> bytes:
    """Return a body without its lease id; fail if its events carry several ids."""
    (name,) = set(re.findall(rb"lease-\d+", body))
    return body.replace(name, b"lease")


async def read_failed(
    items: AsyncGenerator[StreamItem], error: type[JustitiaError] = EngineError
) -> tuple[list[StreamItem], JustitiaError]:
    """Return the items and the error of a failed stream; fail if the stream looks complete."""
    read: list[StreamItem] = []

    async def collect_items() -> None:
        async for item in items:
            read.append(item)  # noqa: PERF401  # kept when the next one fails

    with pytest.raises(error) as failed:
        await collect_items()
    assert isinstance(read[0], tuple)
    assert 200 == read[0][0]
    assert not any(b"[DONE]" in item for item in read if isinstance(item, bytes))
    return read, failed.value


async def read_stream(items: AsyncGenerator[StreamItem]) -> tuple[int, bytes]:
    """Return the status and body; fail unless the head comes first and once."""
    first, *rest = [item async for item in items]
    assert isinstance(first, tuple)
    return first[0], b"".join(cast("list[bytes]", rest))


@pytest.mark.parametrize("cut", range(_TOKENS + 2))
async def test_stream_cut_twice_equals_an_uninterrupted_stream(
    stream_rig: StreamRig, cut: int
) -> None:
    undisturbed = await read_stream(stream_rig.run_chat())
    stream = await read_stream(stream_rig.run_chat(cut, 2))

    assert (undisturbed[0], without_lease_id(undisturbed[1])) == (
        stream[0],
        without_lease_id(stream[1]),
    )
    assert 3 == len(stream_rig.calls.resumed)
    assert ["t"] * 3 == stream_rig.calls.tenants
    assert (cut > 1) == (stream_rig.calls.resumed[1] is not None)
    cut_off = NackReason.CONNECTION
    assert [("lease-2", cut_off), ("lease-3", cut_off)] == stream_rig.client.given_back
    assert 2 == stream_rig.client.ended


async def test_next_attempt_of_a_stream_receives_every_delivered_token(
    stream_rig: StreamRig,
) -> None:
    """Tokens that were read before the cut need not be generated again."""
    await read_stream(stream_rig.run_chat(4, error=EngineError("dead")))

    first, then = stream_rig.calls.resumed
    assert first is None
    assert then is not None
    assert 3 == then.chunks
    assert 2 <= sum(len(output.tokens) for output in then.outputs)
    assert [("lease-1", NackReason.LEASE)] == stream_rig.client.given_back


async def test_cut_stream_reports_its_return_to_the_queue(stream_rig: StreamRig) -> None:
    """The new wait may be as long as the first, so it needs keepalives, too."""
    chunks = [item async for item in stream_rig.run_chat(3)]
    undisturbed = [item async for item in stream_rig.run_chat()]

    assert ([3], 0) == ([i for i, item in enumerate(chunks) if not item], undisturbed.count(b""))


async def test_idempotent_retry_reads_a_continued_stream_from_its_start(
    stream_rig: StreamRig,
) -> None:
    """A retry with an idempotency key reads the running attempt, at whichever replica it runs."""
    attempts = IdempotentAttempts(_NEVER_S, _NEVER_S, max_bytes=100_000)
    first = await read_stream(attempts.join_attempt("key", b"body", lambda: stream_rig.run_chat(3)))
    again = await read_stream(attempts.join_attempt("key", b"body", lambda: stream_rig.run_chat()))

    assert first == again
    assert 2 == stream_rig.client.granted
    assert first[1].endswith(b"data: [DONE]\n\n")


async def test_stream_refused_by_its_engine_is_not_retried(stream_rig: StreamRig) -> None:
    """Every engine would refuse such a stream."""
    refused = StreamRefused(400, {"message": "the grammar is refused"})
    _, error = await read_failed(stream_rig.run_chat(3, error=refused), StreamRefused)

    assert refused is error
    assert (1, 1, []) == (
        stream_rig.client.granted,
        stream_rig.client.ended,
        stream_rig.client.given_back,
    )


async def test_cut_stream_that_cannot_be_continued_ends_with_the_reason(
    stream_rig: StreamRig,
) -> None:
    """A continuation of another text would look like an answer."""
    _, error = await read_failed(stream_rig.run_chat(3, n=2))

    assert "cannot be continued: it has more than one sequence" in str(error)
    assert (1, []) == (stream_rig.client.granted, stream_rig.client.given_back)
    assert (0, 1) == (stream_rig.client.ended, stream_rig.client.cancelled)


async def test_stream_cut_before_its_first_chunk_is_restarted(stream_rig: StreamRig) -> None:
    status, body = await read_stream(stream_rig.run_chat(1, n=2))

    assert 200 == status
    assert body.endswith(b"data: [DONE]\n\n")
    assert 1 == stream_rig.client.ended


async def test_stream_cut_too_often_ends_with_an_error(stream_rig: StreamRig) -> None:
    _, error = await read_failed(stream_rig.run_chat(2, 2, 2, attempts=3))

    assert "gave up after 3 attempts" in str(error)
    with pytest.raises(EngineError, match="gave up after 2 attempts"):
        await read_stream(stream_rig.run_chat(0, 0, attempts=2))
    assert 2 == stream_rig.client.cancelled


async def test_engine_refusal_in_the_middle_of_a_stream_ends_the_stream(
    stream_rig: StreamRig,
) -> None:
    """The application was cancelled while its stream waited for another replica."""
    stream_rig.client.refusals.append(ApplicationIsClosed("application 'a' was cancelled"))
    await read_failed(stream_rig.run_chat(3), ApplicationIsClosed)


async def test_stream_ends_if_the_next_replica_answers_differently(stream_rig: StreamRig) -> None:
    """Replicas of two versions may answer one request with different statuses."""
    items = stream_rig.run_chat(3)
    original = stream_rig.calls.stream

    async def answer_differently(*args: Any) -> AsyncGenerator[Head | Part]:
        if args[3] is None:
            async for item in original(*args):
                yield item
        yield 400, {}

    stream_rig.calls.stream = answer_differently  # type: ignore[method-assign,assignment]
    _, error = await read_failed(items)

    assert "status 400" in str(error)


@pytest.mark.parametrize(
    ("event", "error"),
    [(b'data: {"error": {"message": "m"}}\n\n', EngineFailed), (b"", StreamUnfinished)],
)
async def test_stream_that_the_engine_left_unfinished_has_failed(
    stream_rig: StreamRig, event: bytes, error: type[JustitiaError]
) -> None:
    """The engine generated all that it could, so a retry would fail again."""
    items = stream_rig.run_chat()
    original = stream_rig.calls.stream

    async def drop_last_event(*args: Any) -> AsyncGenerator[Head | Part]:
        async for item in original(*args):
            is_last = isinstance(item, Part) and b"[DONE]" in item.body
            yield item._replace(body=event) if isinstance(item, Part) and is_last else item

    stream_rig.calls.stream = drop_last_event  # type: ignore[method-assign,assignment]
    read, _ = await read_failed(items, error)

    assert event == read[-1]
    assert (1, 1, [error]) == (
        stream_rig.client.granted,
        stream_rig.client.ended,
        stream_rig.dropped,
    )


async def test_retry_of_a_failed_stream_runs_again(stream_rig: StreamRig) -> None:
    """Otherwise the retry would read the stored half of the answer."""
    attempts = IdempotentAttempts(_NEVER_S, _NEVER_S, max_bytes=100_000)
    await read_failed(attempts.join_attempt("key", b"body", lambda: stream_rig.run_chat(3, n=2)))
    status, body = await read_stream(
        attempts.join_attempt("key", b"body", lambda: stream_rig.run_chat(n=2))
    )

    assert (200, 2) == (status, stream_rig.client.granted)
    assert body.endswith(b"data: [DONE]\n\n")


async def test_disconnected_reader_cancels_the_inference(stream_rig: StreamRig) -> None:
    async with aclosing(stream_rig.run_chat(3)) as items:
        async for item in items:
            stream_rig.client.may_grant.clear()
            if not item:
                break

    assert (0, 1) == (stream_rig.client.ended, stream_rig.client.cancelled)
