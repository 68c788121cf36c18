"""Retries with an Idempotency-Key share one attempt."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from justitia_ray.errors import EngineError, EngineFailed, QueueFull, RequestError
from justitia_ray.serve.ingress.idempotency import IdempotentAttempts
from justitia_ray.serve.ingress.replica_calls import StreamItem

_AMPLE = 2**20


class Source:
    """Answer produced step by step that counts its starts and records its end."""

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


async def collect_items(items: AsyncGenerator[StreamItem]) -> list[StreamItem]:
    return [item async for item in items]


async def test_second_caller_reads_a_running_attempt_from_its_start() -> None:
    """A retry must neither run again nor miss the chunks sent before it arrived."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    assert await anext(first) == (200, {})
    source.steps.put_nowait(b"a")
    assert await anext(first) == b"a"
    second = asyncio.create_task(collect_items(attempts.join_attempt("k", b"body", source.answer)))
    source.steps.put_nowait(b"b")
    source.steps.put_nowait(None)

    assert await collect_items(first) == [b"b"]
    assert await second == [(200, {}), b"a", b"b"]
    assert source.begun == 1


async def test_retry_after_a_disconnect_finds_the_attempt_still_running() -> None:
    """Clients retry when their connection breaks, and the output so far must not be lost."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)
    await first.aclose()
    source.steps.put_nowait(b"a")
    source.steps.put_nowait(None)

    assert await collect_items(attempts.join_attempt("k", b"body", source.answer)) == [
        (200, {}),
        b"a",
    ]
    assert source.begun == 1


async def test_attempt_without_readers_is_cancelled_after_the_configured_time() -> None:
    """A caller that does not return must not hold KV memory forever."""
    source, attempts = Source(), IdempotentAttempts(linger_s=0, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)
    await first.aclose()

    await asyncio.wait_for(source.cancelled.wait(), 5)


async def test_retry_of_a_failed_attempt_runs_again() -> None:
    """The stored failure of an engine would be no answer to the retry."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.steps.put_nowait(EngineError("dead"))
    with pytest.raises(EngineError):
        await collect_items(attempts.join_attempt("k", b"body", source.answer))
    source.steps.put_nowait(None)

    assert await collect_items(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    assert source.begun == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408, 409, 425])
async def test_transient_failure_is_not_stored_for_retries(status: int) -> None:
    """An engine failure or a refusal for lack of capacity must not be stored."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.status = status
    for step in (b"failed", None, b"whole", None):
        source.steps.put_nowait(step)
    first = await collect_items(attempts.join_attempt("k", b"body", source.answer))
    source.status = 200
    again = await collect_items(attempts.join_attempt("k", b"body", source.answer))

    assert [[(status, {}), b"failed"], [(200, {}), b"whole"]] == [first, again]
    assert source.begun == 2
    assert first != await collect_items(attempts.join_attempt("k", b"body", source.answer))
    assert source.begun == 2


@pytest.mark.parametrize("status", [200, 400, 404, 413, 422])
async def test_permanent_error_answer_is_stored_for_retries(status: int) -> None:
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    source.status = status
    source.steps.put_nowait(None)
    answers = [
        await collect_items(attempts.join_attempt("k", b"body", source.answer)) for _ in range(2)
    ]

    assert [[(status, {})]] * 2 == answers
    assert source.begun == 1


async def test_cut_stream_is_not_stored_for_retries() -> None:
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    for step in (b"a", EngineFailed("failed"), b"b", None):
        source.steps.put_nowait(step)
    seen = attempts.join_attempt("k", b"body", source.answer)
    joined = attempts.join_attempt("k", b"body", source.answer)
    for items in (seen, joined):
        with pytest.raises(EngineFailed):
            await collect_items(items)

    assert await collect_items(attempts.join_attempt("k", b"other", source.answer)) == [
        (200, {}),
        b"b",
    ]
    assert source.begun == 2


async def test_idempotency_key_with_another_body_is_refused() -> None:
    """A key names one request, so its answer must not be given to another."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=_AMPLE)
    first = attempts.join_attempt("k", b"body", source.answer)
    await anext(first)

    with pytest.raises(RequestError, match="Idempotency-Key"):
        attempts.join_attempt("k", b"another", source.answer)
    await first.aclose()


async def test_stored_answer_is_replayed_until_it_expires() -> None:
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=0, max_bytes=_AMPLE)
    source.steps.put_nowait(None)
    assert await collect_items(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    await asyncio.sleep(0)  # run the zero-length timer
    await asyncio.sleep(0)
    source.steps.put_nowait(None)

    assert await collect_items(attempts.join_attempt("k", b"body", source.answer)) == [(200, {})]
    assert source.begun == 2


async def store_answer(attempts: IdempotentAttempts, key: str, size: int) -> Source:
    source = Source()
    source.steps.put_nowait(b"x" * size)
    source.steps.put_nowait(None)
    await collect_items(attempts.join_attempt(key, b"body", source.answer))
    return source


async def test_oldest_stored_answers_are_evicted_when_memory_is_full() -> None:
    """A thousand long answers could otherwise fill the memory of the ingress."""
    attempts = IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=5_000)
    sources = [await store_answer(attempts, f"k{i}", 2_000) for i in range(3)]
    again = [await store_answer(attempts, f"k{i}", 2_000) for i in (2, 1)]
    first_again = await store_answer(attempts, "k0", 2_000)

    assert [1, 1, 1] == [source.begun for source in sources]
    assert [0, 0] == [source.begun for source in again]  # read from the stored answers
    assert 1 == first_again.begun


async def test_eviction_of_a_stored_answer_does_not_interrupt_a_reader() -> None:
    """A slow reader gets the whole answer although other answers evict it."""
    source, attempts = Source(), IdempotentAttempts(linger_s=60, kept_s=60, max_bytes=5_000)
    for step in (b"a" * 2_000, b"b" * 2_000, None):
        source.steps.put_nowait(step)
    slow = attempts.join_attempt("slow", b"body", source.answer)
    await anext(slow)
    await store_answer(attempts, "other", 4_000)
    rest = await collect_items(slow)
    again = await collect_items(attempts.join_attempt("slow", b"body", source.answer))

    assert [b"a" * 2_000, b"b" * 2_000] == rest
    assert [(200, {}), *rest] == again
    assert 1 == source.begun


async def test_new_attempt_is_refused_while_running_attempts_fill_the_memory() -> None:
    """Running attempts cannot be evicted, so a new one would exceed the limit."""
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
    later = await store_answer(attempts, "another", 100)

    assert 1 == later.begun
