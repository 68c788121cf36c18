"""A caller's header cannot raise the operator's limit `request_timeout_s`."""

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.integration.serve_front.conftest import LIMIT_S

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_LATE_S = 5.0
"""Extra seconds for a busy machine; without a limit the call would run for 4 minutes."""
_LONG = completion(max_tokens=12_000)


async def check_call_ends_at_the_limit(http: httpx.AsyncClient, limit_s: float) -> None:
    """Check that a long call and a long stream end at the limit and leave no inference."""

    async def time_call(stream: bool) -> tuple[httpx.Response, float]:
        began_at = time.monotonic()
        answer = await http.post(COMPLETIONS, json=_LONG | {"stream": stream})
        return answer, time.monotonic() - began_at

    (whole, took_s), (streamed, stream_took_s) = await asyncio.gather(
        time_call(False), time_call(True)
    )

    async def service_is_idle() -> bool:
        return bool(0 == (await http.get("/v1/status")).json()["in_flight"])

    await eventually(service_is_idle, "the engine has given them up")

    assert (504, "false") == (whole.status_code, whole.headers["x-should-retry"])
    assert "deadline_missed" == whole.json()["error"]["code"]
    assert 200 == streamed.status_code
    assert "deadline_missed" in streamed.text.splitlines()[-2]
    assert max(took_s, stream_took_s) < limit_s + _LATE_S


@pytest.mark.parametrize("asked", ["0", "-1", "3600"])
async def test_serves_request_timeout_ends_a_call(
    caller: Callable[..., httpx.AsyncClient], asked: str
) -> None:
    async with caller(x_request_timeout_seconds=asked) as http:
        await check_call_ends_at_the_limit(http, LIMIT_S)
