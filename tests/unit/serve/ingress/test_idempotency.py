"""Retries with an Idempotency-Key: one attempt, however often it is asked for."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from justitia_ray.errors import EngineError, EngineFailed, QueueFull, RequestError
from justitia_ray.serve.ingress.idempotency import IdempotentAttempts
from justitia_ray.serve.ingress.replica_calls import StreamItem

_AMPLE = 2**20


class Source:
    """An answer made step by step, which counts how often it was begun and whether it ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.status = 200
        self.cancelled = asyncio.Event()
        self.steps: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def answer(self) -> AsyncGenerator[StreamItem]:
        self.begun += 1
        yield self.status, {}
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def collect(items: AsyncGenerator[StreamItem]) -> list[StreamItem]:
    return [item async for item in items]


async def test_second_caller_joins_the_running_attempt_from_its_start() -> None:
    """A retry must neither run twice nor miss what had been said before it came."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    assert await anext(first) == (200, {})
    source.steps.put_nowait(b"a")
    assert await anext(first) == b"a"
    second = asyncio.create_task(collect(attempts.join_attempt("k", b"body", source.answer)))
    source.steps.put_nowait(b"b")
    source.steps.put_nowait(None)

    assert await collect(first) == [b"b"]
    assert await second == [(200, {}), b"a", b"b"]
    assert source.begun == 1


async def test_retry_after_a_disconnect_finds_the_attempt_still_running() -> None:
    """Clients retry when their connection broke: the work done so far must not be lost."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)
    await first.aclose()
    source.steps.put_nowait(b"a")
    source.steps.put_nowait(None)

    assert await collect(attempts.join_attempt("k", b"body", source.answer)) == [(200, {}), b"a"]
    assert source.begun == 1


async def test_attempt_that_nobody_reads_is_cancelled_after_the_linger_time() -> None:
    """A caller that does not come back must not hold KV memory for ever."""
    source, attempts = Source(), IdempotentAttempts(linger_s=0, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)
    await first.aclose()

    await asyncio.wait_for(source.cancelled.wait(), 5)


async def test_attempt_that_failed_is_forgotten_so_that_a_retry_runs_again() -> None:
    """Only answers are worth keeping: an engine's death must not be repeated to the retry."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.steps.put_nowait(EngineError("dead"))
    with pytest.raises(EngineError):
        await collect(attempts.join_attempt("k", b"body", source.answer))
    source.steps.put_nowait(None)

    assert await collect(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    assert source.begun == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408, 409, 425])
async def test_answer_that_may_be_another_next_time_is_not_kept(status: int) -> None:
    """An engine's failure, or a refusal for want of room, must not be repeated to the retry."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.status = status
    for step in (b"failed", None, b"whole", None):
        source.steps.put_nowait(step)
    first = await collect(attempts.join_attempt("k", b"body", source.answer))
    source.status = 200
    again = await collect(attempts.join_attempt("k", b"body", source.answer))

    assert [[(status, {}), b"failed"], [(200, {}), b"whole"]] == [first, again]
    assert source.begun == 2
    assert first != await collect(attempts.join_attempt("k", b"body", source.answer))
    assert source.begun == 2


@pytest.mark.parametrize("status", [200, 400, 404, 413, 422])
async def test_answer_that_would_be_the_same_is_kept(status: int) -> None:
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.status = status
    source.steps.put_nowait(None)
    answers = [await collect(attempts.join_attempt("k", b"body", source.answer)) for _ in range(2)]

    assert [[(status, {})]] * 2 == answers
    assert source.begun == 1


async def test_stream_that_was_cut_runs_anew_for_a_retry_of_another_body_too() -> None:
    """Nothing of it is kept: neither its chunks nor what it was asked."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    for step in (b"a", EngineFailed("failed"), b"b", None):
        source.steps.put_nowait(step)
    seen = attempts.join_attempt("k", b"body", source.answer)
    joined = attempts.join_attempt("k", b"body", source.answer)
    for items in (seen, joined):
        with pytest.raises(EngineFailed):
            await collect(items)

    assert await collect(attempts.join_attempt("k", b"other", source.answer)) == [(200, {}), b"b"]
    assert source.begun == 2


async def test_key_of_another_body_is_refused() -> None:
    """A key names one request; answering another one with its answer would be silent corruption."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)

    with pytest.raises(RequestError, match="Idempotency-Key"):
        attempts.join_attempt("k", b"another", source.answer)
    await first.aclose()


async def test_answer_is_read_again_while_it_is_kept_and_runs_again_after() -> None:
    """A retry that comes just after the end gets the same answer; memory is given back later."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=0, max_bytes=_AMPLE)
    source.steps.put_nowait(None)
    assert await collect(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    await asyncio.sleep(0)  # the timer of no length
    await asyncio.sleep(0)
    source.steps.put_nowait(None)

    assert await collect(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    assert source.begun == 2


async def answered(attempts: IdempotentAttempts, key: str, size: int) -> Source:
    """Let a request be answered with so many bytes."""
    source = Source()
    source.steps.put_nowait(b"x" * size)
    source.steps.put_nowait(None)
    await collect(attempts.join_attempt(key, b"body", source.answer))
    return source


async def test_answers_beyond_their_memory_go_before_their_time_the_oldest_first() -> None:
    """Whole answers are kept: a thousand long ones would be the ingress's memory."""
    attempts = IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=5_000)
    sources = [await answered(attempts, f"k{i}", 2_000) for i in range(3)]
    again = [await answered(attempts, f"k{i}", 2_000) for i in (2, 1)]
    first_again = await answered(attempts, "k0", 2_000)

    assert [1, 1, 1] == [source.begun for source in sources]
    assert [0, 0] == [source.begun for source in again]  # read from what is kept
    assert 1 == first_again.begun


async def test_answer_that_is_being_read_is_not_taken_from_its_reader() -> None:
    """A slow reader of a retry gets all of it, whatever others ask for meanwhile."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=5_000)
    for step in (b"a" * 2_000, b"b" * 2_000, None):
        source.steps.put_nowait(step)
    slow = attempts.join_attempt("slow", b"body", source.answer)
    await anext(slow)
    await answered(attempts, "other", 4_000)
    rest = await collect(slow)
    again = await collect(attempts.join_attempt("slow", b"body", source.answer))

    assert [b"a" * 2_000, b"b" * 2_000] == rest
    assert [(200, {}), *rest] == again
    assert 1 == source.begun


async def test_no_attempt_is_begun_while_running_ones_fill_the_memory() -> None:
    """What runs cannot be forgotten; what is begun would only add to it."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=5_000)
    running = attempts.join_attempt("k", b"body", source.answer)
    source.steps.put_nowait(b"x" * 6_000)
    await anext(running)
    await anext(running)
    waits = []
    for _ in range(3):
        with pytest.raises(QueueFull, match=r"ingress\.retry_kept_bytes") as refused:
            attempts.join_attempt("another", b"body", source.answer)
        waits.append(refused.value.retry_after_s)
    assert len(set(waits)) == len(waits)
    source.steps.put_nowait(EngineError("dead"))
    with pytest.raises(EngineError):
        await anext(running)
    later = await answered(attempts, "another", 100)

    assert 1 == later.begun
