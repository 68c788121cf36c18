"""One ingress with two queues: routing by model, and applications that use both."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest

from justitia_ray.config import AppArgs
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.errors import AdmissionError
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.models import ServedModel
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.eventually import eventually
from tests.unit.serve.ingress.http_client import client_of
from tests.unit.serve.ingress.test_gateway import (
    FakeCounter,
    FakeEstimates,
    FakeQueueClient,
    unknown_outlooks,
)

CHAT, EMBED = "chat", "org/embed"
ADAPTER = "chat-sql"
_OPENING = {"application_class": "rag", "input": "why?", "tenant": "t", "weight": 3.0}


class ModelRig:
    """A served model: a real gateway with a fake scheduler and predictor."""

    def __init__(self, place: Any, specs: ApplicationSpecCache) -> None:
        self.config = place.config
        self.client = FakeQueueClient()
        self.ended: list[tuple[str, str]] = []
        """Applications that were closed or cancelled, in order."""
        self.may_answer = asyncio.Event()
        """Whether the scheduler answers calls that close an application."""
        self.may_answer.set()
        self.told: dict[str, Any] = {}
        """Additional fields in the scheduler's view of an application."""
        self.scheduler_status: dict[str, Any] | AdmissionError = {
            "ready": True,
            "degraded": None,
            "replicas": {"r": {}},
            "policy": "justitia",
        }
        self.taught: list[Any] = []
        calls: Any = (self.client, None, FakeEstimates(), FakeCounter())
        parts: Any = (*calls, specs, unknown_outlooks())
        self.gateway = Gateway(place.config, *parts)
        self.overview = SimpleNamespace(remote=self._overview)
        self.take_history = SimpleNamespace(remote=self._take_history)

    @property
    def open_applications(self) -> dict[str, ApplicationArrived]:
        return self.client.pending.applications

    def served_model(self) -> ServedModel:
        parts: Any = (self, self, self)
        return ServedModel(self.config, self.gateway, *parts)

    # --- as its scheduler

    async def find_application(self, application_id: str) -> dict[str, Any] | None:
        arrival = self.open_applications.get(application_id)
        return None if arrival is None else application_view(arrival) | self.told

    async def close_application(self, application_id: str, verb: str = "close") -> bool:
        await self.may_answer.wait()
        self.ended.append((verb, application_id))
        return self.open_applications.pop(application_id, None) is not None

    async def cancel_application(self, application_id: str) -> bool:
        return await self.close_application(application_id, "cancel")

    async def status(self, applications: int) -> dict[str, Any]:
        if isinstance(self.scheduler_status, AdmissionError):
            raise self.scheduler_status
        return self.scheduler_status

    # --- methods of the model's predictor and inspection

    async def _overview(self) -> dict[str, Any]:
        return {"learns": True, "classes": {self.config.model.name: {}}}

    async def _take_history(self, samples: list[Any]) -> int:
        self.taught += samples
        return len(samples)

    async def inspect(self) -> Any:
        return self

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"model": self.config.model.name}


class TwoModels(NamedTuple):
    http: httpx.AsyncClient
    chat: ModelRig
    embed: ModelRig


def application_view(arrival: ApplicationArrived) -> dict[str, Any]:
    """Return a scheduler's view of an application with two inferences, one of them done."""
    names = ("application_id", "application_class", "tenant", "weight")
    return {name: getattr(arrival, name) for name in names} | {
        "state": "open",
        "predicted_kv_token_time": 100.0,
        "kv_token_time": 10.0,
        "prefill_token_time": 0,
        "virtual_finish_time": 7.0,
        "age_s": 1.0,
        "waiting": 1,
        "running": 0,
        "ended": 1,
        "gps_lag": None,
    }


@pytest.fixture
async def two_models() -> AsyncIterator[TwoModels]:
    """Serve two models, one of them with a LoRA adapter, in this process."""
    args = AppArgs.parse(
        {
            "models": [
                {
                    "name": CHAT,
                    "path": "none",
                    "adapters": {ADAPTER: "/sql"},
                    "aliases": ["gpt-4o", "claude-*"],
                },
                {"name": EMBED, "path": "none", "aliases": ["claude-embed-*"]},
            ],
            "engine": {"kind": "fake"},
        }
    )
    specs = ApplicationSpecCache(600.0, 100)
    queues = [ModelRig(place, specs) for place in args.each_model()]
    async with client_of(*(queue.served_model() for queue in queues), specs=specs) as http:
        http.headers["x-justitia-tenant"] = "t"
        yield TwoModels(http, *queues)


async def open_application(two_models: TwoModels, **fields: Any) -> dict[str, Any]:
    answer = await two_models.http.post(
        "/v1/applications", json=_OPENING | {"application_id": "a"} | fields
    )
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def send_inference(two_models: TwoModels, model: Any, **headers: str) -> httpx.Response:
    """Send an inference of application `a`; it fails because no replica exists."""
    named = {} if model is None else {"model": model}
    headers = {"x-justitia-application": "a"} | headers
    return await two_models.http.post(
        COMPLETIONS, json={"prompt": "x", "max_tokens": 9, **named}, headers=headers
    )


async def open_in_both(two_models: TwoModels) -> None:
    await open_application(two_models)
    for model in (CHAT, EMBED):
        await send_inference(two_models, model)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "queue"), [(CHAT, "chat"), (ADAPTER, "chat"), (EMBED, "embed")])
async def test_inference_waits_in_the_queue_of_its_model(
    two_models: TwoModels, model: str, queue: str
) -> None:
    """A LoRA adapter runs on its model's replicas."""
    await send_inference(two_models, model)
    counts = {name: len(getattr(two_models, name).client.items) for name in ("chat", "embed")}

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
async def test_request_for_an_unserved_model_is_refused(
    two_models: TwoModels, model: Any, status: int, code: str | None, said: str
) -> None:
    """The intended model cannot be guessed, so the error lists the served models."""
    answer = await send_inference(two_models, model)
    error = answer.json()["error"]

    assert (status, code, "model") == (answer.status_code, error["code"], error["param"])
    assert said in error["message"]


async def test_application_opened_for_a_model_is_queued_at_once(
    two_models: TwoModels,
) -> None:
    """The other model's queue learns of the application at its first call there."""
    answer = await open_application(two_models, model=EMBED)
    only_there = (set(two_models.chat.open_applications), set(two_models.embed.open_applications))
    await send_inference(two_models, CHAT)

    assert 1.0 == answer["virtual_finish_time"]
    assert answer["predicted_kv_token_time"] > 0
    assert (set(), {"t|a"}) == only_there
    arrivals = [two_models.chat.open_applications["t|a"], two_models.embed.open_applications["t|a"]]
    assert [("rag", "t", 3.0)] * 2 == [
        (arrival.application_class, arrival.tenant, arrival.weight) for arrival in arrivals
    ]


async def test_application_opened_without_a_model_is_queued_at_its_first_call(
    two_models: TwoModels,
) -> None:
    """An application in a queue that it never uses would delay other applications."""
    answer = await open_application(two_models)
    nowhere = (await two_models.http.get("/v1/applications/a")).json()
    await send_inference(two_models, EMBED)
    somewhere = (await two_models.http.get("/v1/applications/a")).json()

    assert (None, None) == (answer["predicted_kv_token_time"], answer["virtual_finish_time"])
    assert ("open", "rag", {}) == (
        nowhere["state"],
        nowhere["application_class"],
        nowhere["models"],
    )
    assert (set(), {"t|a"}) == (
        set(two_models.chat.open_applications),
        set(two_models.embed.open_applications),
    )
    assert ([EMBED], 7.0) == (list(somewhere["models"]), somewhere["virtual_finish_time"])


async def test_generated_application_id_is_equal_in_all_queues(two_models: TwoModels) -> None:
    """The id is assigned before any queue receives the application."""
    answer = await open_application(two_models, application_id=None)
    await send_inference(two_models, CHAT, **{"x-justitia-application": answer["application_id"]})

    assert (
        "rag"
        == two_models.chat.open_applications[f"t|{answer['application_id']}"].application_class
    )


async def test_application_in_two_queues_is_shown_as_one_application(two_models: TwoModels) -> None:
    """Amounts are summed; virtual finish times of two queues have no sum."""
    await open_in_both(two_models)
    both = (await two_models.http.get("/v1/applications/a")).json()
    one = (await two_models.http.get("/v1/applications/a", params={"model": CHAT})).json()

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
    ("rules", "told"),
    [
        (("metadata", "conversation"), "metadata"),
        (("", "conversation"), "conversation"),
        ((None, "conversation"), "conversation"),
        (("", ""), ""),
        ((None, None), ""),
    ],
)
async def test_application_in_two_queues_shows_the_first_recognition_rule(
    two_models: TwoModels, rules: tuple[str | None, str | None], told: str
) -> None:
    """A scheduler of an older release reports no recognition rule.

    Each queue's rule is listed below it.
    """
    await open_in_both(two_models)
    for queue, rule in zip((two_models.chat, two_models.embed), rules, strict=True):
        queue.told = {} if rule is None else {"recognized_by": rule}
    both = (await two_models.http.get("/v1/applications/a")).json()

    assert told == both["recognized_by"]
    assert rules == tuple(one.get("recognized_by") for one in both["models"].values())


async def test_application_without_calls_shows_no_recognition_rule(two_models: TwoModels) -> None:
    """No scheduler knows an application without calls, but its description has all fields."""
    await open_application(two_models)

    assert "" == (await two_models.http.get("/v1/applications/a")).json()["recognized_by"]


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [("POST", "/v1/applications/a/close", "close"), ("DELETE", "/v1/applications/a", "cancel")],
)
async def test_application_ends_in_every_queue(
    two_models: TwoModels, method: str, path: str, verb: str
) -> None:
    await open_in_both(two_models)
    first, second = [(await two_models.http.request(method, path)).status_code for _ in range(2)]
    await send_inference(two_models, CHAT)

    assert (200, 404) == (first, second)
    assert [(verb, "t|a")] * 2 == two_models.chat.ended == two_models.embed.ended
    assert "default" == two_models.chat.open_applications["t|a"].application_class


async def test_final_inference_closes_its_application_at_the_other_model(
    two_models: TwoModels,
) -> None:
    await open_in_both(two_models)
    await send_inference(two_models, CHAT, **{"x-justitia-final": "true"})
    await eventually(lambda: two_models.embed.ended, "it is closed there")

    assert ([], [("close", "t|a")]) == (two_models.chat.ended, two_models.embed.ended)


async def test_final_inference_does_not_wait_for_the_other_models_scheduler(
    two_models: TwoModels,
) -> None:
    """The other model's scheduler may wait for Redis, and closes the application later."""
    await open_in_both(two_models)
    two_models.embed.may_answer.clear()
    async with asyncio.timeout(30):
        await send_inference(two_models, CHAT, **{"x-justitia-final": "true"})
    ended_meanwhile = list(two_models.embed.ended)
    two_models.embed.may_answer.set()
    await eventually(lambda: two_models.embed.ended, "it is closed there")

    assert ([], [("close", "t|a")]) == (ended_meanwhile, two_models.embed.ended)


async def test_application_without_calls_can_be_closed(two_models: TwoModels) -> None:
    await open_application(two_models)

    assert 200 == (await two_models.http.post("/v1/applications/a/close")).status_code
    assert 404 == (await two_models.http.get("/v1/applications/a")).status_code


async def test_closing_an_application_for_one_model_affects_only_its_queue(
    two_models: TwoModels,
) -> None:
    """An agent that is done with one model may continue with another."""
    await open_in_both(two_models)
    answer = await two_models.http.post("/v1/applications/a/close", params={"model": EMBED})

    assert 200 == answer.status_code
    assert ({"t|a"}, set()) == (
        set(two_models.chat.open_applications),
        set(two_models.embed.open_applications),
    )


async def test_failure_of_one_model_queue_does_not_skip_the_other_queues(
    two_models: TwoModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller retries, and every reachable queue has ended the application."""
    await open_in_both(two_models)

    class UnreachableQueue(dict[str, Any]):
        def pop(self, *arguments: Any) -> Any:
            raise AdmissionError("the scheduler is being started again")

    monkeypatch.setattr(two_models.chat.client.pending, "applications", UnreachableQueue())
    answer = await two_models.http.delete("/v1/applications/a")

    assert 503 == answer.status_code
    assert set() == set(two_models.embed.open_applications)


async def test_models_are_listed_with_their_adapters(two_models: TwoModels) -> None:
    cards = (await two_models.http.get("/v1/models")).json()["data"]

    assert [(CHAT, None), (ADAPTER, CHAT), ("gpt-4o", CHAT), (EMBED, None)] == [
        (card["id"], card.get("parent")) for card in cards
    ]


@pytest.mark.parametrize(
    ("asked", "served"),
    [("gpt-4o", CHAT), ("claude-haiku-4-5", CHAT), ("claude-embed-1", EMBED)],
)
async def test_model_alias_reaches_its_model_and_is_listed(
    two_models: TwoModels, asked: str, served: str
) -> None:
    """Agent programs request the model names of the service that they were made for."""
    await send_inference(two_models, asked)

    assert (served == EMBED) == bool(two_models.embed.client.items)
    assert served == (await two_models.http.get(f"/v1/models/{asked}")).json()["parent"]


async def test_unknown_model_alias_is_not_served(two_models: TwoModels) -> None:
    answer = await send_inference(two_models, "gpt-4o-mini")

    assert 404 == answer.status_code
    assert "'gpt-4o-mini' does not exist" in answer.json()["error"]["message"]


async def test_model_list_has_the_fields_of_openai_and_anthropic(two_models: TwoModels) -> None:
    """Claude Code reads the list in Anthropic's format, OpenAI's clients in theirs."""
    listed = (await two_models.http.get("/v1/models", params={"limit": 1000})).json()
    cards = [anthropic.types.ModelInfo.model_validate(card) for card in listed["data"]]
    openai_cards = [openai.types.Model.model_validate(card) for card in listed["data"]]

    assert [card.id for card in cards] == [card.display_name for card in cards]
    assert [card.id for card in cards] == [card.id for card in openai_cards]
    assert (False, CHAT, EMBED) == (listed["has_more"], listed["first_id"], listed["last_id"])
    assert ("list", {"model"}) == (listed["object"], {card.type for card in cards})


@pytest.mark.parametrize("name", [CHAT, ADAPTER, EMBED, EMBED.replace("/", "%2F")])
async def test_details_of_a_model_equal_its_entry_in_the_model_list(
    two_models: TwoModels, name: str
) -> None:
    """Clients use this path to check that a model exists; names may contain slashes."""
    cards = {card["id"]: card for card in (await two_models.http.get("/v1/models")).json()["data"]}
    answer = await two_models.http.get(f"/v1/models/{name}")

    assert cards[name.replace("%2F", "/")] == answer.json()


async def test_request_for_an_unserved_models_details_gets_404(two_models: TwoModels) -> None:
    answer = await two_models.http.get("/v1/models/other")

    assert 404 == answer.status_code
    assert "'chat', 'chat-sql', 'org/embed' are served" in answer.json()["error"]["message"]


async def test_readiness_probe_covers_all_models_or_the_named_model(two_models: TwoModels) -> None:
    """The service is ready if every model is; a probe may check one model."""
    two_models.embed.scheduler_status = AdmissionError("the scheduler is being started again")
    whole = await two_models.http.get("/readyz")
    chat = await two_models.http.get("/readyz", params={"model": CHAT})

    assert (503, "model org/embed: the scheduler is being started again") == (
        whole.status_code,
        whole.json()["reason"],
    )
    assert (200, None) == (chat.status_code, chat.json()["reason"])


async def test_unreachable_scheduler_does_not_hide_the_other_models_status(
    two_models: TwoModels,
) -> None:
    two_models.embed.scheduler_status = AdmissionError("the scheduler is being started again")
    answer = (await two_models.http.get("/v1/status")).json()
    one = (await two_models.http.get("/v1/status", params={"model": CHAT})).json()

    assert not answer["ready"]
    assert "justitia" == answer["models"][CHAT]["policy"]
    assert "the scheduler is being started again" == answer["models"][EMBED]["degraded"]
    assert answer["models"][CHAT] == one


async def test_predictor_and_doctor_requests_reach_the_named_model(two_models: TwoModels) -> None:
    overview = (await two_models.http.get("/v1/predictor")).json()["models"]
    examined = (await two_models.http.get("/v1/examination")).json()["models"]
    one = (await two_models.http.get("/v1/examination", params={"model": EMBED})).json()
    samples: dict[str, Any] = {"samples": [{}]}
    unnamed = await two_models.http.post("/v1/predictor/samples", json=samples)
    named = await two_models.http.post(
        "/v1/predictor/samples", json=samples, params={"model": EMBED}
    )

    assert [CHAT, EMBED] == list(overview) == list(examined)
    assert [EMBED] == list(overview[EMBED]["classes"])
    assert {"model": EMBED} == one == examined[EMBED]
    assert (400, 200) == (unnamed.status_code, named.status_code)
    assert ([], [{}]) == (two_models.chat.taught, two_models.embed.taught)
