"""Tools with the official clients: called in a stream, answered, and lost with an engine.

The call is forced, because a model of random weights would never choose one.
"""

import asyncio
import json
from typing import Any

import anthropic
import openai
import psutil  # type: ignore[import-untyped]
import pytest

from tests.e2e.conftest import REPLACED_WITHIN_S
from tests.eventually import eventually
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

_MODEL = "tiny-llama"
_SAID: Any = [{"role": "user", "content": "a b c"}]
_NAME = "weather"
_LONG = 300
"""Number of days in a forecast that is incomplete when the engine dies."""


def forecast_schema(days: int) -> dict[str, Any]:
    """Return the JSON schema of the tool's arguments: a boolean for each of `days` days."""
    each = {"type": "array", "items": {"type": "boolean"}, "minItems": days, "maxItems": days}
    return {
        "type": "object",
        "properties": {"days": each},
        "required": ["days"],
        "additionalProperties": False,
    }


def chat_tool(days: int = 1) -> dict[str, Any]:
    function = {"name": _NAME, "strict": True, "parameters": forecast_schema(days)}
    return {
        "model": _MODEL,
        "messages": _SAID,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": _NAME}},
        "max_tokens": 1_500,
    }


def response_tool(days: int = 1) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "input": _SAID,
        "tools": [
            {"type": "function", "name": _NAME, "strict": True, "parameters": forecast_schema(days)}
        ],
        "tool_choice": {"type": "function", "name": _NAME},
        "max_output_tokens": 1_500,
    }


def message_tool(days: int = 1) -> dict[str, Any]:
    return {
        "model": _MODEL,
        "messages": _SAID,
        "tools": [{"name": _NAME, "input_schema": forecast_schema(days)}],
        "tool_choice": {"type": "tool", "name": _NAME},
        "max_tokens": 1_500,
    }


def without_forced_tool(asked: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the request of the next turn, which lets the model choose whether to call a tool."""
    limits = {name: 4 for name in asked if name.startswith("max_")}
    return {k: v for k, v in asked.items() if k != "tool_choice"} | limits | more


def checked_arguments(arguments: str) -> dict[str, Any]:
    """Return a tool's arguments; fail if they do not match its schema."""
    read: dict[str, Any] = json.loads(arguments)
    assert ["days"] == list(read)
    assert all(isinstance(day, bool) for day in read["days"])
    return read


def recording_hooks(applications: list[str]) -> dict[str, Any]:
    """Return HTTP client hooks that record the application of each call."""

    async def record_application(answer: Any) -> None:
        applications.append(answer.headers["x-justitia-application"])

    return {"response": [record_application]}


def openai_client(service: Service, applications: list[str]) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(event_hooks=recording_hooks(applications))
    return openai.AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key=service.api_key, http_client=http
    )


def anthropic_client(service: Service, applications: list[str]) -> anthropic.AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(event_hooks=recording_hooks(applications))
    return anthropic.AsyncAnthropic(base_url=service.url, api_key=service.api_key, http_client=http)


# --- a tool call in a stream, and the turn after it


async def test_chat_streams_a_tool_call_and_accepts_the_tools_result(service: Service) -> None:
    """The id of the tool call links call and result; the next prompt contains both."""
    applications: list[str] = []
    async with openai_client(service, applications) as client:
        asked = chat_tool()
        options: Any = {"stream_options": {"include_usage": True}}
        async with client.chat.completions.stream(**asked, **options) as stream:
            first = await stream.get_final_completion()
        message = first.choices[0].message
        (call,) = message.tool_calls or []
        answer = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        turns = [*_SAID, message.model_dump(exclude_none=True), answer]
        second = await client.chat.completions.create(**without_forced_tool(asked, messages=turns))

    assert _NAME == call.function.name
    assert checked_arguments(call.function.arguments)
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.prompt_tokens < second.usage.prompt_tokens
    assert applications[0] == applications[1]
    await service.until_idle()


async def test_response_streams_a_tool_call_and_accepts_the_tools_result(service: Service) -> None:
    """The streamed pieces add up to the tool call in the last event."""
    applications: list[str] = []
    async with openai_client(service, applications) as client:
        asked = response_tool()
        async with client.responses.stream(**asked) as stream:
            events: list[Any] = [event async for event in stream]
            first = await stream.get_final_response()
        (call,) = [item for item in first.output if item.type == "function_call"]
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        turns = [*_SAID, call.model_dump(exclude_none=True), answer]
        second = await client.responses.create(**without_forced_tool(asked, input=turns))
    pieces = [e for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]

    assert _NAME == call.name
    assert checked_arguments(call.arguments)
    assert call.arguments == "".join(piece.delta for piece in pieces) == done.arguments
    assert {call.id} == {event.item_id for event in (*pieces, done)}
    assert list(range(len(events))) == [event.sequence_number for event in events]
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.input_tokens < second.usage.input_tokens
    assert applications[0] == applications[1]
    await service.until_idle()


async def test_message_streams_a_tool_call_and_accepts_the_tools_result(service: Service) -> None:
    """In Anthropic's API, tool calls and tool results are blocks of a message."""
    applications: list[str] = []
    async with anthropic_client(service, applications) as client:
        asked = message_tool()
        async with client.messages.stream(**asked) as stream:
            first = await stream.get_final_message()
        (call,) = [block for block in first.content if block.type == "tool_use"]
        answer = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        turns = [
            *_SAID,
            {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
            {"role": "user", "content": [answer]},
        ]
        second = await client.messages.create(**without_forced_tool(asked, messages=turns))

    assert _NAME == call.name
    assert checked_arguments(json.dumps(call.input))
    assert "tool_use" == first.stop_reason
    assert first.usage.input_tokens < second.usage.input_tokens
    assert applications[0] == applications[1]
    await service.until_idle()


async def test_required_tool_is_called(service: Service) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.api_key) as client,
        service.http() as http,
    ):
        bracket = {"prompt": "]", "add_special_tokens": False}
        (token,) = (await http.post("/tokenize", json=bracket)).json()["tokens"]
        asked: Any = chat_tool() | {"tool_choice": "required", "logit_bias": {str(token): 100}}
        answer = await client.chat.completions.create(**asked)
    calls = answer.choices[0].message.tool_calls or []

    assert [_NAME] == [call.function.name for call in calls]
    assert checked_arguments(calls[0].function.arguments)
    await service.until_idle()


# --- a call whose engine dies


class StreamReader:
    """Background reader of streams that keeps the pieces and the end of each stream."""

    def __init__(self) -> None:
        self.pieces: dict[str, str] = {"chat": "", "response": "", "message": ""}
        """Streamed pieces of the tool's arguments, by API."""
        self.ends: dict[str, str] = {}
        """Text of the error with which each stream ended, by API."""

    async def read_chat(self, client: openai.AsyncOpenAI) -> None:
        stream: Any = await client.chat.completions.create(**chat_tool(days=_LONG), stream=True)
        try:
            async for chunk in stream:
                for call in chunk.choices[0].delta.tool_calls or []:
                    self.pieces["chat"] += call.function.arguments or ""
        except openai.APIError as error:
            self.ends["chat"] = error.message

    async def read_response(self, client: openai.AsyncOpenAI) -> None:
        stream: Any = await client.responses.create(**response_tool(days=_LONG), stream=True)
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                self.pieces["response"] += event.delta
            elif event.type == "response.failed":
                self.ends["response"] = event.response.error.message

    async def read_message(self, client: anthropic.AsyncAnthropic) -> None:
        stream: Any = await client.messages.create(**message_tool(days=_LONG), stream=True)
        try:
            async for event in stream:
                if event.type == "content_block_delta":
                    self.pieces["message"] += event.delta.partial_json
        except anthropic.APIStatusError as error:
            self.ends["message"] = error.message


@pytest.mark.long
async def test_each_client_reports_an_error_for_a_tool_call_lost_with_its_engine(
    service: Service,
) -> None:
    """The parser state of a forced tool call dies with the engine, so no other can continue.

    Half of the arguments is no JSON; a client that saw a regular end would pass it to a tool.
    """
    (replica_id,) = await service.pulling_replicas()
    (pid,) = await service.probe(replica_id, "engine_pids")
    core, reader = psutil.Process(pid), StreamReader()
    async with (
        openai.AsyncOpenAI(
            base_url=f"{service.url}/v1", api_key=service.api_key, max_retries=0
        ) as client,
        anthropic.AsyncAnthropic(
            base_url=service.url, api_key=service.api_key, max_retries=0
        ) as other,
    ):
        reading = asyncio.gather(
            reader.read_chat(client), reader.read_response(client), reader.read_message(other)
        )
        await eventually(lambda: all(reader.pieces.values()), "each has begun its call", 60)
        core.suspend()  # On a fast machine the streams would end too early.
        core.kill()
        await reading
    await eventually(service.is_complete, "another replica is there", REPLACED_WITHIN_S)

    assert {"chat", "response", "message"} == set(reader.ends)
    for told, words in reader.ends.items():
        assert "lost in the middle of this stream" in words, told
        assert "structured_outputs" in words, told
        with pytest.raises(json.JSONDecodeError):
            json.loads(reader.pieces[told])
    await service.until_idle()
