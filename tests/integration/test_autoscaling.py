"""Engines that come and go by the queue's demand, while callers call."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray

from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.known_load import known_load
from tests.integration.load import OpenStream
from tests.integration.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_SCALED_WITHIN_S = 240.0
"""Starting an engine's process takes seconds, and many where all of them share two cores."""
_RULES: dict[str, Any] = {
    "max_replicas": 4,
    "target_drain_s": 1.5,
    "load_s": 1.0,
    "hold_s": 2.0,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 4.0,
    "poll_s": 0.2,
}
"""Delays of an operator who does not wait for minutes."""
_FAKE = {"iteration_s": 0.02, "max_num_seqs": 2, "kv_tokens": 2 * 65_536}
"""A call of 60 tokens takes 1.2 seconds: 16 callers keep eight such engines busy."""


async def until_replicas(service: Service, number: int) -> list[str]:
    """Return the replicas that take work once there are so many."""
    found: list[str] = []

    async def are_there() -> bool:
        nonlocal found
        found = await service.pulling()
        return len(found) == number

    what = f"{number} replicas take work"
    try:
        await eventually(are_there, what, _SCALED_WITHIN_S, every_s=0.2)
    except AssertionError as late:
        late.add_note(f"{found} do; the size is {(await service.status()).get('size')}")
        raise
    return found


async def several_pull(service: Service) -> bool:
    """Return whether more than one replica takes work."""
    return len(await service.pulling()) > 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """An application with at least so many engines as the tests say."""
    least = request.param
    async with serving.deployed_service(
        f"scaled-{least}",
        replicas=least,
        fake=_FAKE,
        autoscaling={**_RULES, "min_replicas": least},
    ) as service:
        yield service


@pytest.mark.parametrize("service", [1], indirect=True)
async def test_one_four_one_under_load_loses_nothing(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Each caller has its answers, each once; a stream on an engine that leaves runs to its end.

    A stream with a penalty goes on nowhere else: one that was cut would end with an error. Four of
    them would fit on two engines, so that two are to leave.
    """
    async with known_load(http, callers=1) as few:
        async with known_load(http, callers=16, seed=2) as many:
            four = await until_replicas(service, 4)
            size = (await service.status())["size"]
        body = completion(max_tokens=1_000, presence_penalty=0.5)
        streams = [OpenStream(http, body) for _ in four]
        (last,) = await until_replicas(service, 1)
        await few.until_more(3)

    assert last in four
    assert 4 == size["wanted"]
    assert ["[DONE]"] * 4 == [await stream.end() for stream in streams]
    many.check()
    few.check()


@pytest.mark.parametrize("service", [1], indirect=True)
async def test_killed_scheduler_ends_no_replica(service: Service, http: httpx.AsyncClient) -> None:
    """While it starts again and recovers its queue is empty, which is no reason to have none."""
    async with known_load(http, callers=8) as load:
        await eventually(lambda: several_pull(service), "several pull", _SCALED_WITHIN_S)
        before = await service.pulling()
        epoch = (await service.status())["epoch"]
        ray.kill(service.scheduler(), no_restart=False)
        await service.until(lambda s: s["ready"] and s["epoch"] > epoch, "another one leads")
        await load.until_more(10)
        after = await service.pulling()

    assert set(before) <= set(after)
    load.check()


@pytest.mark.parametrize("service", [0], indirect=True)
async def test_zero_one_zero_loses_nothing(service: Service, http: httpx.AsyncClient) -> None:
    """The first call waits for an engine to start."""
    assert [] == await until_replicas(service, 0)
    ready = await http.get("/readyz")
    async with known_load(http, callers=2) as load:
        before = await until_replicas(service, 1)
        await load.until_more(2)
    await until_replicas(service, 0)
    stream = OpenStream(http, completion("again", max_tokens=20))
    after = await until_replicas(service, 1)

    assert 200 == ready.status_code, ready.text
    assert "[DONE]" == await stream.end()
    assert before != after
    load.check()
    assert 200 == (await http.post(COMPLETIONS, json=completion())).status_code
    await until_replicas(service, 0)
    assert "nothing" == (await service.status())["size"]["reason"]
