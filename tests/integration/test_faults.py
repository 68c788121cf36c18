"""Deaths of processes under load: no call is lost or run twice, and the order is kept."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray
from playwright.async_api import expect

from tests.eventually import eventually
from tests.harness.answers import unary_answer
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.known_load import known_load
from tests.harness.open_calls import (
    OpenStream,
    occupy_all_seats,
    state_when_idle,
    virtual_finish_times,
)
from tests.harness.service import ITERATION_S, PROBED, SEATS, Json, Service, Serving
from tests.integration.console.viewer import Viewers

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_BACK_WITHIN_S = 60.0
"""Longest recovery in seconds on busy cores, where a process takes ten seconds to start; the target
of 5 s is measured by `scripts/chaos`.
"""
_REPLACED_WITHIN_S = 180.0
"""Longest time in seconds to replace a replica: its health checks must fail, and another must
start.
"""
_HEARTBEAT_S = 4.0
"""Seconds for which an idle replica's pull stays open; between two pulls it gets no lease."""
_BLOCKED_S = 3.0
_BUSY_S = 16.0
"""Seconds for which a replica is blocked, longer than `replica_timeout_s` and than silent
connections are kept.
"""
_STALLED_S = 20.0
"""Seconds without steps after which an engine is replaced."""
_SLOW_S = 0.2
"""Seconds of a slow iteration, with which running calls do not end before the test wants it."""

_STREAMED = completion(max_tokens=1_500, stream_options={"include_usage": True})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fragile(serving: Serving) -> AsyncIterator[Service]:
    """Application with processes that the tests kill."""
    async with serving.deployed_service(
        "fragile",
        import_path=PROBED,
        scheduler={"replica_timeout_s": 10.0, "recovery_s": 8.0},
        replica={
            "heartbeat_s": _HEARTBEAT_S,
            "stall_allowance_s": 5.0,
            "stall_replace_s": _STALLED_S,
        },
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def service(fragile: Service) -> Service:
    """The module's application, with all replicas alive before each test."""

    async def all_replicas_live() -> bool:
        known = (await fragile.status())["replicas"]  # Serve still lists dead replicas.
        return len(known) == fragile.replicas and await fragile.is_complete()

    await eventually(all_replicas_live, "all replicas pull", _REPLACED_WITHIN_S, every_s=0.2)
    await set_iteration_time(fragile, ITERATION_S)
    return fragile


def start_unary_calls(
    http: httpx.AsyncClient, application: str, count: int, max_tokens: int
) -> list["asyncio.Task[httpx.Response]"]:
    return [
        asyncio.create_task(
            http.post(
                COMPLETIONS,
                json=completion(f"caller {i}", max_tokens),
                headers={"x-justitia-application": application},
            )
        )
        for i in range(count)
    ]


async def check_each_ran_once(
    http: httpx.AsyncClient, application: str, calls: list["asyncio.Task[httpx.Response]"]
) -> None:
    """Check that every call got its answer and ended once; close the application."""
    answers = await asyncio.gather(*calls)
    known = await state_when_idle(http, application)
    await http.post(f"/v1/applications/{application}/close")

    assert [200] * len(calls) == [answer.status_code for answer in answers]
    assert len(calls) == len({answer.json()["choices"][0]["text"] for answer in answers})
    assert len(calls) == known["ended"]


async def replica_of_lease(service: Service, stream: OpenStream) -> str:
    for replica_id in await service.pulling_replicas():
        if stream.lease_id in await service.probe(replica_id, "admitted"):
            return replica_id
    raise AssertionError(f"no replica runs {stream.lease_id}")


async def one_stream_on_each_replica(
    service: Service, http: httpx.AsyncClient, **fields: Any
) -> dict[str, OpenStream]:
    """Start two streams, and check that each runs on another replica.

    Different salts prevent a common prefix that would draw both to one replica.
    """
    streams = {}
    for salt in ("one", "other"):
        await service.until(
            lambda s: all(r["silent_s"] < _HEARTBEAT_S - 1.0 for r in s["replicas"].values()),
            "all pulls are open for a while",
        )
        stream = OpenStream(http, _STREAMED | fields | {"cache_salt": salt})
        await eventually(stream.has_begun, "the stream has begun")
        streams[await replica_of_lease(service, stream)] = stream
    assert 2 == len(streams)
    return streams


async def set_iteration_time(service: Service, iteration_s: float) -> None:
    for replica_id in await service.pulling_replicas():
        await service.probe(replica_id, "set_pace", iteration_s)


async def slow_load(
    service: Service, http: httpx.AsyncClient, application: str
) -> list["asyncio.Task[httpx.Response]"]:
    """Start more calls than there are seats on slow engines; wait until many run."""
    await set_iteration_time(service, _SLOW_S)
    calls = start_unary_calls(http, application, 40, max_tokens=100)
    await service.until(lambda s: s["in_flight"] > 10, "many are leased")

    async def enough_tokens_are_made() -> bool:
        known = (await http.get(f"/v1/applications/{application}")).json()
        return bool(known["kv_token_time"] > 0)

    await eventually(enough_tokens_are_made, "they run")
    return calls


async def check_streams_are_complete(
    http: httpx.AsyncClient, streams: Iterable[OpenStream]
) -> None:
    """Check that each stream had every token once, under one id, and its usage."""
    unary = {name: value for name, value in _STREAMED.items() if name != "stream_options"}
    whole = (await http.post(COMPLETIONS, json=unary)).json()
    for stream in streams:
        assert unary_answer(whole) == await stream.answer()
        assert whole["usage"] == stream.usage


async def test_death_of_a_replica_loses_no_unary_call_and_no_stream(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Unary calls run again elsewhere; a stream continues where it was cut, token by token."""
    streams = await one_stream_on_each_replica(service, http)
    calls = await slow_load(service, http, "killed")
    killed, surviving = sorted(streams)
    service.kill_replica(killed)
    await service.probe(surviving, "set_pace", ITERATION_S)

    await check_streams_are_complete(http, streams.values())
    await check_each_ran_once(http, "killed", calls)


async def test_replica_killed_between_grant_and_payload_loses_no_call(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A stopped replica gets leases and is killed before it runs any of them."""
    victim = (await service.pulling_replicas())[0]
    process_id = await service.probe(victim, "process_id")
    await service.until(lambda s: s["replicas"][victim]["silent_s"] < 1.0, "it has just pulled")
    os.kill(process_id, signal.SIGSTOP)
    calls = start_unary_calls(http, "stopped", 20, max_tokens=8)
    await service.until(
        lambda s: s["replicas"][victim]["leases"] > 0, "the stopped one is leased some"
    )
    os.kill(process_id, signal.SIGKILL)

    await check_each_ran_once(http, "stopped", calls)


async def _console_lines_until_new_term(http: httpx.AsyncClient, epoch: int) -> list[Json]:
    """Return a console stream's lines up to the first one of a restarted scheduler."""
    lines: list[Json] = []
    async with http.stream("GET", "/v1/console/snapshots") as answer:
        async for text in answer.aiter_lines():
            if text:
                lines.append(json.loads(text))
                if lines[-1]["kind"] == "frame" and lines[-1]["epoch"] > epoch:
                    break
    return lines


async def test_killed_scheduler_keeps_all_finish_tags_and_loses_no_call(
    service: Service, http: httpx.AsyncClient
) -> None:
    names = []
    for weight in (3, 1, 4, 2):
        body = {"application_class": "c", "application_id": f"w{weight}", "weight": weight}
        names.append((await http.post("/v1/applications", json=body)).json()["application_id"])
    async with occupy_all_seats(service, http):
        calls = {name: start_unary_calls(http, name, 50, max_tokens=20) for name in names}
        before = await service.until(lambda s: s["waiting"] == 200, "the rest waits")
        # The last save may have begun before all calls waited.
        await service.until(lambda s: s["saves"] > before["saves"] + 1, "what waits is saved")
        tags = await virtual_finish_times(http, names)
        watching = asyncio.create_task(_console_lines_until_new_term(http, before["epoch"]))
        ray.kill(service.scheduler(), no_restart=False)
        after = await service.until(
            lambda s: (
                s["ready"]
                and s["epoch"] > before["epoch"]
                and not s["recovering"]
                and s["waiting"] == 200
            ),
            "another is in office and knows what waits",
            _BACK_WITHIN_S,
        )
        tags_after = await virtual_finish_times(http, names)
        async with asyncio.timeout(_BACK_WITHIN_S):
            lines = await watching

    assert tags == tags_after
    told = [line["kind"] for line in lines if line["kind"] != "predictor"]
    assert told[0] == "hello"
    assert told[-2:] == ["trouble", "frame"]
    assert lines[-1]["is_whole"]
    assert 2 == after["in_flight"]
    answers = [await asyncio.gather(*calls[name]) for name in names]
    order = sorted(
        (int(answer.json()["id"].rpartition("-")[2]), name)
        for name, of_one in zip(names, answers, strict=True)
        for answer in of_one
    )
    in_tag_order = [name for name in sorted(names, key=tags.__getitem__) for _ in range(50)]
    assert in_tag_order == [name for _, name in order]
    for name in names:
        await check_each_ran_once(http, name, calls[name])


async def test_console_page_resumes_when_the_scheduler_is_killed(
    service: Service, http: httpx.AsyncClient, viewers: Viewers
) -> None:
    """The page shows the next scheduler's figures without a reload.

    The notice in between is tested on the stand-in server: here the scheduler may be back first.
    """
    page = (await viewers.open(service.url, key=None)).page
    lanes = page.get_by_label("Lanes", exact=True)
    await expect(lanes).to_be_visible(timeout=_BACK_WITHIN_S * 1000)

    ray.kill(service.scheduler(), no_restart=False)
    stream = OpenStream(http, _STREAMED)
    await eventually(stream.has_begun, "the next scheduler has granted the stream", _BACK_WITHIN_S)

    reasons = page.get_by_role("list", name="Live applications by reason")
    await expect(reasons).to_contain_text("1 running", timeout=_BACK_WITHIN_S * 1000)
    await expect(page.get_by_role("status").filter(has_text="No figures of")).to_have_count(0)
    await expect(lanes).to_be_visible()
    await expect(page.locator(".live")).to_have_text("live")
    await stream.close_stream()


async def test_calls_of_a_dead_engine_fail_and_its_replica_is_replaced(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A dying engine may end its streams with [DONE], which must never be forwarded.

    Streams continue elsewhere. A stream of two choices cannot, so it ends with an error event.
    """
    streams = await one_stream_on_each_replica(service, http)
    choices = OpenStream(http, _STREAMED | {"n": 2})
    await eventually(choices.has_begun, "the third stream has begun")
    dying = await replica_of_lease(service, choices)
    (surviving,) = set(streams) - {dying}
    calls = await slow_load(service, http, "engine")
    process_id = await service.probe(dying, "process_id")
    await service.probe(dying, "kill_engine")
    await service.probe(surviving, "set_pace", ITERATION_S)
    error = json.loads(await choices.end())["error"]

    assert "engine_error" == error["code"]
    assert "cannot be continued: it has more than one sequence" in error["message"]
    assert "[DONE]" not in choices.events
    await check_streams_are_complete(http, streams.values())
    await check_each_ran_once(http, "engine", calls)
    await eventually(lambda: not Path(f"/proc/{process_id}").exists(), "the process has left", 60.0)


async def test_stalled_engine_gets_no_leases_until_it_makes_steps(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The engine process is alive, so no other check notices, and callers would wait for ever."""
    streams = await one_stream_on_each_replica(service, http)
    stalled, other = sorted(streams)

    def replica_state_is(state: str) -> Callable[[Json], bool]:
        return lambda status: status["replicas"].get(stalled, {}).get("state") == state

    await service.probe(stalled, "stall_engine")
    status = await service.until(replica_state_is("stalled"), "it is found to be stalled")
    assert 0 == status["replicas"][stalled]["leases"]
    before = len(await service.probe(stalled, "admitted"))
    await check_streams_are_complete(http, streams.values())
    await check_each_ran_once(http, "stalled", start_unary_calls(http, "stalled", 10, max_tokens=8))
    assert before == len(await service.probe(stalled, "admitted"))
    assert 200 == (await http.get("/readyz")).status_code

    await service.probe(stalled, "let_engine_go_on")
    await service.until(replica_state_is("serving"), "it serves again")
    streams = await one_stream_on_each_replica(service, http)
    assert {stalled, other} == set(streams)
    await check_streams_are_complete(http, streams.values())


@pytest.mark.long
async def test_engine_that_stays_stalled_is_replaced(
    service: Service, http: httpx.AsyncClient
) -> None:
    streams = await one_stream_on_each_replica(service, http)
    stalled = min(streams)
    process_id = await service.probe(stalled, "process_id")
    await service.probe(stalled, "stall_engine")
    await check_streams_are_complete(http, streams.values())
    await eventually(lambda: not Path(f"/proc/{process_id}").exists(), "the process has left", 90.0)


async def test_blocked_replica_keeps_its_inferences_and_gets_no_further_leases(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A silent connection to a living process does not mean a lost lease.

    Streams of two choices cannot continue elsewhere, so a given-up one would end with an error.
    """
    streams = await one_stream_on_each_replica(service, http, n=2, max_tokens=1_000)
    busy, other = sorted(streams)
    process_id = await service.probe(busy, "process_id")
    before = await service.probe(busy, "admitted")
    await service.probe(busy, "block_loop", _BUSY_S)

    def replica_is_silent(status: Json) -> bool:
        return bool(status["replicas"].get(busy, {}).get("state") == "silent")

    status = await service.until(replica_is_silent, "it is found to be silent")
    assert 1 == status["replicas"][busy]["leases"]
    assert 200 == (await http.get("/readyz")).status_code
    assert "[DONE]" == await streams[other].end()
    await check_each_ran_once(http, "busy", start_unary_calls(http, "busy", 10, max_tokens=8))

    assert "[DONE]" == await streams[busy].end()
    assert before == (await service.probe(busy, "admitted"))[: len(before)]
    assert process_id == await service.probe(busy, "process_id")
    await service.until(lambda status: not replica_is_silent(status), "it calls again")


async def test_replica_with_a_blocked_port_stays_known_to_the_scheduler(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Other replicas run its inferences, while its pulls still reach the scheduler."""
    replicas = await service.pulling_replicas()
    blocked = replicas[0]
    async with known_load(http) as load:
        await load.wait_for_answers(5)
        blocking = asyncio.create_task(service.probe(blocked, "block_port", _BLOCKED_S))
        heard_of = []
        while not blocking.done():
            heard_of.append(await service.pulling_replicas())
            await load.wait_for_answers(1)
        before = len(await service.probe(blocked, "admitted"))

        async def runs_again() -> bool:
            return before < len(await service.probe(blocked, "admitted"))

        await eventually(runs_again, "it runs something again", 60.0)
    load.assert_all_correct()

    assert [replicas] * len(heard_of) == heard_of


@pytest.mark.long
async def test_stopping_replica_finishes_its_stream_and_gets_no_further_leases(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Callers must notice neither a scale-down nor the following scale-up.

    Streams of two choices cannot continue elsewhere, so a cut one would end with an error.
    """
    streams = await one_stream_on_each_replica(service, http, n=2, max_tokens=4_000)
    service.replicas = 1
    scaling = asyncio.create_task(service.deploy())
    leaving = await eventually(
        lambda: replica_without_lease(service, http, list(streams)),
        "one leaves",
        _REPLACED_WITHIN_S,
    )
    (staying,) = set(streams) - {leaving}
    assert not streams[leaving].has_ended()
    calls = start_unary_calls(http, "drain", 20, max_tokens=8)
    await check_each_ran_once(http, "drain", calls)
    admitted = set(await service.probe(staying, "admitted"))

    assert ["[DONE]"] * 2 == [await stream.end() for stream in streams.values()]
    assert {call.result().json()["id"].removeprefix("cmpl-") for call in calls} <= admitted
    await scaling
    assert [staying] == await service.pulling_replicas()
    service.replicas = 2
    async with known_load(http) as load:
        await service.deploy()
        await load.wait_for_answers(10)
    load.assert_all_correct()


async def replica_without_lease(
    service: Service, http: httpx.AsyncClient, replica_ids: list[str]
) -> str | None:
    """Send more calls than one replica can run; return the replica that gets no lease.

    Serve tells it to leave, and it tells the scheduler.
    """
    answers = await asyncio.gather(
        *(http.post(COMPLETIONS, json=completion(max_tokens=1)) for _ in range(2 * SEATS))
    )
    assert [200] * len(answers) == [answer.status_code for answer in answers]
    pulling = await service.pulling_replicas()
    return next((name for name in replica_ids if name not in pulling), None)
