"""Deployments and shutdowns under load, and the deaths of ingress and predictor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.cli.main import main
from justitia_ray.serve.scheduler.handle import end_scheduler
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.known_load import known_load
from tests.harness.open_calls import OpenStream, virtual_finish_times
from tests.harness.service import (
    ENDLESS,
    MODEL,
    PROBED,
    SEATS,
    Service,
    Serving,
    redis_process_ids,
)

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_REPLACED_WITHIN_S = 240.0
_ORPHANS_END_WITHIN_S = 10.0
"""Limit in seconds for the end of streams without an ingress, which would otherwise run for five
minutes.
"""
_MORE_EVENTS = 500
"""Number of events that a stream must still get after another ingress has died."""
_INGRESS_TIMEOUT_S = 25.0
"""Ingress timeout in seconds, longer than a long-poll of 20 s."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def graceful(serving: Serving) -> AsyncIterator[Service]:
    async with serving.deployed_service(
        "graceful",
        import_path=PROBED,
        scheduler={"ingress_timeout_s": _INGRESS_TIMEOUT_S, "recovery_s": 8.0},
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def service(graceful: Service) -> Service:
    """The module's application, with all replicas alive before each test."""
    await graceful.wait_until_complete(_REPLACED_WITHIN_S)
    return graceful


async def test_deployment_of_a_new_version_under_load_loses_no_call(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Replicas, ingress and predictor are replaced; callers and open streams do not notice.

    One additional engine may run meanwhile, so that two always take work.
    """
    old = set(service.actor_names())
    service.args["replica"] |= {"chunk_interval_s": 0.02}
    service.rollout = {"rolling_update_percentage": 0.5, "max_surge_percent": 50}
    taking: list[int] = []

    async def version_is_replaced() -> bool:
        taking.append(len(await service.pulling_replicas()))
        return not old & {*service.actor_names()}

    async with known_load(http) as load:
        open_stream = OpenStream(http, completion(max_tokens=3_000))
        await eventually(open_stream.has_begun, "a stream runs")
        await asyncio.gather(
            service.deploy(),
            eventually(
                version_is_replaced,
                "nothing of the old version is left",
                _REPLACED_WITHIN_S,
                every_s=0.2,
            ),
        )
        await load.wait_for_answers(20)

    assert "[DONE]" == await open_stream.end()
    load.assert_all_correct()
    assert service.replicas == min(taking) < max(taking)


async def test_killed_ingress_breaks_only_its_own_callers(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The other ingress's streams continue, and no engine keeps generating for the dead one."""
    service.ingresses = 2
    await service.deploy()
    streams: list[OpenStream] = []

    async def both_ingresses_serve() -> bool:
        streams.append(OpenStream(http, completion(f"s {len(streams)}", max_tokens=ENDLESS)))
        scheduler = (await http.get("/v1/examination")).json()["scheduler"]
        return 2 == len({call["ingress_id"] for call in scheduler["inferences"].values()})

    await eventually(
        both_ingresses_serve, "each ingress has a stream", _REPLACED_WITHIN_S, every_s=0.5
    )
    await eventually(lambda: all(s.has_begun() for s in streams), "all streams run", 60.0)
    service.kill(service.actor_names("Ingress")[0])

    async def orphans_have_ended() -> bool:
        left = [stream for stream in streams if not stream.has_ended()]
        return 0 < len(left) == await running_sequences(service) < len(streams)

    await eventually(orphans_have_ended, "engines run what is waited for", _ORPHANS_END_WITHIN_S)
    broken = [stream for stream in streams if stream.has_ended()]
    for stream in broken:
        with pytest.raises(httpx.HTTPError):
            await stream.end()
    surviving = {s: len(s.events) + _MORE_EVENTS for s in streams if s not in broken}
    await eventually(
        lambda: all(len(stream.events) >= count for stream, count in surviving.items()),
        "the other streams go on",
        60.0,
    )
    for stream in surviving:
        assert not stream.has_ended()
        await stream.close_stream()
    left = await service.until_idle(_INGRESS_TIMEOUT_S + 30.0)
    assert 2 == len(left["replicas"])
    answers = await asyncio.gather(
        *(http.post(COMPLETIONS, json=completion(f"after {i}")) for i in range(2 * SEATS))
    )
    assert [200] * len(answers) == [answer.status_code for answer in answers]


async def test_callers_do_not_notice_a_killed_predictor(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Without the predictor, the ingress estimates costs from its own data."""
    async with known_load(http, seed=3) as load:
        (killed,) = service.actor_names("Predictor")
        service.kill(killed)
        body = {"application_class": "report", "input": "a text"}
        async with open_applications(http, {"meanwhile": body}) as tags:
            await load.wait_for_answers(20)

    assert tags["meanwhile"] > 0
    load.assert_all_correct()
    await eventually(
        lambda: service.actor_names("Predictor") not in ([], [killed]), "another is there", 120.0
    )


async def test_scheduler_shutdown_saves_a_last_snapshot_for_the_next_start(
    service: Service, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Virtual time, virtual finish times and settings must survive a shutdown.

    `serve delete` does not reach the scheduler: without the command it would run for ten more
    minutes, with its Redis.
    """
    config, service.ingresses = service.config, 1
    service.user_config = {"policy": "justitia", "policy_options": {"backfill": 3}}
    await service.deploy()
    async with known_load(http, seed=4) as load:
        await load.wait_for_answers(5)
    kept = {f"kept-{weight}": {"application_class": "c", "weight": weight} for weight in (1, 2, 3)}
    async with open_applications(http, kept):
        # A replica's report after the restart may change the virtual time by a rounding error.
        await eventually(
            lambda: are_withdrawn_from_gps(service, [f"default|{name}" for name in kept]),
            "only these are left, idle",
        )
        before, tags = await service.status(), await virtual_finish_times(http, [*kept])
        await service.delete()
        assert redis_process_ids(config.data_dir)
        command = ["shutdown", "--name", service.name, "--model", MODEL]
        assert 0 == await asyncio.to_thread(main, command)
        said = capsys.readouterr().out
        still_there = await asyncio.to_thread(
            end_scheduler, config.scheduler_name, config.scheduler.namespace
        )
        await eventually(lambda: not redis_process_ids(config.data_dir), "its Redis has ended")
        await service.deploy()
        after, tags_after = await service.status(), await virtual_finish_times(http, [*kept])

    assert "ended scheduler graceful/fake-7b, and its embedded Redis if it had one\n" in said
    assert not still_there
    assert 3 == len(set(tags.values()))
    assert tags == tags_after
    assert before["virtual_time"] == after["virtual_time"] > 0
    assert before["settings"] == after["settings"]
    assert 3 == after["settings"]["policy_options"]["backfill"]
    assert after["epoch"] > before["epoch"]


async def running_sequences(service: Service) -> int:
    """Return the number of sequences that the engines run."""
    return sum([await service.probe(name, "running") for name in await service.pulling_replicas()])


@asynccontextmanager
async def open_applications(
    http: httpx.AsyncClient, bodies: dict[str, dict[str, Any]]
) -> AsyncIterator[dict[str, float]]:
    """Open applications; yield their virtual finish times by id, and cancel them at the end."""
    try:
        tags = {}
        for name, body in bodies.items():
            answer = await http.post("/v1/applications", json=body | {"application_id": name})
            tags[name] = answer.raise_for_status().json()["virtual_finish_time"]
        yield tags
    finally:
        for name in bodies:
            await http.delete(f"/v1/applications/{name}")


async def are_withdrawn_from_gps(service: Service, names: list[str]) -> bool:
    """Return whether only these applications exist, and GPS serves none of them."""
    seen = (await service.scheduler().inspect.remote())["applications"]
    return names == sorted(seen) and all(one["withdrawn"] for one in seen.values())


async def test_deleted_serve_application_finishes_its_open_streams(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Serve does not count leased calls, so the replica itself waits for its last lease.

    Streams of two choices cannot continue elsewhere, so a cut one would end with an error.
    """
    streams = [OpenStream(http, completion(f"s {i}", max_tokens=1_500, n=2)) for i in range(4)]
    await eventually(lambda: all(stream.has_begun() for stream in streams), "all streams run")
    service.serving.remove(service.name)
    ends = [await stream.end() for stream in streams]
    await service.delete()

    assert ["[DONE]"] * 4 == ends
    assert [] == service.actor_names()
