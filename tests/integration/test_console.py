"""Frames of a running service's console show what the engines themselves count."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from justitia_ray.protocol.console import Frame, Hello, Line, read_line
from justitia_ray.protocol.console_answers import Timeline, WhatIfAnswer
from justitia_ray.protocol.status import read_answer
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import ENDLESS, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_SNAPSHOTS = "/v1/console/snapshots"


@asynccontextmanager
async def console_lines(
    http: httpx.AsyncClient, **headers: str
) -> AsyncIterator[AsyncIterator[Line]]:
    """Open a stream of the console, and yield its lines."""

    async def parsed_lines(answer: httpx.Response) -> AsyncIterator[Line]:
        async for text in answer.aiter_lines():
            line = read_line(json.loads(text)) if text else None
            if line is not None:
                yield line

    async with http.stream("GET", _SNAPSHOTS, headers=headers, timeout=30.0) as answer:
        assert answer.status_code == 200
        yield parsed_lines(answer)


async def next_frame(lines: AsyncIterator[Line]) -> Frame:
    async with asyncio.timeout(20):
        async for line in lines:
            if isinstance(line, Frame):
                return line
    raise AssertionError("the stream has ended")


async def test_console_frames_show_the_token_counts_of_the_engines(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Two endless calls of one application run; another tenant sees only its own counts."""
    named = {"x-justitia-application": "console-app", "x-justitia-tenant": "console-tenant"}
    body = completion(max_tokens=ENDLESS)
    calls = [
        asyncio.create_task(http.post(COMPLETIONS, json=body, headers=named)) for _ in range(2)
    ]
    try:
        await service.until(
            lambda s: sum(one["running"] for one in s["replicas"].values()) == 2, "both run"
        )
        async with console_lines(http) as lines:
            assert isinstance(await anext(lines), Hello)
            first = await next_frame(lines)
            assert first.is_whole
            later = [await next_frame(lines) for _ in range(2)]
            engines = (await http.get("/v1/examination")).json()["replicas"]
            last = await next_frame(lines)
        async with console_lines(http, **{"x-justitia-tenant": "another"}) as lines:
            others = await next_frame(lines)
        key = "console-tenant|console-app"
        told = (await http.get(f"/v1/console/applications/{key}")).json()
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await http.delete("/v1/applications/console-app", headers=named)

    assert not any(frame.is_whole for frame in later)
    assert [frame.number for frame in later] == [first.number + 1, first.number + 2]
    assert (first.own.applications, first.own.running) == (1, 2)
    assert {bar.application for bar in first.bars if bar.end is None} == {key}
    assert first.labels[key] == ("console-tenant", "console-app", "default")
    before = {one.replica_id: one.used_kv_tokens or 0 for one in later[-1].replicas}
    after = {one.replica_id: one.used_kv_tokens or 0 for one in last.replicas}
    for name, engine in engines.items():
        used = engine["kv_tokens"] - engine["free_kv_tokens"]
        assert before[name] <= used <= after[name]
    assert (others.own.applications, others.others.running) == (0, 2)
    assert "console-tenant" not in repr(others)
    timeline = read_answer(Timeline, told["models"][first.model], "timeline")
    assert [call.ended_at for call in timeline.calls] == [None, None]
    assert all(call.started_at is not None for call in timeline.calls)


async def test_what_if_estimate_replays_the_recorded_minutes(http: httpx.AsyncClient) -> None:
    async with console_lines(http) as lines:
        await next_frame(lines)
        for number in range(3):
            named = {"x-justitia-application": f"what-if-{number}", "x-justitia-final": "true"}
            answer = await http.post(COMPLETIONS, json=completion(max_tokens=20), headers=named)
            assert answer.status_code == 200
        told = await http.post("/v1/console/what-if", json={"policy": "fcfs", "replicas": 1})

    assert told.status_code == 200, told.text
    estimate = read_answer(WhatIfAnswer, told.json(), "estimate")
    assert estimate.applications >= 3
    assert (estimate.after.policy, estimate.after.replicas) == ("fcfs", 1)
    assert estimate.measured.mean_s is not None


async def test_short_console_path_redirects_to_the_console_page(http: httpx.AsyncClient) -> None:
    redirect = await http.get("/console")

    assert (redirect.status_code, redirect.headers["location"]) == (307, "console/")
