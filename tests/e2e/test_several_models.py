"""Two models in one application on real engines: one embeds, one ranks."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from justitia_ray.cli.main import main
from justitia_ray.client.transport import API_KEY_VARIABLE
from justitia_ray.protocol.pooling_bodies import RANKINGS, SCORES
from justitia_ray.serve.engines.random_models import materialise_model
from tests.e2e.conftest import EMBEDDING, OPERATOR, RERANKER
from tests.harness.key_ring import KeyRing
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

_QUERY = "a b c"
_DOCUMENTS = ["import os", "return self", "a b c", "class Thing:"]
_CLOSE = 1e-4
"""Tolerance for scores: two programs add the same floating-point numbers in different order."""


@pytest_asyncio.fixture(loop_scope="session")
async def http(reading: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with reading.http() as client:
        yield client


@pytest.fixture(scope="module")
def scores(serving: Serving) -> list[float]:
    """Compute the scores of the query with each document from the model, without vLLM."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path = materialise_model(f"random:{RERANKER}", serving.directory / "models")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path)
    pairs = tokenizer([_QUERY] * len(_DOCUMENTS), _DOCUMENTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found: list[float] = torch.sigmoid(model(**pairs).logits[:, 0]).tolist()
    return found


async def json_answer(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json={"model": RERANKER} | body)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("path", SCORES)
async def test_service_returns_the_scores_of_the_model(
    http: httpx.AsyncClient, reading: Service, scores: list[float], path: str
) -> None:
    """The API scores one text against several, or pairs of texts, in the order of the request."""
    one = await json_answer(http, path, text_1=_QUERY, text_2=_DOCUMENTS)
    pairs = await json_answer(http, path, queries=[_QUERY] * 2, documents=_DOCUMENTS[:2])

    assert scores == pytest.approx([found["score"] for found in one["data"]], abs=_CLOSE)
    assert scores[:2] == pytest.approx([found["score"] for found in pairs["data"]], abs=_CLOSE)
    assert len(scores) == len({round(score / _CLOSE) for score in scores})  # all differ
    await reading.until_idle()


@pytest.mark.parametrize("path", RANKINGS)
async def test_documents_are_ranked_by_their_scores(
    http: httpx.AsyncClient, reading: Service, scores: list[float], path: str
) -> None:
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    ranked = (await json_answer(http, path, query=_QUERY, documents=_DOCUMENTS))["results"]
    best = (await json_answer(http, path, query=_QUERY, documents=_DOCUMENTS, top_n=2))["results"]

    assert order == [found["index"] for found in ranked]
    assert order[:2] == [found["index"] for found in best]
    assert sorted(scores, reverse=True) == pytest.approx(
        [found["relevance_score"] for found in ranked], abs=_CLOSE
    )
    await reading.until_idle()


async def test_agent_calls_two_models_concurrently(
    http: httpx.AsyncClient, reading: Service
) -> None:
    """Each call waits in the queue of its model; both calls belong to one application."""
    headers = {"x-justitia-application": "retrieval", "x-justitia-class": "rag"}
    async with openai.AsyncOpenAI(
        base_url=f"{reading.url}/v1", api_key=reading.api_key, default_headers=headers
    ) as client:
        listed = [model.id async for model in client.models.list()]
        asked = {"model": RERANKER, "query": _QUERY, "documents": _DOCUMENTS}
        embedded, ranked = await asyncio.gather(
            asyncio.gather(
                *(client.embeddings.create(model=EMBEDDING, input=_DOCUMENTS) for _ in range(3))
            ),
            asyncio.gather(
                *(http.post("/v1/rerank", json=asked, headers=headers) for _ in range(4))
            ),
        )
    view = (await http.get("/v1/applications/retrieval")).json()
    await http.post("/v1/applications/retrieval/close")

    assert [EMBEDDING, RERANKER] == listed
    assert [[64] * len(_DOCUMENTS)] * 3 == [
        [len(one.embedding) for one in answer.data] for answer in embedded
    ]
    assert [200] * 4 == [answer.status_code for answer in ranked]
    assert {EMBEDDING: 3, RERANKER: 4} == {
        model: one["waiting"] + one["running"] + one["ended"]
        for model, one in view["models"].items()
    }
    await reading.until_idle()


async def test_status_and_doctor_cover_each_model(
    reading: Service,
    keys: KeyRing,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, keys.secrets[OPERATOR])
    status = await asyncio.to_thread(main, ["status", "--url", reading.url])
    shown = capsys.readouterr().out
    asked = ["doctor", "--url", reading.url, "--interval-s", "1"]
    health = await asyncio.to_thread(main, asked)
    said = capsys.readouterr().out

    models = [EMBEDDING, RERANKER]
    rows = [line.split(maxsplit=1) for line in shown.splitlines() if line.strip()]
    assert 0 == status
    assert models == [row[1] for row in rows if row[0] == "model"]
    assert ["fcfs", "justitia"] == [row[1].partition(",")[0] for row in rows if row[0] == "policy"]
    assert 0 == health, said
    assert [f"reading/{model}" for model in models] == [
        line.partition(":")[0] for line in said.splitlines() if " checks, nothing wrong" in line
    ]
