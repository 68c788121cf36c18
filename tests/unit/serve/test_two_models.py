"""One way in, two queues: which of them a request reaches, and what an application is in both."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from justitia_ray.errors import AdmissionError
from justitia_ray.protocol.openai_body import COMPLETIONS

from .two_models import ADAPTER, CHAT, EMBED, TwoModels, two_models

_OPENING = {"application_class": "rag", "input": "why?", "tenant": "t", "weight": 3.0}


@pytest.fixture
async def two() -> AsyncIterator[TwoModels]:
    """Return an application of two models."""
    async with two_models() as both:
        yield both


async def opened(two: TwoModels, **fields: Any) -> dict[str, Any]:
    """Open application `a`, and return the answer."""
    answer = await two.http.post(
        "/v1/applications", json=_OPENING | {"application_id": "a"} | fields
    )
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def infer(two: TwoModels, model: Any, **headers: str) -> httpx.Response:
    """Send an inference of application `a`; no replica is there, so it ends with an error."""
    named = {} if model is None else {"model": model}
    headers = {"x-justitia-application": "a"} | headers
    return await two.http.post(
        COMPLETIONS, json={"prompt": "x", "max_tokens": 9, **named}, headers=headers
    )


@pytest.mark.parametrize(("model", "queue"), [(CHAT, "chat"), (ADAPTER, "chat"), (EMBED, "embed")])
async def test_inference_waits_in_the_queue_of_its_model(
    two: TwoModels, model: str, queue: str
) -> None:
    """An adapter runs on its model's replicas, so it waits with that model's inferences."""
    await infer(two, model)
    counts = {name: len(getattr(two, name).dispatcher.items) for name in ("chat", "embed")}

    assert {"chat": 0, "embed": 0} | {queue: 1} == counts


@pytest.mark.parametrize(
    ("model", "status", "code", "said"),
    [
        (
            "gpt-4",
            404,
            "model_not_found",
            "'gpt-4' does not exist; 'chat', 'chat-sql', 'org/embed'",
        ),
        (None, 400, None, "model is required: one of 'chat', 'chat-sql', 'org/embed' is allowed"),
        (7, 400, None, "model must be a string, not int"),
    ],
)
async def test_request_that_names_no_model_that_is_there_is_refused(
    two: TwoModels, model: Any, status: int, code: str | None, said: str
) -> None:
    """Which of several was meant cannot be guessed; the answer says what there is."""
    answer = await infer(two, model)
    error = answer.json()["error"]

    assert (status, code, "model") == (answer.status_code, error["code"], error["param"])
    assert said in error["message"]


async def test_application_opened_for_a_model_has_its_place_there_at_once(two: TwoModels) -> None:
    """The other queue hears of it when it comes there, and knows what it was opened with."""
    answer = await opened(two, model=EMBED)
    only_there = (set(two.chat.open), set(two.embed.open))
    await infer(two, CHAT)

    assert 1.0 == answer["virtual_finish_time"]
    assert answer["predicted_kv_token_time"] > 0
    assert (set(), {"a"}) == only_there
    arrivals = [two.chat.open["a"], two.embed.open["a"]]
    assert [("rag", "t", 3.0)] * 2 == [
        (arrival.application_class, arrival.tenant, arrival.weight) for arrival in arrivals
    ]


async def test_application_opened_for_none_is_opened_where_it_comes(two: TwoModels) -> None:
    """A place in a queue that it never comes to would hold back the others there."""
    answer = await opened(two)
    nowhere = (await two.http.get("/v1/applications/a")).json()
    await infer(two, EMBED)
    somewhere = (await two.http.get("/v1/applications/a")).json()

    assert (None, None) == (answer["predicted_kv_token_time"], answer["virtual_finish_time"])
    assert ("open", "rag", {}) == (
        nowhere["state"],
        nowhere["application_class"],
        nowhere["models"],
    )
    assert (set(), {"a"}) == (set(two.chat.open), set(two.embed.open))
    assert ([EMBED], 7.0) == (list(somewhere["models"]), somewhere["virtual_finish_time"])


async def test_application_without_an_id_gets_one_for_all_queues(two: TwoModels) -> None:
    """It is given before any queue knows of it."""
    answer = await opened(two, application_id=None)
    await infer(two, CHAT, **{"x-justitia-application": answer["application_id"]})

    assert "rag" == two.chat.open[answer["application_id"]].application_class


async def test_application_of_two_queues_is_seen_as_one(two: TwoModels) -> None:
    """Amounts are summed; tags of two clocks have no sum."""
    await opened(two)
    for model in (CHAT, EMBED):
        await infer(two, model)
    both = (await two.http.get("/v1/applications/a")).json()
    one = (await two.http.get("/v1/applications/a", params={"model": CHAT})).json()

    assert (200.0, 20.0, 2, 2, None) == (
        both["predicted_kv_token_time"],
        both["kv_token_time"],
        both["waiting"],
        both["ended"],
        both["virtual_finish_time"],
    )
    assert {CHAT: 7.0, EMBED: 7.0} == {
        name: of_one["virtual_finish_time"] for name, of_one in both["models"].items()
    }
    assert (1, 7.0, [CHAT]) == (one["waiting"], one["virtual_finish_time"], list(one["models"]))


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [("POST", "/v1/applications/a/close", "close"), ("DELETE", "/v1/applications/a", "cancel")],
)
async def test_application_ends_in_every_queue(
    two: TwoModels, method: str, path: str, verb: str
) -> None:
    """Its agent is done; what it was opened with is forgotten with it."""
    await opened(two)
    for model in (CHAT, EMBED):
        await infer(two, model)
    first, second = [(await two.http.request(method, path)).status_code for _ in range(2)]
    await infer(two, CHAT)

    assert (200, 404) == (first, second)
    assert [(verb, "a")] * 2 == two.chat.ended == two.embed.ended
    assert "default" == two.chat.open["a"].application_class


async def test_application_that_came_to_no_queue_can_be_closed(two: TwoModels) -> None:
    """Its agent found nothing to ask: that is no error."""
    await opened(two)

    assert 200 == (await two.http.post("/v1/applications/a/close")).status_code
    assert 404 == (await two.http.get("/v1/applications/a")).status_code


async def test_named_model_narrows_what_is_ended(two: TwoModels) -> None:
    """An agent that is done with one model may go on with another."""
    await opened(two)
    for model in (CHAT, EMBED):
        await infer(two, model)
    answer = await two.http.post("/v1/applications/a/close", params={"model": EMBED})

    assert 200 == answer.status_code
    assert ({"a"}, set()) == (set(two.chat.open), set(two.embed.open))


async def test_failing_queue_is_told_of_after_the_others_were_reached(
    two: TwoModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller tries again; what could be ended has ended."""
    await opened(two)
    for model in (CHAT, EMBED):
        await infer(two, model)

    class Away(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            raise AdmissionError("the scheduler is being started again")

    monkeypatch.setattr(two.chat.dispatcher.outstanding, "open", Away())
    answer = await two.http.delete("/v1/applications/a")

    assert 503 == answer.status_code
    assert set() == set(two.embed.open)


async def test_models_are_listed_with_their_adapters(two: TwoModels) -> None:
    """A client picks from this list; every name in it is accepted."""
    cards = (await two.http.get("/v1/models")).json()["data"]

    assert [(CHAT, None), (ADAPTER, CHAT), (EMBED, None)] == [
        (card["id"], card.get("parent")) for card in cards
    ]


@pytest.mark.parametrize("name", [CHAT, ADAPTER, EMBED, EMBED.replace("/", "%2F")])
async def test_card_of_one_model_is_that_of_the_list(two: TwoModels, name: str) -> None:
    """The clients of OpenAI and Anthropic ask so whether a model is there; names have slashes."""
    cards = {card["id"]: card for card in (await two.http.get("/v1/models")).json()["data"]}
    answer = await two.http.get(f"/v1/models/{name}")

    assert cards[name.replace("%2F", "/")] == answer.json()


async def test_card_of_a_model_that_is_not_there_is_not_found(two: TwoModels) -> None:
    """In OpenAI's form, with what there is."""
    answer = await two.http.get("/v1/models/other")

    assert 404 == answer.status_code
    assert "'chat', 'chat-sql', 'org/embed' are served" in answer.json()["error"]["message"]


async def test_readiness_is_of_all_models_or_of_the_named_one(two: TwoModels) -> None:
    """A probe takes the service for ready when every model is; it may look at one."""
    two.embed.status = AdmissionError("the scheduler is being started again")
    whole = await two.http.get("/readyz")
    chat = await two.http.get("/readyz", params={"model": CHAT})

    assert (503, "model org/embed: the scheduler is being started again") == (
        whole.status_code,
        whole.json()["reason"],
    )
    assert (200, None) == (chat.status_code, chat.json()["reason"])


async def test_status_of_one_that_is_away_does_not_hide_the_other(two: TwoModels) -> None:
    """An operator looks just then."""
    two.embed.status = AdmissionError("the scheduler is being started again")
    answer = (await two.http.get("/v1/status")).json()
    one = (await two.http.get("/v1/status", params={"model": CHAT})).json()

    assert not answer["ready"]
    assert "justitia" == answer["models"][CHAT]["policy"]
    assert "the scheduler is being started again" == answer["models"][EMBED]["degraded"]
    assert answer["models"][CHAT] == one


async def test_predictor_and_examination_are_of_each_model(two: TwoModels) -> None:
    """Histories are not mixed: what one model takes says nothing of another."""
    overview = (await two.http.get("/v1/predictor")).json()["models"]
    examined = (await two.http.get("/v1/examination")).json()["models"]
    one = (await two.http.get("/v1/examination", params={"model": EMBED})).json()
    samples: dict[str, Any] = {"samples": [{}]}
    unnamed = await two.http.post("/v1/predictor/samples", json=samples)
    named = await two.http.post("/v1/predictor/samples", json=samples, params={"model": EMBED})

    assert [CHAT, EMBED] == list(overview) == list(examined)
    assert [EMBED] == list(overview[EMBED]["classes"])
    assert {"model": EMBED} == one == examined[EMBED]
    assert (400, 200) == (unnamed.status_code, named.status_code)
    assert ([], [{}]) == (two.chat.taught, two.embed.taught)
