"""A call that kills its engine kills two engines at most, and breaks no other call."""

import os
import signal
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.breakable import CRASHER
from tests.harness.open_calls import OpenStream
from tests.harness.planned import KILLER
from tests.harness.service import PROBED, Json, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_STREAMS = 10
_TOKENS = 400
_KILLER = completion(f"{KILLER} please", max_tokens=50)
_CRASHER = completion(f"{CRASHER} please", max_tokens=50)
_WHOLE_WITHIN_S = 240.0
_DEATHS = (2, 3)
"""Numbers of engines that one call may kill. The third dies if another call ran beside it on both
earlier engines, as on a busy machine.
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with four engines, on which a stream takes twelve seconds."""
    async with serving.deployed_service(
        "killers", import_path=PROBED, replicas=4, fake={"iteration_s": 0.03}
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def streams(service: Service, http: httpx.AsyncClient) -> AsyncIterator[list[OpenStream]]:
    """Ten streams on four engines, which must all end whole."""
    await service.wait_until_complete(_WHOLE_WITHIN_S)
    body = completion(max_tokens=_TOKENS, stream_options={"include_usage": True})
    streams = [OpenStream(http, body) for _ in range(_STREAMS)]
    for stream in streams:
        await eventually(stream.has_begun, "the stream has begun", 60.0)
    yield streams
    (answer,) = {await stream.answer() for stream in streams}
    assert _TOKENS == answer.output_tokens


async def _engine_deaths(service: Service) -> int:
    failures: Json = (await service.status())["engine_failures"]
    assert 0 == failures["kill"]
    return int(failures["crash"])


async def test_unary_call_that_kills_engines_is_refused_after_two_deaths(
    service: Service, http: httpx.AsyncClient, streams: list[OpenStream]
) -> None:
    """OpenAI's client repeats a 502 by itself unless a header forbids it."""
    before = await _engine_deaths(service)
    answer = await http.post(COMPLETIONS, json=_KILLER)

    assert 502 == answer.status_code
    assert "engine_killer" == answer.json()["error"]["code"]
    assert "engine_killer" == answer.headers["x-justitia-dropped-reason"]
    assert "false" == answer.headers["x-should-retry"]
    assert await _engine_deaths(service) - before in _DEATHS
    assert 0 == (await service.status())["suspects"]
    assert not any(stream.has_ended() for stream in streams)


async def test_call_that_crashes_replica_processes_is_refused_after_two_crashes(
    service: Service, http: httpx.AsyncClient, streams: list[OpenStream]
) -> None:
    """A call that ran while its replica was killed from outside is not blamed for the death."""
    before = await _engine_deaths(service)
    answer = await http.post(COMPLETIONS, json=_CRASHER)

    assert (502, "engine_killer") == (answer.status_code, answer.json()["error"]["code"])
    died = await _engine_deaths(service) - before
    assert died in _DEATHS
    status = await service.status()
    assert 0 == status["suspects"]
    left = [name for name, one in status["replicas"].items() if not one["draining"]]
    victim = max(left, key=lambda name: int(status["replicas"][name]["leases"]))
    os.kill(await service.probe(victim, "process_id"), signal.SIGKILL)

    async def replica_has_gone() -> bool:
        return victim not in (await service.status())["replicas"]

    await eventually(replica_has_gone, "the killed replica is lost", 60.0)
    assert died == await _engine_deaths(service) - before
    assert 0 == (await service.status())["suspects"]
