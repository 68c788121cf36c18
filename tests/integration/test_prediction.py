"""The predictor in service: it learns from finished applications, trains, rolls back, restarts.

The tests use one application with two predictor replicas, in sequence.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.cli.main import main
from justitia_ray.predictor.input_features import features_of
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.asyncio(loop_scope="session")]

TRAINED_WITHIN_S = 120.0
"""Time limit of a training, whose process has the lowest priority."""
LEARNED_WITHIN_S = 30.0

Json = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    async with serving.deployed_service(
        "predicting", replicas=1, prediction={"replicas": 2, "deadline_s": 5.0}
    ) as service:
        yield service


def input_text(words: int) -> str:
    return "report " * words


async def run_application(http: httpx.AsyncClient, application_class: str, words: int) -> float:
    """Run an application whose cost grows with its input; return the prediction."""
    opening = {"application_class": application_class, "input": input_text(words)}
    opened = (await http.post("/v1/applications", json=opening)).json()
    name = opened["application_id"]
    answer = await http.post(
        COMPLETIONS,
        json=completion(input_text(words), max_tokens=words),
        headers={"x-justitia-application": name},
    )
    assert 200 == answer.status_code
    await http.post(f"/v1/applications/{name}/close")
    predicted: float = opened["predicted_kv_token_time"]
    return predicted


async def class_state(http: httpx.AsyncClient, name: str) -> Json:
    """Return the predictor's state of an application class."""
    classes = (await http.get("/v1/predictor")).json()["classes"]
    found: Json = classes.get(name, {"samples": 0, "active": 0})
    return found


async def estimates(service: Service, name: str, words: int, count: int = 16) -> list[Json]:
    """Return several estimates for one input, from different predictor replicas."""
    predictor = service.handle("Predictor")
    features = features_of(input_text(words))
    found: list[Json] = await asyncio.gather(
        *(predictor.estimate.remote(name, features) for _ in range(count))
    )
    return found


async def agreed_model_estimate(service: Service, name: str, words: int) -> Json | None:
    found = await estimates(service, name, words, 64)
    agree = all(estimate == found[0] for estimate in found)
    return found[0] if agree and found[0]["source"] == "model" else None


async def estimate_sources(service: Service, name: str) -> set[str]:
    return {estimate["source"] for estimate in await estimates(service, name, 30)}


async def run_command(service: Service, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--url", service.url])


async def test_all_predictor_replicas_use_a_model_trained_in_service(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Ten applications suffice to train; then all replicas give the same estimate."""
    assert "prior" in await estimate_sources(service, "report")
    for words in (10, 14, 20, 28, 40, 56, 12, 17, 24, 34, 48, 60):
        await run_application(http, "report", words)

    async def model_is_active() -> bool:
        known = await class_state(http, "report")
        return bool(known["samples"] == 12 and known["active"] > 0)

    await eventually(model_is_active, "a model has taken over", TRAINED_WITHIN_S)

    async def agreed_estimate() -> Json | None:
        """Return the predictor replicas' estimate if the ingress uses the same; otherwise None."""
        estimate = await agreed_model_estimate(service, "report", 50)
        opening = {"application_class": "report", "input": input_text(50)}
        opened = (await http.post("/v1/applications", json=opening)).json()
        await http.post(f"/v1/applications/{opened['application_id']}/close")
        predicted = opened["predicted_kv_token_time"]
        return estimate if estimate is not None and estimate["kv_token_time"] == predicted else None

    # Replicas that have not read the new model yet still answer by the old one.
    estimate: Json = await eventually(agreed_estimate, "all say the same", LEARNED_WITHIN_S)
    assert estimate["p10"] <= estimate["kv_token_time"] <= estimate["p90"]


async def test_longer_input_gets_a_higher_cost_estimate(service: Service) -> None:
    async def both_by_model() -> list[Json] | None:
        found = [await agreed_model_estimate(service, "report", words) for words in (10, 60)]
        both = [estimate for estimate in found if estimate is not None]
        return both if both == found else None

    short, long = await eventually(both_by_model, "all replicas serve a model", LEARNED_WITHIN_S)

    assert 2 * short["kv_token_time"] < long["kv_token_time"]


async def test_model_rollback_by_command_reaches_all_predictor_replicas(
    service: Service, http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    active = (await class_state(http, "report"))["active"]
    assert 0 == await run_command(service, "predictor", "rollback", "report", "--to", "0")

    async def estimate_is_the_mean() -> bool:
        return await estimate_sources(service, "report") == {"class"}

    await eventually(estimate_is_the_mean, "all replicas went back", LEARNED_WITHIN_S)
    assert 0 == await run_command(service, "predictor", "list")
    assert 0 == await run_command(service, "predictor", "rollback", "report", "--to", str(active))
    assert 0 == await run_command(service, "predictor", "rollback", "report", "--release")
    said = capsys.readouterr().out.splitlines()
    assert "class report: no model, its mean, serves until it is released" == said[0]
    assert f"class report: version {active} serves until a training beats it" == said[-1]


async def test_impossible_model_rollback_is_a_client_error(http: httpx.AsyncClient) -> None:
    unknown = await http.post("/v1/predictor/none/rollback")
    wrong = await http.post("/v1/predictor/report/rollback", json={"version": 99})
    mixed = await http.post("/v1/predictor/report/rollback", json={"versions": 1})

    assert [400, 400, 400] == [answer.status_code for answer in (unknown, wrong, mixed)]
    messages = [answer.json()["error"]["message"] for answer in (unknown, wrong, mixed)]
    assert messages[0] == "class 'none' has no model"
    assert messages[1].startswith("version is 99: one of 0, 1")
    assert messages[2].startswith("versions is unknown: version, release are allowed")


async def test_predictor_learns_from_an_uploaded_history(
    service: Service, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A user with recorded applications need not start with a prior."""
    file = tmp_path / "history.jsonl"
    lines = [
        {
            "class": "import",
            "input": input_text(words),
            "inferences": [{"prompt_tokens": words, "output_tokens": words}],
        }
        for words in range(5, 35)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert 0 == await run_command(service, "data", "import", "--file", str(file))

    async def model_is_active() -> bool:
        known = await class_state(http, "import")
        return bool(known["samples"] == 30 and known["active"] > 0)

    await eventually(model_is_active, "the history has been learned", TRAINED_WITHIN_S)


async def test_killed_predictor_restarts_with_its_learned_state(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Both predictor replicas die at once; later ends of applications are learned once."""
    before = await class_state(http, "report")
    actors = service.actor_names("Predictor")
    assert 2 == len(actors)
    for actor in actors:
        service.kill(actor)
    for words in (15, 25):
        await run_application(http, "report", words)

    async def samples_are_learned() -> bool:
        answer = await http.get("/v1/predictor")
        if answer.status_code != 200:
            return False
        known = answer.json()["classes"].get("report", {})
        return bool(known.get("samples") == before["samples"] + 2)

    await eventually(samples_are_learned, "the predictor is back", TRAINED_WITHIN_S)
    after = await class_state(http, "report")
    assert before["versions"] == after["versions"][: len(before["versions"])]
    await eventually(
        lambda: agreed_model_estimate(service, "report", 50), "the replicas agree", LEARNED_WITHIN_S
    )
