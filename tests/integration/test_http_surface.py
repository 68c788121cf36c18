"""The HTTP surface: answers, streams, applications, and an error for each mistake of a caller."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from tests.harness.bodies import CHAT, COMPLETIONS, chat, completion
from tests.harness.open_calls import occupy_all_seats
from tests.harness.service import ENDLESS, MAX_MODEL_LEN, MODEL, SEATS, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

# --- answers


async def test_served_model_is_in_the_model_list(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/models")

    assert 200 == answer.status_code
    assert [MODEL] == [model["id"] for model in answer.json()["data"]]


async def test_readiness_probe_checks_all_parts_of_the_service(
    http: httpx.AsyncClient,
) -> None:
    """A liveness probe must not depend on replicas; a readiness probe must."""
    healthy, ready = await http.get("/healthz"), await http.get("/readyz")

    assert (200, {"status": "ok"}) == (healthy.status_code, healthy.json())
    assert (200, {"status": "ready", "reason": None}) == (ready.status_code, ready.json())


async def test_status_names_model_policy_and_replicas(
    http: httpx.AsyncClient, service: Service
) -> None:
    status = (await http.get("/v1/status")).json()

    assert (MODEL, "justitia", True) == (status["model"], status["policy"], status["ready"])
    assert await service.pulling_replicas() == sorted(status["replicas"])


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_request_without_an_application_becomes_its_own_application(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """Plain OpenAI clients are served, too, and leave no application behind."""
    answer = await http.post(path, json=body)

    assert 200 == answer.status_code
    assert 4 == answer.json()["usage"]["completion_tokens"]


async def test_stream_has_the_text_of_a_unary_answer_and_ends_with_done(
    http: httpx.AsyncClient,
) -> None:
    """Joining and forwarding chunks must not lose or duplicate text."""
    body = completion(max_tokens=50)
    unary = (await http.post(COMPLETIONS, json=body)).json()["choices"][0]["text"]
    async with http.stream("POST", COMPLETIONS, json=body | {"stream": True}) as stream:
        events = [line.removeprefix("data: ") async for line in stream.aiter_lines() if line]

    assert "[DONE]" == events[-1]
    assert unary == "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


async def test_batch_of_prompts_gets_all_choices_of_every_prompt(http: httpx.AsyncClient) -> None:
    """A batch with n > 1 is one lease, and every choice of every prompt is returned."""
    answer = await http.post(COMPLETIONS, json=completion(n=2) | {"prompt": ["a b", "c"]})

    assert 4 == len(answer.json()["choices"])


# --- mistakes


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (chat(model="other"), 404, "model", "model_not_found"),
        (chat(max_tokens=0), 400, "max_tokens", None),
        (chat(max_tokens=10**9), 400, "max_tokens", None),
        (chat("word " * MAX_MODEL_LEN), 400, "messages", "context_length_exceeded"),
        (chat(use_beam_search=True), 400, "use_beam_search", "unsupported_operation"),
        (chat(n=0), 400, "n", None),
        (chat(stream="maybe"), 400, "stream", None),
        ({"messages": []}, 400, "messages", None),
    ],
)
async def test_error_for_an_invalid_request_names_the_field(
    http: httpx.AsyncClient,
    body: dict[str, Any],
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    """A request that cannot succeed must not wait in the queue."""
    answer = await http.post(CHAT, json=body)

    error = answer.json()["error"]
    assert (status, param, code) == (answer.status_code, error["param"], error["code"])


@pytest.mark.parametrize(
    ("path", "content", "header", "status", "kind"),
    [
        (CHAT, b"{not json", {}, 400, "BadRequestError"),
        # Ids become keys, metric labels and log fields, so few characters are allowed.
        (CHAT, b"{}", {"x-justitia-application": "ünicode"}, 400, "BadRequestError"),
        (CHAT, b"{}", {"x-justitia-class": "with spaces"}, 400, "BadRequestError"),
        # VLLM's admin paths must not be reachable.
        *(
            (path, b"{}", {}, 404, "NotFoundError")
            for path in ("/v1/embeddings", "/metrics", "/scale_elastic_ep", "/nowhere")
        ),
    ],
)
async def test_every_error_has_the_openai_format(
    http: httpx.AsyncClient,
    path: str,
    content: bytes,
    header: dict[str, str],
    status: int,
    kind: str,
) -> None:
    headers = {name.encode(): value.encode() for name, value in header.items()}
    answer = await http.post(path, content=content, headers=headers)

    assert (status, kind) == (answer.status_code, answer.json()["error"]["type"])


async def test_error_for_an_unknown_path_has_its_clients_error_format(
    http: httpx.AsyncClient,
) -> None:
    """Anthropic's clients read another error form than OpenAI's."""
    body = chat(max_tokens=3)
    answer = await http.post("/v1/messages", json=body)

    assert 404 == answer.status_code
    assert ("error", "not_found_error") == (answer.json()["type"], answer.json()["error"]["type"])


async def test_tokenize_calls_are_answered_while_all_replicas_are_full(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Counting tokens needs neither a seat nor KV memory."""
    async with occupy_all_seats(service, http):
        answer = await http.post("/tokenize", json={"prompt": "one two three"})

    assert (200, 3) == (answer.status_code, answer.json()["count"])


# --- applications


async def test_application_can_be_opened_used_and_closed(
    http: httpx.AsyncClient, service: Service
) -> None:
    opened = await http.post(
        "/v1/applications", json={"application_class": "MRS", "input": "a b", "weight": 2.0}
    )
    name = opened.json()["application_id"]
    path = f"/v1/applications/{name}"
    await http.post(CHAT, json=chat(), headers={"x-justitia-application": name})
    known = (await http.get(path)).json()
    closed = await http.post(f"{path}/close")

    assert {"application_id", "predicted_kv_token_time", "virtual_finish_time"} == {*opened.json()}
    assert ("MRS", 2.0, "open") == tuple(
        known[name] for name in ("application_class", "weight", "state")
    )
    assert {"application_id": name, "closed": True} == closed.json()
    await service.until_idle()
    assert 404 == (await http.get(path)).status_code


async def test_application_header_of_a_call_opens_the_application(http: httpx.AsyncClient) -> None:
    """Agents that use only the OpenAI client join their calls by a header."""
    headers = {"x-justitia-application": "by/header:1", "x-justitia-tenant": "t1"}
    for _ in range(2):
        assert 200 == (await http.post(CHAT, json=chat(), headers=headers)).status_code
    path = "/v1/applications/by/header:1"
    known = (await http.get(path, headers={"x-justitia-tenant": "t1"})).json()

    assert ("t1", "default") == (known["tenant"], known["application_class"])
    # The application belongs to another tenant than `default`.
    assert 404 == (await http.get(path)).status_code
    await http.post(f"{path}/close", headers={"x-justitia-tenant": "t1"})


async def test_cancelling_an_application_cancels_its_waiting_and_running_calls(
    http: httpx.AsyncClient, service: Service
) -> None:
    """One call frees all resources of an abandoned application."""
    headers = {"x-justitia-application": "to-cancel"}
    body = completion(max_tokens=ENDLESS, n=SEATS)
    calls = [
        asyncio.create_task(http.post(COMPLETIONS, json=body, headers=headers)) for _ in range(4)
    ]
    await service.until(lambda s: s["in_flight"] == 2 and s["waiting"] == 2, "two run, two wait")
    cancelled = await http.delete("/v1/applications/to-cancel")
    answers = await asyncio.gather(*calls)

    assert {"application_id": "to-cancel", "cancelled": True} == cancelled.json()
    assert [409] * 4 == [answer.status_code for answer in answers]


@pytest.mark.parametrize(("method", "suffix"), [("GET", ""), ("POST", "/close"), ("DELETE", "")])
async def test_unknown_application_is_not_found(
    http: httpx.AsyncClient, method: str, suffix: str
) -> None:
    """A misspelt id must not look like a success."""
    answer = await http.request(method, f"/v1/applications/nobody{suffix}")

    error = answer.json()["error"]
    assert (404, "application_not_found") == (answer.status_code, error["code"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "application_class"),
        ({"application_class": "a", "weight": 0}, "weight"),
        ({"application_class": "a", "colour": "red"}, "colour"),
        ({"application_class": "a", "application_id": "with space"}, "application_id"),
    ],
)
async def test_error_for_an_invalid_application_names_the_field(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    """An application of weight 0 would never be served; an unknown key is a misspelt one."""
    answer = await http.post("/v1/applications", json=body)

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])


# --- waiting


async def test_comments_keep_a_waiting_stream_alive(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Proxies and clients close silent connections, which would lose the place in the queue."""
    body = completion(stream=True)
    async with AsyncExitStack() as stack:
        async with occupy_all_seats(service, http):
            stream = await stack.enter_async_context(http.stream("POST", COMPLETIONS, json=body))
            chunks = stream.aiter_raw()
            first = await anext(chunks)
        rest = b"".join([chunk async for chunk in chunks])

    assert 200 == stream.status_code
    assert first.startswith((b": justitia position=", b": waiting"))  # its position, if known
    assert first.endswith(b"\n\n")
    assert rest.endswith(b"data: [DONE]\n\n")


# --- OpenAI's own client


async def test_unmodified_openai_client_works(http: httpx.AsyncClient, service: Service) -> None:
    """Agents use the official OpenAI client, and only add a header."""

    def hold_conversation() -> tuple[str, str, str | None]:
        with openai.OpenAI(
            base_url=f"{service.url}/v1",
            api_key="none",
            default_headers={"X-Justitia-Application": "of-threads"},
        ) as client:
            asked: Any = {"model": MODEL, "prompt": "a b", "max_tokens": 6}
            whole = client.completions.create(**asked)
            stream = client.completions.create(**asked, stream=True)
            streamed = "".join(chunk.choices[0].text for chunk in stream)
            with pytest.raises(openai.NotFoundError) as refused:
                client.completions.create(**asked | {"model": "other"})
            return whole.choices[0].text, streamed, refused.value.code

    whole, streamed, refused = await asyncio.to_thread(hold_conversation)
    await http.post("/v1/applications/of-threads/close")

    assert whole == streamed
    assert "model_not_found" == refused
