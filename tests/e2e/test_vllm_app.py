"""The shipped CPU configuration on one real vLLM engine, from HTTP to the engine's processes."""

import asyncio
import json
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from justitia_ray.core.policies.justitia import rank_preserving_integer
from tests.e2e.conftest import MOST_WEIGHT
from tests.eventually import eventually
from tests.harness.bodies import CHAT, COMPLETIONS, chat, completion
from tests.harness.open_calls import OpenStream, cancel_calls
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

_SOON_S = 2.0
"""Time limit in seconds: the engine frees memory within one second, and the query takes another."""
_LONG = completion("one two three", max_tokens=1_900)


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat("a b c", 20)), (COMPLETIONS, completion("a b c", 20))]
)
async def test_stream_has_the_text_and_usage_of_a_unary_answer(
    service: Service, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """The service neither loses nor adds bytes of vLLM's answer."""
    body = body | {"temperature": 0, "ignore_eos": True}
    whole = (await http.post(path, json=body)).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", path, json=body | options) as stream:
        events = [line.removeprefix("data: ") async for line in stream.aiter_lines() if line]
    chunks = [json.loads(event) for event in events[:-1]]
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]

    assert "[DONE]" == events[-1]
    assert 20 == whole["usage"]["completion_tokens"]
    assert whole["usage"]["total_tokens"] == chunks[-1]["usage"]["total_tokens"]
    if path == CHAT:
        text = "".join(piece["delta"].get("content") or "" for piece in pieces)
        assert whole["choices"][0]["message"]["content"] == text
    else:
        assert whole["choices"][0]["text"] == "".join(piece["text"] for piece in pieces)
    await service.until_idle()


async def test_vllm_gets_the_schedulers_priority_instead_of_the_callers(
    service: Service, http: httpx.AsyncClient
) -> None:
    """VLLM's order of execution must equal the scheduler's order."""
    (replica_id,) = await service.pulling_replicas()
    await service.probe(replica_id, "watch_priorities")
    opening = {"application_class": "c", "application_id": "ranked", "weight": MOST_WEIGHT}
    tag = (await http.post("/v1/applications", json=opening)).json()["virtual_finish_time"]
    headers = {"x-justitia-application": "ranked"}
    answer = await http.post(COMPLETIONS, json=completion(priority=-1), headers=headers)
    await http.post("/v1/applications/ranked/close")

    assert 200 == answer.status_code
    assert [rank_preserving_integer(tag)] == await service.probe(replica_id, "priorities")
    await service.until_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_of_a_caller_frees_the_callers_kv_memory(
    service: Service, http: httpx.AsyncClient, stream: bool
) -> None:
    """A disconnected caller must not delay others until its last token."""
    (replica_id,) = await service.pulling_replicas()
    call = asyncio.create_task(http.post(COMPLETIONS, json=_LONG | {"stream": stream}))
    await eventually(service.busy_kv_tokens, "it holds KV")
    await cancel_calls([call])

    await eventually(service.kv_is_free, "KV is free", _SOON_S)
    assert [replica_id] == await service.pulling_replicas()
    await service.until_idle(_SOON_S)


async def test_stream_cut_by_an_engine_death_continues_on_another_engine(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Without continuation, vLLM would end cut streams with status 200 and [DONE].

    The call is greedy and alone in its batch before and after: another batch may change the last
    bits of the CPU's results, and with them a token.
    """
    body = completion("one two three", 600, temperature=0, stream_options={"include_usage": True})
    undisturbed = OpenStream(http, body)
    expected = await undisturbed.answer()
    (before,) = await service.pulling_replicas()
    (pid,) = await service.probe(before, "engine_pids")
    core = psutil.Process(pid)
    processes = [core, *core.children(recursive=True)]
    stream = OpenStream(http, body)
    await eventually(lambda: len(stream.events) > 2, "the stream has begun")
    core.suspend()  # On a fast machine the stream would end too early.
    core.kill()
    continued = await stream.answer()

    assert (expected, undisturbed.usage) == (continued, stream.usage)
    assert 600 == continued.output_tokens
    (after,) = await service.pulling_replicas()
    assert before != after
    assert not [process for process in processes if process.is_running()]
    await service.until_idle()


@pytest.mark.long
async def test_streams_continue_when_a_tensor_parallel_rank_dies(
    divided: Service,
) -> None:
    """If one tensor-parallel rank dies, the engine's other processes must end, too."""
    (before,) = await divided.pulling_replicas()
    (pid,) = await divided.probe(before, "engine_pids")
    core = psutil.Process(pid)
    ranks = [one for one in core.children(recursive=True) if "Worker_TP" in one.name()]
    async with divided.http() as http:
        body = completion("one two three", 600, stream_options={"include_usage": True})
        stream = OpenStream(http, body)
        await eventually(lambda: len(stream.events) > 2, "the stream has begun", 120.0)
        ranks[-1].suspend()  # On a fast machine the stream would end too early.
        ranks[-1].kill()
        continued = await stream.answer()

    assert 2 == len(ranks)
    assert 600 == continued.output_tokens
    (after,) = await divided.pulling_replicas()
    assert before != after
    assert not [process for process in (core, *ranks) if process.is_running()]
    await divided.until_idle()
