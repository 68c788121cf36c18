"""Two models in one application: separate queues behind a common ingress."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
import ray
from ray import serve

from justitia_ray.cli.main import main
from justitia_ray.config import AppConfig
from tests.eventually import eventually
from tests.harness.bodies import CHAT, COMPLETIONS, chat, completion
from tests.harness.open_calls import occupy_all_seats
from tests.harness.service import ENDLESS, MODEL, Service, Serving, redis_process_ids

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_OTHER = "org/other"
_BACK_WITHIN_S = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with two models and one replica each, which the last test shuts down."""
    async with serving.deployed_service(
        "two",
        replicas=1,
        models=(MODEL, _OTHER),
        user_config={"policy": "justitia", "models": {_OTHER: {"policy": "fcfs"}}},
    ) as service:
        yield service


def _other_model(service: Service) -> AppConfig:
    return service.placed[1].config


async def _call_model(http: httpx.AsyncClient, model: str | None, **headers: str) -> httpx.Response:
    return await http.post(CHAT, json=chat(model=model), headers=headers)


async def test_each_model_has_separate_policy_replicas_and_answers(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A model name that is not served gives 404."""
    listed = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
    told = (await http.get("/v1/status")).json()
    one = (await http.get("/v1/status", params={"model": _OTHER})).json()
    answers = [await _call_model(http, model) for model in (MODEL, _OTHER)]
    unknown, unnamed = await _call_model(http, "gpt-4"), await _call_model(http, None)

    assert [MODEL, _OTHER] == listed
    assert {MODEL: "justitia", _OTHER: "fcfs"} == {
        n: s["policy"] for n, s in told["models"].items()
    }
    assert ("fcfs", _OTHER) == (one["policy"], one["model"])
    assert not set(told["models"][MODEL]["replicas"]) & set(told["models"][_OTHER]["replicas"])
    assert [MODEL, _OTHER] == [answer.json()["model"] for answer in answers]
    assert (404, "model_not_found") == (unknown.status_code, unknown.json()["error"]["code"])
    assert (400, "model") == (unnamed.status_code, unnamed.json()["error"]["param"])


async def test_full_queue_of_one_model_does_not_delay_the_other_model(
    service: Service, http: httpx.AsyncClient
) -> None:
    """All replicas of one model are occupied for minutes; the other model answers at once."""
    body = completion(max_tokens=1, model=MODEL)
    async with occupy_all_seats(service, http):
        waiting = asyncio.create_task(http.post(COMPLETIONS, json=body))
        await service.until(lambda s: s["waiting"] == 1, "one waits")
        answer = await _call_model(http, _OTHER)
        still = await service.status()

    assert 200 == answer.status_code
    assert 1 == still["waiting"]
    assert 200 == (await waiting).status_code


_OF_BOTH = {"x-justitia-application": "both", "x-justitia-tenant": "t"}


async def test_application_has_one_entry_in_the_queue_of_each_model(
    service: Service, http: httpx.AsyncClient
) -> None:
    """An application has equal class, tenant and weight in both queues; closing it ends both."""
    body = {"application_class": "rag", "tenant": "t", "weight": 3, "application_id": "both"}
    opened = (await http.post("/v1/applications", json=body)).json()
    before = (await http.get("/v1/applications/t|both")).json()
    for model in (MODEL, _OTHER):
        assert 200 == (await _call_model(http, model, **_OF_BOTH)).status_code
    after = (await http.get("/v1/applications/t|both")).json()
    closed = await http.post("/v1/applications/t|both/close")

    assert (None, {}) == (opened["predicted_kv_token_time"], before["models"])
    assert [MODEL, _OTHER] == list(after["models"])
    assert {("rag", "t", 3.0)} == {
        (view["application_class"], view["tenant"], view["weight"])
        for view in after["models"].values()
    }
    assert 200 == closed.status_code

    async def replica_has_gone() -> bool:
        return (await http.get("/v1/applications/t|both")).status_code == 404

    await eventually(replica_has_gone, "it has ended in both")


async def test_death_of_one_models_scheduler_does_not_affect_the_other_model(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The other model's scheduler answers before the killed scheduler is back."""
    epochs = [(await service.status(place.config))["epoch"] for place in service.placed]
    ray.kill(service.scheduler(_other_model(service)), no_restart=False)
    answer = await _call_model(http, MODEL)
    own = await service.status()
    back = await service.until(
        lambda s: s["ready"] and not s["recovering"] and bool(s["replicas"]),
        "the killed one is in office again",
        _BACK_WITHIN_S,
        _other_model(service),
    )
    again = await _call_model(http, _OTHER)

    assert (200, 200) == (answer.status_code, again.status_code)
    assert epochs[0] == own["epoch"]
    assert epochs[1] < back["epoch"]


async def test_doctor_finds_both_models_healthy(
    service: Service, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in (MODEL, _OTHER):
        await _call_model(http, model)
    arguments = ["doctor", "--url", service.url, "--interval-s", "1"]
    status = await asyncio.to_thread(main, arguments)
    said = capsys.readouterr().out.splitlines()

    assert ["two/" + MODEL, "two/" + _OTHER] == [
        line.partition(":")[0] for line in said if " checks, nothing wrong" in line
    ]
    assert 0 == status


async def test_shutdown_of_a_serve_application_ends_only_its_own_queues(
    service: Service, limited: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shutdown leaves neither a detached scheduler nor an embedded Redis.

    A call that would run for minutes is cut.
    """
    named = ["shutdown", "--name", "two"]
    one_alone = await asyncio.to_thread(main, [*named, "--model", _OTHER])
    still_there = [(await service.status(place.config))["ready"] for place in service.placed]
    async with service.http() as http:
        body = completion(max_tokens=ENDLESS, model=MODEL)
        call = asyncio.create_task(http.post(COMPLETIONS, json=body))
        await service.until(lambda s: s["in_flight"] == 1, "the call runs")
        status = await asyncio.to_thread(main, [*named, "--wait-s", "0.1"])
        (answer,) = await asyncio.gather(call, return_exceptions=True)
    said = capsys.readouterr().out

    assert (1, [True, True]) == (one_alone, still_there)
    assert 0 == status
    assert isinstance(answer, httpx.TransportError) or (
        isinstance(answer, httpx.Response) and answer.status_code >= 500
    )
    assert "ended application 'two'" in said
    assert "two" not in serve.status().applications
    names = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    for place in service.placed:
        model, data_dir = place.config.model.name, place.config.data_dir
        ended = f"ended scheduler two/{model} and its embedded Redis; data stay in {data_dir}"
        assert ended in said
        assert place.config.scheduler_name not in names
    await eventually(lambda: not redis_process_ids(data_dir), "their Redis servers have ended")
    assert (await limited.status())["ready"]
