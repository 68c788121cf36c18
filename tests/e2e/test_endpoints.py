"""Every endpoint of a model that generates, over HTTP: one model, so one text whatever the form."""

import json
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ADAPTER
from tests.integration.bodies import CHAT, COMPLETIONS
from tests.integration.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
_SAID: list[dict[str, Any]] = [{"role": "user", "content": "a b c"}]
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Paris"]},
        "warm": {"type": "boolean"},
    },
    "required": ["city", "warm"],
    "additionalProperties": False,
}
_GREEDY = {"model": "tiny-llama", "temperature": 0}


def weather() -> dict[str, Any]:
    """Return a tool whose arguments are short, whatever a model says."""
    return {"name": "weather", "description": "How it is there.", "parameters": _SCHEMA}


def checked(arguments: str) -> dict[str, Any]:
    """Return a tool's arguments; fails if they are not of its schema."""
    read = json.loads(arguments)
    assert set(_SCHEMA["required"]) == set(read)
    assert read["city"] in ("Oslo", "Paris")
    assert isinstance(read["warm"], bool)
    found: dict[str, Any] = read
    return found


async def told(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Return the answer to a request that must succeed."""
    answer = await http.post(path, json=_GREEDY | body)
    assert 200 == answer.status_code, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def events(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    async with http.stream("POST", path, json=_GREEDY | body | {"stream": True}) as answer:
        assert 200 == answer.status_code
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_response_and_message_say_what_the_chat_says(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Greedy and of one prompt; whole and as a stream, which ends as its protocol says."""
    chat = await told(http, CHAT, messages=_SAID, max_tokens=8)
    said = chat["choices"][0]["message"]["content"]
    response = await told(http, RESPONSES, input=_SAID, max_output_tokens=8)
    message = await told(http, MESSAGES, messages=_SAID, max_tokens=8)
    of_response = await events(http, RESPONSES, input=_SAID, max_output_tokens=8)
    of_message = await events(http, MESSAGES, messages=_SAID, max_tokens=8)

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


async def test_forced_tool_is_called_with_arguments_of_its_schema(
    http: httpx.AsyncClient, service: Service
) -> None:
    """By a model of random weights: what a grammar allows is all that it can say."""
    functions = [{"type": "function", "function": weather()}]
    named = {"type": "function", "function": {"name": "weather"}}
    asked = {"messages": _SAID, "tools": functions, "tool_choice": named, "max_tokens": 64}
    chat = await told(http, CHAT, **asked)
    pieces = await events(http, CHAT, **asked)
    calls = [
        call["function"].get("arguments") or ""
        for event in pieces
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls") or []
    ]
    (call,) = chat["choices"][0]["message"]["tool_calls"]

    assert "weather" == call["function"]["name"]
    assert checked(call["function"]["arguments"]) == checked("".join(calls))
    await service.until_idle()


async def test_forced_tool_of_anthropics_form_comes_in_blocks(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Whole, and in pieces of JSON."""
    tools = [{"name": "weather", "input_schema": _SCHEMA}]
    named = {"type": "tool", "name": "weather"}
    asked = {"messages": _SAID, "tools": tools, "tool_choice": named, "max_tokens": 64}
    message = await told(http, MESSAGES, **asked)
    pieces = await events(http, MESSAGES, **asked)
    (block,) = [block for block in message["content"] if block["type"] == "tool_use"]
    joined = "".join(event.get("delta", {}).get("partial_json") or "" for event in pieces)

    assert "tool_use" == message["stop_reason"]
    assert checked(json.dumps(block["input"])) == checked(joined)
    await service.until_idle()


async def test_output_follows_the_schema_that_is_asked_for(
    http: httpx.AsyncClient, service: Service
) -> None:
    """As OpenAI's chats and responses ask for it, and by vLLM's own field."""
    wanted = {"type": "json_schema", "name": "weather", "schema": _SCHEMA}
    chat = await told(
        http,
        CHAT,
        messages=_SAID,
        max_tokens=64,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": _SCHEMA},
        },
    )
    response = await told(http, RESPONSES, input="a", max_output_tokens=64, text={"format": wanted})
    chosen = await told(
        http, CHAT, messages=_SAID, max_tokens=8, structured_outputs={"choice": ["red", "green"]}
    )

    checked(chat["choices"][0]["message"]["content"])
    checked(response["output"][-1]["content"][0]["text"])
    assert chosen["choices"][0]["message"]["content"] in ("red", "green")
    await service.until_idle()


async def test_choices_batches_and_log_probabilities_come_back_whole(
    http: httpx.AsyncClient, service: Service
) -> None:
    """Several sequences are one inference; each of them is told."""
    batch = await told(http, COMPLETIONS, prompt=["a", "b c"], n=2, temperature=1, max_tokens=3)
    chat = await told(http, CHAT, messages=_SAID, max_tokens=3, logprobs=True, top_logprobs=2)
    each = chat["choices"][0]["logprobs"]["content"]

    assert [0, 1, 2, 3] == [choice["index"] for choice in batch["choices"]]
    assert chat["usage"]["completion_tokens"] == len(each)
    assert all(2 == len(token["top_logprobs"]) for token in each)
    await service.until_idle()


async def test_adapter_is_a_model_of_its_own_name_in_the_same_queue(
    http: httpx.AsyncClient, service: Service
) -> None:
    """It is listed, and says something else than the model that it changes."""
    asked = {"messages": _SAID, "max_tokens": 8, "ignore_eos": True}
    listed = (await http.get("/v1/models")).json()["data"]
    base = await told(http, CHAT, **asked)
    adapted = await told(http, CHAT, **asked, model=ADAPTER)

    assert ["tiny-llama", ADAPTER] == [model["id"] for model in listed]
    assert ADAPTER == adapted["model"]
    assert base["choices"][0]["message"] != adapted["choices"][0]["message"]
    await service.until_idle()


async def test_tokens_are_counted_and_turned_back_without_a_turn(http: httpx.AsyncClient) -> None:
    """A client that cuts its prompt to fit needs the engine's own count."""
    counted = await told(http, "/tokenize", messages=_SAID)
    text = await told(http, "/tokenize", prompt="a b c")
    back = await told(http, "/detokenize", tokens=text["tokens"])
    chat = await told(http, CHAT, messages=_SAID, max_tokens=1)
    anthropic = await told(http, f"{MESSAGES}/count_tokens", messages=_SAID)

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
async def test_what_is_not_served_says_so_in_openais_form(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    """What the model lacks, what a replica alone could not keep, what controls the engine."""
    answer = await http.post(path, json=body)

    assert (status, code) == (answer.status_code, answer.json()["error"]["code"])
