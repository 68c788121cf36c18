"""Why and when, on a real service: comments, deadlines, and how well starts are foretold."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.core.calibration import Quantiles
from justitia_ray.lab.outlook import score
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.service import ENDLESS, SEATS, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_CALLS = 240
_LENGTHS = (40, 120, 400)
_GAP_S = 0.16
"""Mean time between two arrivals; 1,000 tokens of KV at 5 ms an iteration serve one in 0.19 s."""


@pytest_asyncio.fixture(loop_scope="session")
async def full(http: httpx.AsyncClient, service: Service) -> AsyncIterator[None]:
    """Calls that hold all seats of both engines until the test is over."""
    calls = [
        asyncio.create_task(http.post(COMPLETIONS, json=completion(max_tokens=ENDLESS, n=SEATS)))
        for _ in range(2)
    ]
    try:
        await service.until(
            lambda s: all(one["running"] for one in s["replicas"].values()), "both run"
        )
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.usefixtures("full")
async def test_waiting_stream_is_told_where_it_stands(http: httpx.AsyncClient) -> None:
    """In comments, which keep proxies from closing it as well; and by the path of its owner."""
    head = {"x-justitia-application": "outlook-stream", "x-justitia-final": "true"}
    body = completion(max_tokens=10, stream=True)
    async with http.stream("POST", COMPLETIONS, json=body, headers=head) as answer:
        said = ""
        async for text in answer.aiter_text():
            said += text
            if "position=" in said:
                view = (await http.get("/v1/applications/outlook-stream")).json()
                break  # which leaves the stream

    [line, *_] = [line for line in said.splitlines() if "position=" in line]
    assert line.startswith(": justitia position=0 ")
    assert "reason=headroom" in line
    assert ("headroom", 0) == (view["outlook"]["reason"], view["outlook"]["position"])


@pytest.mark.usefixtures("full")
async def test_call_that_waits_past_its_deadline_is_refused(http: httpx.AsyncClient) -> None:
    """With a status that says so, when it has passed and not later."""
    began_at = time.monotonic()
    answer = await http.post(
        COMPLETIONS, json=completion(max_tokens=10), headers={"x-justitia-deadline-s": "1.5"}
    )
    took_s = time.monotonic() - began_at

    assert (504, "deadline_missed") == (answer.status_code, answer.json()["error"]["code"])
    assert took_s < 15.0  # at once, if the engines are expected to be full for minutes


async def test_deadline_that_is_no_number_is_refused_with_what_is_allowed(
    http: httpx.AsyncClient,
) -> None:
    """A header that is not understood must not be taken for none."""
    head = {"x-justitia-deadline-s": "soon"}
    answer = await http.post(COMPLETIONS, json=completion(max_tokens=10), headers=head)

    assert 400 == answer.status_code
    assert "x-justitia-deadline-s" in answer.json()["error"]["message"]
    assert "above 0" in answer.json()["error"]["message"]


@pytest.mark.slow
async def test_starts_are_foretold_on_fake_engines(serving: Serving) -> None:
    """Asked at arrival and then again and again: eight in ten true starts lie in the range told.

    The range of what passes is wide: two busy cores are no laboratory. What came is logged.
    """
    fake = {"iteration_s": 0.005, "max_num_seqs": 64, "kv_tokens": 1_000, "max_model_len": 1_000}
    async with serving.deployed_service("outlook", replicas=1, fake=fake) as service:
        async with service.http() as http:
            pairs = await _play(http)
        await service.until_idle()
    found = score(pairs)
    logging.getLogger(__name__).warning("told, and what came: %s", found)

    assert found is not None
    assert found.tellings > 100
    assert 0.6 <= found.covered <= 0.97


async def _play(http: httpx.AsyncClient) -> list[tuple[Quantiles, float]]:
    rng = random.Random(11)
    pairs: list[tuple[Quantiles, float]] = []

    async def call(name: str, tokens: int) -> None:
        head = {
            "x-justitia-application": name,
            "x-justitia-class": f"of-{tokens}",
            "x-justitia-final": "true",
        }
        sent_at = time.monotonic()
        body: dict[str, Any] = completion(max_tokens=tokens)
        answering = asyncio.create_task(http.post(COMPLETIONS, json=body, headers=head))
        told: list[tuple[float, Quantiles]] = []
        pause_s = 0.1
        while not answering.done():
            await asyncio.wait({answering}, timeout=pause_s)
            pause_s = min(4.0, 2 * pause_s)
            view = await http.get(f"/v1/applications/{name}")
            if view.status_code != 200:
                break
            outlook = view.json()["outlook"]
            if outlook["expected_start_s"] is None:
                break
            told.append((time.monotonic(), Quantiles(**outlook["expected_start_s"])))
        answer = await answering
        started_at = sent_at + float(answer.headers["x-justitia-waited-s"])
        pairs.extend((said, max(0.0, started_at - at)) for at, said in told)

    calls = []
    for number in range(_CALLS):
        await asyncio.sleep(rng.expovariate(1 / _GAP_S))
        calls.append(asyncio.create_task(call(f"outlook-{number}", rng.choice(_LENGTHS))))
    await asyncio.gather(*calls)
    return pairs
