"""Every rule of the `Engine` Protocol, tested on every engine."""

import asyncio
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from justitia_ray.errors import EngineError
from justitia_ray.protocol.engine import (
    Engine,
    EngineCall,
    EngineCapacity,
    KeptKv,
    Progress,
    ResponseHead,
)
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.replica.prefill_plan import measure_prefill
from tests.conformance.conftest import VLLM_ONLY

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "tiny"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LEASES = (f"lease-{n}" for n in count())


def leased_call(
    body: dict[str, Any] | bytes, path: str = COMPLETIONS, priority: int = 0
) -> EngineCall:
    """Return a call under a new lease; by default its decoding is greedy and its length fixed."""
    if isinstance(body, dict):
        body = json.dumps(
            {"model": MODEL, "temperature": 0, "ignore_eos": True, "max_tokens": 8, **body}
        ).encode()
    return EngineCall(next(LEASES), priority, path, {"x-something": "else"}, body)


def prompt_ids(length: int, first: int = 5) -> list[int]:
    """Return a prompt of `length` tokens; prompts with different `first` tokens share no prefix."""
    return [first] + [5] * (length - 1)


def chat_of(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def answer_to(engine: Engine, call: EngineCall) -> tuple[ResponseHead, bytes]:
    """Return a call's whole answer; fail unless it has exactly one head, which comes first."""
    async with aclosing(engine.call(call)) as items:
        head = await anext(items)
        assert isinstance(head, ResponseHead)
        chunks = []
        async for item in items:
            assert isinstance(item, bytes)
            chunks.append(item)
    return head, b"".join(chunks)


async def answer_json(engine: Engine, call: EngineCall) -> tuple[int, Any]:
    head, body = await answer_to(engine, call)
    return head.status, json.loads(body)


def events_of(body: bytes) -> list[Any]:
    """Return the events of a stream; fail if it does not end with [DONE]."""
    lines = [line for line in body.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Poll a condition on an engine until it holds."""
    async with asyncio.timeout(within_s):
        # Engines do not signal changes of their gauges.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel the task of a caller, and wait until the call is closed."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_engine_reports_the_configured_capacity(
    engine: Engine, capacity: EngineCapacity
) -> None:
    """If the engine reported a token too much, leases would wait in the replica."""
    assert capacity == EngineCapacity(
        2048, block_size=32, max_num_seqs=16, max_model_len=2048, caches_prefixes=True
    )


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(CHAT, {"messages": chat_of("hi there")}), (COMPLETIONS, {"prompt": "a b c"})],
)
async def test_stream_deltas_add_up_to_the_text_of_a_unary_answer(
    engine: Engine, path: str, prompt: dict[str, Any]
) -> None:
    """A lost or doubled stream event would change the caller's answer.

    The ingress frames the answer, so headers of the hop are left out: a stale length would cut it.
    """
    head, unary = await answer_to(engine, leased_call(prompt, path))
    stream_head, stream = await answer_to(engine, leased_call(prompt | {"stream": True}, path))

    choice = json.loads(unary)["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    deltas = [event["choices"][0] for event in events_of(stream)]
    assert 200 == head.status == stream_head.status
    assert "application/json" in head.headers["content-type"]
    assert "text/event-stream" in stream_head.headers["content-type"]
    for names in (head.headers.keys(), stream_head.headers.keys()):
        assert all(name == name.lower() for name in names)
        assert not {"content-length", "transfer-encoding", "connection"} & names
    assert text == "".join(
        delta["delta"].get("content", "") if path == CHAT else delta["text"] for delta in deltas
    )
    assert text
    assert "length" == choice["finish_reason"] == deltas[-1]["finish_reason"]


async def test_stream_arrives_in_several_chunks(engine: Engine, capacity: EngineCapacity) -> None:
    """An engine that collected the whole answer first would delay the first token."""
    call = leased_call({"prompt": "a b c", "max_tokens": 1800, "stream": True})

    async with aclosing(engine.call(call)) as items:
        await anext(items)
        first = await anext(items)
        produced = engine.progress(call.lease_id).output_tokens
    await wait_until(lambda: engine.free_kv_tokens() == capacity.kv_tokens)

    assert isinstance(first, bytes)
    assert produced < 1800


@pytest.mark.slow
async def test_reported_progress_increases_during_a_unary_call(engine: Engine) -> None:
    """Without progress reports the fair-share clock would stop until the end of the call."""
    call = leased_call({"prompt": prompt_ids(10), "max_tokens": 500})
    task = asyncio.create_task(answer_to(engine, call))

    await wait_until(lambda: engine.progress(call.lease_id).output_tokens >= 1)
    early = engine.progress(call.lease_id)
    await wait_until(
        lambda: engine.progress(call.lease_id).output_tokens >= early.output_tokens + 10
    )
    still_running = not task.done()
    await task

    assert still_running
    assert early.prompt_tokens == 10
    assert (10, 500) == counted_tokens(engine.release(call.lease_id))


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("path", "body", "choices"),
    [
        (COMPLETIONS, {"prompt": "a b c"}, 1),
        (COMPLETIONS, {"prompt": ["a b c", "d e"]}, 1),
        (COMPLETIONS, {"prompt": "a b c", "n": 2, "temperature": 1.0}, 2),
        (COMPLETIONS, {"prompt": ["a b c", "d e"], "n": 2, "temperature": 1.0}, 2),
        (CHAT, {"messages": chat_of("hi"), "n": 3, "temperature": 1.0}, 3),
        (COMPLETIONS, {"prompt": "a b c", "max_tokens": 1}, 1),
    ],
    ids=["one", "prompts", "n", "prompts-n", "chat-n", "one-token"],
)
async def test_charged_tokens_equal_the_answers_usage(
    engine: Engine, path: str, body: dict[str, Any], choices: int, stream: bool
) -> None:
    """The tokens that are charged must equal the usage that the caller reads.

    `usage` counts a prompt once; the KV of its n choices holds it n times, and so does progress.
    """
    extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    call = leased_call(body | extra, path)

    _, received = await answer_to(engine, call)
    usage = events_of(received)[-1]["usage"] if stream else json.loads(received)["usage"]

    final = usage["prompt_tokens"] * choices, usage["completion_tokens"]
    assert usage["completion_tokens"] > 0
    assert final == counted_tokens(engine.progress(call.lease_id))
    assert final == counted_tokens(engine.release(call.lease_id))
    assert Progress(0, 0) == engine.progress(call.lease_id)


async def test_two_calls_with_one_request_id_are_metered_separately(engine: Engine) -> None:
    """A client may reuse an X-Request-Id; each lease still pays for its own tokens."""
    calls = [
        replace(leased_call({"prompt": "a b", "max_tokens": n}), headers={"x-request-id": "same"})
        for n in (5, 9)
    ]

    await asyncio.gather(*(answer_to(engine, call) for call in calls))

    produced = [engine.release(call.lease_id).output_tokens for call in calls]
    assert produced == [5, 9]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_closed_call_frees_its_kv_memory_within_a_second(
    engine: Engine, capacity: EngineCapacity, stream: bool
) -> None:
    """A disconnected caller's KV memory must become free for waiting inferences."""
    call = leased_call({"prompt": prompt_ids(1000), "max_tokens": 1000, "stream": stream})
    task = asyncio.create_task(answer_to(engine, call))
    await wait_until(lambda: engine.progress(call.lease_id).output_tokens >= 5)
    held = capacity.kv_tokens - engine.free_kv_tokens()

    async with asyncio.timeout(1.0):
        await cancel_and_wait(task)
        await wait_until(lambda: engine.free_kv_tokens() == capacity.kv_tokens)

    final = engine.release(call.lease_id)
    assert held >= 1000
    assert final.prompt_tokens == 1000
    assert 5 <= final.output_tokens < 1000


@pytest.mark.slow
async def test_closed_call_is_charged_the_tokens_that_the_engine_counted(
    engine: Engine, capacity: EngineCapacity
) -> None:
    """The charge is exact from the first token on, and before it at most the prefilled prompt."""
    rng, before = random.Random(34), _engines_own_count(engine)
    charged = Progress(0, 0)
    unread = 0

    async def close_call(number: int) -> None:
        nonlocal charged, unread
        prompt, most = rng.randint(20, 300), rng.randint(1, 80)
        after_s, turns = rng.uniform(0.0, 0.02 if number % 4 == 0 else 0.3), rng.randint(1, 4)
        call = leased_call(
            {"prompt": prompt_ids(prompt), "max_tokens": most, "stream": number % 3 > 0}
        )
        task = asyncio.create_task(answer_to(engine, call))
        if number % 8 == 0:  # before any token was made
            for _ in range(turns):
                await asyncio.sleep(0)
        else:
            await asyncio.wait([task], timeout=after_s)
        if not task.done():
            await cancel_and_wait(task)
        used = engine.release(call.lease_id)
        if used.output_tokens:
            charged = Progress(
                charged.prompt_tokens + used.prompt_tokens,
                charged.output_tokens + used.output_tokens,
            )
        else:
            unread += 1
            assert 0 <= used.prompt_tokens <= prompt

    for begin in range(0, 200, 8):
        await asyncio.gather(*(close_call(number) for number in range(begin, begin + 8)))
    await wait_until(lambda: engine.free_kv_tokens() == capacity.kv_tokens)

    counted = _engines_own_count(engine)
    assert unread >= 10
    assert charged == Progress(
        counted.prompt_tokens - before.prompt_tokens,
        counted.output_tokens - before.output_tokens,
    )


def counted_tokens(progress: Progress) -> tuple[int, int]:
    """Return the number of prompt and output tokens, whether they were cached or not."""
    return progress.prompt_tokens, progress.output_tokens


def _engines_own_count(engine: Engine) -> Progress:
    if isinstance(engine, FakeEngine):
        return Progress(engine.begun_prompt_tokens, engine.made_tokens)
    from prometheus_client import REGISTRY

    totals = {
        sample.name: sample.value for metric in REGISTRY.collect() for sample in metric.samples
    }
    return Progress(
        int(totals["vllm:prompt_tokens_total"]), int(totals["vllm:generation_tokens_total"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_call_closed_while_waiting_for_memory_is_never_admitted(
    engine: Engine, capacity: EngineCapacity, stream: bool
) -> None:
    running = leased_call({"prompt": prompt_ids(1600, 7), "max_tokens": 400})
    waiting = leased_call({"prompt": prompt_ids(500, 8), "max_tokens": 400, "stream": stream})
    running_task = asyncio.create_task(answer_to(engine, running))
    await wait_until(lambda: engine.progress(running.lease_id).output_tokens >= 1)
    waiting_task = asyncio.create_task(answer_to(engine, waiting))
    await wait_until(lambda: engine.progress(waiting.lease_id).prompt_tokens > 0)

    async with asyncio.timeout(1.0):
        await cancel_and_wait(waiting_task)
    _, body = await running_task
    await wait_until(lambda: engine.free_kv_tokens() == capacity.kv_tokens)

    assert json.loads(body)["usage"]["completion_tokens"] == 400
    assert Progress(0, 0) == engine.release(waiting.lease_id)


async def finishing_order(engine: Engine, calls: list[EngineCall]) -> list[int]:
    """Run calls concurrently, and return their priorities in the order in which they finished.

    No prompt of them fits beside the call that blocks the memory.
    """
    blocker = leased_call({"prompt": prompt_ids(1060, 6), "max_tokens": 980})
    blocking = asyncio.create_task(answer_to(engine, blocker))
    await wait_until(lambda: engine.progress(blocker.lease_id).output_tokens >= 1)
    order: list[int] = []

    async def run_and_note(call: EngineCall) -> None:
        _, body = await answer_json(engine, call)
        order.append(call.priority)
        assert body["usage"]["completion_tokens"] == json.loads(call.body)["max_tokens"]

    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(run_and_note(call)))
        await wait_until(lambda call=call: engine.progress(call.lease_id).prompt_tokens > 0)  # type: ignore[misc]
    assert all(engine.progress(call.lease_id).output_tokens == 0 for call in calls)
    await cancel_and_wait(blocking)
    await asyncio.gather(*tasks)
    return order


async def test_call_with_a_lower_priority_number_is_admitted_first(engine: Engine) -> None:
    """The engine's own queue must not change the order in which leases were granted.

    No two of the calls fit at once, so they end in the order of their admission.
    """
    calls = [
        leased_call({"prompt": prompt_ids(1100, 7 + number)}, priority=priority)
        for number, priority in enumerate((30, -5, 20, 10))
    ]

    order = await finishing_order(engine, calls)

    assert order == [-5, 10, 20, 30]
    if isinstance(engine, FakeEngine):
        by_priority = sorted(calls, key=lambda call: call.priority)
        assert [call.lease_id for call in by_priority] == engine.admitted[-4:]


async def test_priority_in_a_request_body_is_ignored(engine: Engine) -> None:
    """With a priority in the body, a caller could put its own call first."""
    calls = [
        leased_call({"prompt": prompt_ids(1100, 7 + given), "priority": asked}, priority=given)
        for given, asked in ((3, 0), (1, 9), (2, 5))
    ]

    assert await finishing_order(engine, calls) == [1, 2, 3]


@pytest.mark.slow
async def test_full_kv_memory_preempts_the_call_with_the_lowest_priority(engine: Engine) -> None:
    """A preempted call is recomputed, and its caller still gets a complete answer.

    It has about 1,024 tokens then; the other call takes 256 of them before it ends.
    """
    before = engine.preemptions()
    last = leased_call({"prompt": prompt_ids(980, 7), "max_tokens": 300}, priority=2)
    first = leased_call({"prompt": prompt_ids(980, 8), "max_tokens": 300}, priority=1)

    order = await finishing_order(engine, [last, first])

    assert order == [1, 2]
    assert before < engine.preemptions()
    used = engine.release(last.lease_id)
    assert (980, 300) == counted_tokens(used)
    assert 200 <= used.recomputed_tokens <= 1_280
    assert engine.release(first.lease_id).recomputed_tokens == 0


async def test_engine_without_holds_and_host_memory_reports_no_kept_kv(engine: Engine) -> None:
    assert KeptKv() == engine.kept_kv()


async def test_engine_answers_calls_that_measure_its_prefill_cost(
    engine: Engine, capacity: EngineCapacity, caplog: pytest.LogCaptureFixture
) -> None:
    """The calibration calls must succeed, even if a busy machine makes their times useless."""
    measured = await measure_prefill(engine, capacity, "tiny")

    assert measured is not None or "the times contradict" in caplog.text
    await wait_until(lambda: engine.free_kv_tokens() == capacity.kv_tokens)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (COMPLETIONS, {"model": "nope", "prompt": "a"}, 404, "model"),
        (CHAT, {"model": "nope", "messages": chat_of("a")}, 404, "model"),
        (CHAT, {}, 400, None),
        (COMPLETIONS, {}, 400, "prompt"),
        (COMPLETIONS, b'{"prompt": ', 400, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, {"prompt": prompt_ids(3000)}, 400, "input_tokens"),
        (COMPLETIONS, {"prompt": "a", "stream": "perhaps"}, 400, None),
    ],
    ids=[
        "unknown-model",
        "unknown-model-chat",
        "no-messages",
        "no-prompt",
        "not-json",
        "no-tokens",
        "too-long",
        "no-bool",
    ],
)
async def test_invalid_request_gets_an_openai_error(
    engine: Engine, path: str, body: dict[str, Any] | bytes, status: int, param: str | None
) -> None:
    """Clients show `error.message`, so every refusal must have it."""
    call = leased_call(body, path)

    answered, received = await answer_json(engine, call)

    assert status == answered == received["error"]["code"]
    assert received["error"]["message"]
    assert param is None or param == received["error"]["param"]
    assert Progress(0, 0) == engine.release(call.lease_id)


async def test_unserved_path_is_answered_with_404(engine: Engine) -> None:
    """A misspelt path is the caller's error, and no reason to restart the replica."""
    head, _ = await answer_to(engine, leased_call({"prompt": "a"}, "/v1/completion"))

    assert head.status == 404
    engine.check()


def engine_processes() -> dict[int, psutil.Process]:
    """Return the engine's child processes, without the helper process of multiprocessing.

    A Ray cluster started by other tests is excluded too: its processes come and go.
    """
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        if not _mentions(child, "/ray/"):
            found += [child, *child.children(recursive=True)]
    return {p.pid: p for p in found if not _mentions(p, "resource_tracker")}


def _mentions(process: psutil.Process, word: str) -> bool:
    return any(word in argument for argument in process.cmdline())


async def test_engine_counts_its_steps_while_it_has_work(engine: Engine) -> None:
    """A replica takes its engine for stalled if the step counter stands still."""
    before = engine.steps()
    assert not before.has_work
    call = leased_call({"prompt": "a", "max_tokens": 20})
    running = asyncio.create_task(answer_to(engine, call))
    await wait_until(lambda: engine.steps().has_work)
    await running

    after = engine.steps()
    assert after.made >= before.made + 20
    await wait_until(lambda: not engine.steps().has_work)
    assert "" == engine.suspended()


class StallingEngine:
    """Stops and continues the processes of an engine with signals."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.pids = [core.pid for core in getattr(engine, "_core_processes", [])]
        """Processes of a vLLM engine that run its steps; empty for a fake engine."""
        assert isinstance(engine, FakeEngine) or self.pids

    def stop(self) -> None:
        if isinstance(self._engine, FakeEngine):
            self._engine.stall("its process")
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if isinstance(self._engine, FakeEngine):
            self._engine.go_on()
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)


async def test_stalled_engine_makes_no_steps_until_it_continues(engine: Engine) -> None:
    """Calls may be cancelled while the engine is stalled; its steps continue afterwards."""
    stalling = StallingEngine(engine)
    await answer_to(engine, leased_call({"prompt": "a"}))
    # The engine is stopped twice: during a call, and while it is idle.
    for comes_before_it in (True, False):
        call = leased_call({"prompt": "a", "max_tokens": 2000, "stream": True})
        if comes_before_it:
            running = asyncio.create_task(answer_to(engine, call))
            await wait_until(lambda call=call: engine.progress(call.lease_id).output_tokens >= 5)  # type: ignore[misc]
            stalling.stop()
        else:
            stalling.stop()
            running = asyncio.create_task(answer_to(engine, call))
        try:
            await wait_until(lambda: engine.steps().has_work and bool(engine.suspended()))
            await asyncio.sleep(0.2)  # Outputs from before the stop have been read by now.
            made = engine.steps().made
            await asyncio.sleep(0.2)
            assert made == engine.steps().made
            engine.check()

            await cancel_and_wait(running)
            assert not engine.steps().has_work
        finally:
            stalling.go_on()
        await wait_until(lambda made=made: engine.steps().made > made)  # type: ignore[misc]
        assert "" == engine.suspended()
        head, _ = await answer_to(engine, leased_call({"prompt": "a"}))
        assert head.status == 200


# The tests below start engines of their own.
@pytest.mark.parametrize(
    "own_engine",
    ["fake", pytest.param("vllm", marks=[*VLLM_ONLY[0].marks, pytest.mark.long])],
    indirect=True,
)
async def test_stalled_engine_can_be_killed(own_engine: Engine) -> None:
    """A process stopped by SIGSTOP can only be ended by SIGKILL."""
    await own_engine.start()
    stalling = StallingEngine(own_engine)
    stalling.stop()
    await asyncio.to_thread(own_engine.kill)
    with pytest.raises(EngineError):
        own_engine.check()
    await own_engine.stop()

    assert not [pid for pid in stalling.pids if psutil.pid_exists(pid)]


async def test_dead_engine_raises_an_engine_error_and_leaves_no_process(
    own_engine: Engine,
) -> None:
    """The replica lets its leases run elsewhere only after an EngineError.

    Workers outlive a killed engine; they would hold the GPU's memory.
    """
    others = engine_processes()
    cores = set(multiprocessing.active_children())
    with pytest.raises(EngineError):
        own_engine.check()
    await own_engine.start()
    started = [p for pid, p in engine_processes().items() if pid not in others]
    received: dict[bool, list[ResponseHead | bytes]] = {False: [], True: []}

    async def receive_items(call: EngineCall, stream: bool) -> None:
        async for item in own_engine.call(call):
            received[stream].append(item)

    calls = {s: leased_call({"prompt": "a", "max_tokens": 2000, "stream": s}) for s in received}
    tasks = {s: asyncio.create_task(receive_items(call, s)) for s, call in calls.items()}
    for call in calls.values():
        await wait_until(lambda call=call: own_engine.progress(call.lease_id).output_tokens >= 5)  # type: ignore[misc]

    if isinstance(own_engine, FakeEngine):
        own_engine.die(by_itself=False)
    else:
        (core,) = set(multiprocessing.active_children()) - cores
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)

    for task in tasks.values():
        with pytest.raises(EngineError):
            await task
    assert received[False] == []
    assert getattr(received[True][0], "status", None) == 200
    assert b"[DONE]" not in b"".join(item for item in received[True] if isinstance(item, bytes))
    with pytest.raises(EngineError):
        own_engine.check()
    assert not own_engine.died_by_itself()
    with pytest.raises(EngineError):
        await answer_to(own_engine, leased_call({"prompt": "a"}))
    assert own_engine.progress(calls[False].lease_id).output_tokens >= 5

    await own_engine.stop()
    await own_engine.stop()

    assert not [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert others.keys() == engine_processes().keys()
