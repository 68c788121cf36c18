"""A caller's header for Ray cannot raise the operator's `request_timeout_s`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack

import httpx
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.front_cluster import FrontCluster, front_cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_LIMIT_S = 3.0
_LATE_S = 5.0
"""Allowance for a busy machine; without a timeout the call runs for 10 minutes."""
_LONG = completion(max_tokens=12_000)


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=["1", "0"], ids=["haproxy", "serve"]
)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[FrontCluster]:
    """Service with a time limit of calls, behind either proxy."""
    fake = {"iteration_s": 0.05, "kv_tokens": 100_000, "max_model_len": 16_384}
    args = {"engine": {"kind": "fake", "fake": fake}}
    environment = {"RAY_SERVE_ENABLE_HA_PROXY": request.param}
    options = {"request_timeout_s": _LIMIT_S}
    with ExitStack() as stack:
        running = front_cluster(environment, args, options)
        yield await asyncio.to_thread(stack.enter_context, running)
        await asyncio.to_thread(stack.close)


@pytest.mark.parametrize("asked", ["0", "-1", "3600"])
async def test_call_ends_at_the_operators_request_timeout(
    cluster: FrontCluster, asked: str
) -> None:
    headers = {"x-request-timeout-seconds": asked}
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0, headers=headers) as http:
        begin = time.monotonic()
        whole = await http.post(COMPLETIONS, json=_LONG)
        took_s = time.monotonic() - begin
        begin = time.monotonic()
        streamed = await http.post(COMPLETIONS, json=_LONG | {"stream": True})
        stream_took_s = time.monotonic() - begin

        async def is_idle() -> bool:
            return bool(0 == (await http.get("/v1/status")).json()["in_flight"])

        await eventually(is_idle, "the engine has given them up")

    assert (504, "false") == (whole.status_code, whole.headers["x-should-retry"])
    assert "deadline_missed" == whole.json()["error"]["code"]
    assert 200 == streamed.status_code
    assert "deadline_missed" in streamed.text.splitlines()[-2]
    assert max(took_s, stream_took_s) < _LIMIT_S + _LATE_S
