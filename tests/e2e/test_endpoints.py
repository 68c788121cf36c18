"""Every endpoint of a generating model over HTTP: one model gives one text in every form."""

import json
from typing import Any

import httpx
import pytest

from tests.harness.bodies import CHAT
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
_SAID: list[dict[str, Any]] = [{"role": "user", "content": "a b c"}]
_GREEDY = {"model": "tiny-llama", "temperature": 0}


async def json_answer(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=_GREEDY | body)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def stream_events(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    async with http.stream("POST", path, json=_GREEDY | body | {"stream": True}) as answer:
        assert 200 == answer.status_code
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_chat_response_and_message_apis_return_equal_text(
    http: httpx.AsyncClient, service: Service
) -> None:
    """With greedy sampling, all APIs return an equal text, whole or streamed."""
    chat = await json_answer(http, CHAT, messages=_SAID, max_tokens=8)
    said = chat["choices"][0]["message"]["content"]
    response = await json_answer(http, RESPONSES, input=_SAID, max_output_tokens=8)
    message = await json_answer(http, MESSAGES, messages=_SAID, max_tokens=8)
    of_response = await stream_events(http, RESPONSES, input=_SAID, max_output_tokens=8)
    of_message = await stream_events(http, MESSAGES, messages=_SAID, max_tokens=8)

    assert said
    assert said == response["output"][-1]["content"][0]["text"]
    assert said == message["content"][0]["text"]
    assert said == "".join(
        event["delta"] for event in of_response if event["type"] == "response.output_text.delta"
    )
    assert of_response[-1]["type"] in ("response.completed", "response.incomplete")
    assert said == "".join(event.get("delta", {}).get("text") or "" for event in of_message)
    assert "message_stop" == of_message[-1]["type"]
    assert chat["usage"]["prompt_tokens"] == message["usage"]["input_tokens"]
    await service.until_idle()


async def test_structured_output_is_one_of_the_given_choices(http: httpx.AsyncClient) -> None:
    given = {"choice": ["red", "green"]}
    chat = await json_answer(http, CHAT, messages=_SAID, max_tokens=8, structured_outputs=given)

    assert chat["choices"][0]["message"]["content"] in given["choice"]


async def test_tokenize_and_detokenize_calls_bypass_the_queue(http: httpx.AsyncClient) -> None:
    """A client that cuts its prompt to the context length needs the token count at once."""
    counted = await json_answer(http, "/tokenize", messages=_SAID)
    text = await json_answer(http, "/tokenize", prompt="a b c")
    back = await json_answer(http, "/detokenize", tokens=text["tokens"])
    chat = await json_answer(http, CHAT, messages=_SAID, max_tokens=1)
    anthropic = await json_answer(http, f"{MESSAGES}/count_tokens", messages=_SAID)

    assert chat["usage"]["prompt_tokens"] == counted["count"] == anthropic["input_tokens"]
    assert "a b c" == back["prompt"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (RESPONSES, {"input": "a", "previous_response_id": "r"}, 400, "unsupported_operation"),
        (RESPONSES, {"input": "a", "background": True}, 400, "unsupported_operation"),
        (CHAT, {"messages": _SAID, "use_beam_search": True}, 400, "unsupported_operation"),
        ("/v1/embeddings", {"input": "a"}, 404, "not_served"),
        ("/rerank", {"query": "a", "documents": ["b"]}, 404, "not_served"),
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}, 404, None),
        ("/invocations", {"prompt": "a"}, 404, None),
    ],
)
async def test_unsupported_request_gets_an_openai_error(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    """Requests are refused if they need state on one replica, or control the engine."""
    answer = await http.post(path, json=body)

    assert (status, code) == (answer.status_code, answer.json()["error"]["code"])
