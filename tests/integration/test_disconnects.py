"""The resources of a disconnected caller are freed within a second."""

import asyncio

import httpx
import pytest

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion, encoded_json
from tests.harness.open_calls import cancel_calls, occupy_all_seats
from tests.harness.service import ENDLESS, Service

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_SOON_S = 2.0
"""Time limit in seconds: the engine frees memory within one second, and the query takes another."""
_LONG = completion(max_tokens=ENDLESS)


async def test_disconnected_unary_call_frees_its_kv_memory(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Engines continue a disconnected unary call unless it is aborted."""
    call = asyncio.create_task(http.post(COMPLETIONS, json=_LONG))
    await eventually(service.busy_kv_tokens, "it holds KV")
    await cancel_calls([call])

    await eventually(service.kv_is_free, "KV is free", _SOON_S)
    await service.until_idle(_SOON_S)


async def test_disconnected_stream_frees_its_kv_memory(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Dropping the generator of a Serve handle alone would not stop the generation."""
    async with http.stream("POST", COMPLETIONS, json=_LONG | {"stream": True}) as stream:
        await anext(stream.aiter_raw())

    await eventually(service.kv_is_free, "KV is free", _SOON_S)
    await service.until_idle(_SOON_S)


@pytest.mark.parametrize("stream", [False, True])
async def test_call_cancelled_while_queued_never_runs(
    http: httpx.AsyncClient, service: Service, stream: bool
) -> None:
    """A call whose agent has gone must not take a turn from another call."""
    async with occupy_all_seats(service, http):
        before = await service.status()
        waiting = asyncio.create_task(http.post(COMPLETIONS, json=completion(stream=stream)))
        await service.until(lambda s: s["waiting"] == 1, "it waits")
        await cancel_calls([waiting])
        await service.until(lambda s: s["waiting"] == 0, "it has left", _SOON_S)
    after = await service.until_idle()

    assert before["grants"] == after["grants"]


async def test_cancelled_serve_handle_call_frees_its_kv_memory(service: Service) -> None:
    """Agents inside Serve disconnect by cancelling, not by closing a connection."""
    response = service.handle().call.remote("POST", COMPLETIONS, {}, encoded_json(_LONG))
    await eventually(service.busy_kv_tokens, "it holds KV")
    response.cancel()

    await eventually(service.kv_is_free, "KV is free", _SOON_S)
    await service.until_idle(_SOON_S)
