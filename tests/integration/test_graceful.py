"""What operators do while callers call: deploy, scale, shut down. And the deaths of small parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.serve.scheduler_actor import end_scheduler
from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.known_load import known_load
from tests.integration.load import OpenStream
from tests.integration.service import SEATS, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_REPLACED_WITHIN_S = 240.0
_INGRESS_TIMEOUT_S = 25.0
"""Above the 20 s of a long-poll."""
_PATIENT_S = 300.0
"""While the only ingress is replaced, Serve's proxy holds back what comes."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def graceful_service(serving: Serving) -> Service:
    """An application to operate."""
    service = serving.service(
        "graceful", scheduler={"ingress_timeout_s": _INGRESS_TIMEOUT_S, "recovery_s": 8.0}
    )
    await service.deploy()
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def graceful(graceful_service: Service) -> AsyncIterator[Service]:
    """The same, idle before and after each test."""
    await eventually(graceful_service.is_whole, "all replicas pull", _REPLACED_WITHIN_S)
    yield graceful_service
    await graceful_service.until_idle()


@pytest_asyncio.fixture(loop_scope="session")
async def client(graceful: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A patient HTTP client of it."""
    async with graceful.http(_PATIENT_S) as client:
        yield client


async def test_new_version_under_load_loses_nothing(
    graceful: Service, client: httpx.AsyncClient
) -> None:
    """Replicas, ingress and predictor are all replaced; callers and open streams notice nothing."""
    old = {name: set(graceful.actors(name)) for name in ("Ingress", "Replica", "Predictor")}
    graceful.args["replica"] |= {"chunk_interval_s": 0.02}
    async with known_load(client) as load:
        open_stream = OpenStream(client, completion(max_tokens=3_000))
        await eventually(open_stream.has_begun, "a stream runs")
        await graceful.deploy()
        await load.until_more(20)

    def is_replaced() -> bool:
        return all(not names & set(graceful.actors(name)) for name, names in old.items())

    await eventually(is_replaced, "nothing of the old version is left", _REPLACED_WITHIN_S)
    assert "[DONE]" == await open_stream.end()
    load.check()


async def test_scaling_under_load_loses_nothing(
    graceful: Service, client: httpx.AsyncClient
) -> None:
    """More replicas, then fewer: what runs on those that leave runs to its end there."""
    async with known_load(client, seed=2) as load:
        for replicas in (3, 1, 2):
            graceful.replicas = replicas
            await graceful.deploy()
            await load.until_more(10)

    load.check()


async def test_killed_ingress_takes_only_its_own_callers_with_it(
    graceful: Service, client: httpx.AsyncClient
) -> None:
    """Its connections break; the other's go on, and nothing of it holds memory for long."""
    graceful.ingresses = 2
    await graceful.deploy()
    streams = [OpenStream(client, completion(f"s {i}", max_tokens=4_000)) for i in range(12)]
    await eventually(lambda: all(s.has_begun() for s in streams), "all streams run")
    graceful.kill_one("Ingress")
    ends = await asyncio.gather(*(stream.end() for stream in streams), return_exceptions=True)
    broken = [end for end in ends if end != "[DONE]"]

    assert 0 < len(broken) < len(streams)
    assert all(isinstance(end, httpx.HTTPError) for end in broken)
    left = await graceful.until_idle(_INGRESS_TIMEOUT_S + 30.0)
    assert 2 == len(left["replicas"])
    answers = await asyncio.gather(
        *(client.post(COMPLETIONS, json=completion(f"after {i}")) for i in range(2 * SEATS))
    )
    assert [200] * len(answers) == [answer.status_code for answer in answers]
    await eventually(lambda: len(graceful.actors("Ingress")) == 2, "another one is there", 120.0)
    graceful.ingresses = 1


async def test_killed_predictor_under_load_is_not_noticed(
    graceful: Service, client: httpx.AsyncClient
) -> None:
    """Estimates fall back on what the ingress knows; an application must never wait for it."""
    async with known_load(client, seed=3) as load:
        killed = graceful.kill_one("Predictor")
        body = {"application_class": "report", "input": "a text"}
        async with applications(client, {"meanwhile": body}) as tags:
            await load.until_more(20)

    assert tags["meanwhile"] > 0
    load.check()
    await eventually(
        lambda: graceful.actors("Predictor") not in ([], [killed]), "another is there", 120.0
    )


async def test_shutdown_writes_a_last_snapshot_and_the_next_start_reads_it(
    graceful: Service, client: httpx.AsyncClient
) -> None:
    """V, tags and settings are what fairness is made of, and a planned end is no accident."""
    graceful.user_config = {"policy": "justitia", "policy_options": {"backfill": 3}}
    await graceful.deploy()
    async with known_load(client, seed=4) as load:
        await load.until_more(5)
    kept = {f"kept-{weight}": {"application_class": "c", "weight": weight} for weight in (1, 2, 3)}
    async with applications(client, kept):
        # The next report of a replica withdraws them, which may move V by a rounding: that of the
        # refund of one goes as service to another.
        await eventually(lambda: are_withdrawn(graceful, [*kept]), "only these are left, idle")
        before, tags = await graceful.status(), await tags_of(client, [*kept])
        await graceful.delete()
        assert await asyncio.to_thread(end_scheduler, graceful.config)
        await graceful.deploy()
        after, tags_after = await graceful.status(), await tags_of(client, [*kept])

    assert 3 == len(set(tags.values()))
    assert tags == tags_after
    assert before["virtual_time"] == after["virtual_time"] > 0
    assert before["settings"] == after["settings"]
    assert 3 == after["settings"]["policy_options"]["backfill"]
    assert after["epoch"] > before["epoch"]


@asynccontextmanager
async def applications(
    client: httpx.AsyncClient, bodies: dict[str, dict[str, Any]]
) -> AsyncIterator[dict[str, float]]:
    """Open applications by id, cancel them at the end; the value is the tag that each was given."""
    try:
        tags = {}
        for name, body in bodies.items():
            answer = await client.post("/v1/applications", json=body | {"application_id": name})
            tags[name] = answer.raise_for_status().json()["virtual_finish_time"]
        yield tags
    finally:
        for name in bodies:
            await client.delete(f"/v1/applications/{name}")


async def are_withdrawn(service: Service, names: list[str]) -> bool:
    """Return whether there is nothing but these applications, and GPS serves none of them."""
    seen = (await service.scheduler().examine.remote())["applications"]
    return names == sorted(seen) and all(one["withdrawn"] for one in seen.values())


async def tags_of(client: httpx.AsyncClient, names: list[str]) -> dict[str, float]:
    """Return the virtual finish time of each application."""
    return {
        name: (await client.get(f"/v1/applications/{name}")).json()["virtual_finish_time"]
        for name in names
    }
