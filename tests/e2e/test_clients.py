"""Clients as agents have them, unchanged, over real HTTP: whatever one of them is, it is served.

The model says noise; a tool is called because the call is forced. What is shown is that each client
understands every answer, and that nothing of its inference is left behind.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.integration.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

MODEL, EMBEDDING = "tiny-llama", "tiny-embedding"
_ROOT = Path(__file__).resolve().parents[2]
_SAID: Any = [{"role": "user", "content": "a b c"}]


class Weather(BaseModel):
    """How it is there."""

    warm: bool


_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "Weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"warm": {"type": "boolean"}},
            "required": ["warm"],
            "additionalProperties": False,
        },
    },
}
_NAMED: Any = {"type": "function", "function": {"name": "Weather"}}
"""The call of this tool is forced: a model of random weights would never choose it."""


# --- OpenAI's own


async def test_openai_client_parses_what_a_schema_shaped(service: Service) -> None:
    """`parse` sends the schema of a class and reads the answer into it."""
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        answer = await client.chat.completions.parse(
            model=MODEL, messages=_SAID, max_tokens=32, response_format=Weather
        )

    assert isinstance(answer.choices[0].message.parsed, Weather)
    await service.until_idle()


async def test_openai_client_gathers_a_tool_call_from_a_stream(service: Service) -> None:
    """Its helper joins the pieces of the arguments."""
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        asked = {"model": MODEL, "messages": _SAID, "max_tokens": 32, "tools": [_TOOL]}
        async with client.chat.completions.stream(**asked, tool_choice=_NAMED) as stream:
            answer = await stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls or []

    assert "Weather" == call.function.name
    assert Weather.model_validate_json(call.function.arguments)
    await service.until_idle()


async def test_openai_client_reads_responses_whole_and_as_a_stream(service: Service) -> None:
    """Its helper checks the order of the events."""
    asked: Any = {"model": MODEL, "input": "a b c", "max_output_tokens": 6, "temperature": 0}
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none") as client:
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
        with pytest.raises(openai.BadRequestError, match="not kept"):
            await client.responses.create(**asked, previous_response_id="resp_1")

    assert whole.output_text
    assert "response.created" == kinds[0]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    await service.until_idle()


async def test_openai_client_reads_embeddings(reading: Service) -> None:
    """By default it asks for base64, and turns it into numbers."""
    async with openai.AsyncOpenAI(base_url=f"{reading.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model=EMBEDDING, input=["a b", "c"])
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model=EMBEDDING, messages=_SAID)

    assert [64, 64] == [len(one.embedding) for one in answer.data]
    assert abs(sum(value * value for value in answer.data[0].embedding) - 1) < 1e-3
    await reading.until_idle()


# --- Anthropic's own


async def test_anthropic_client_reads_messages_whole_and_as_a_stream(service: Service) -> None:
    """Its helper builds the message from the events; its errors come from the error's form."""
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 6}
    asked["extra_body"] = {"temperature": 0}  # its newest version has no argument for it
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key="none") as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=MODEL, messages=_SAID)
        with pytest.raises(anthropic.NotFoundError) as refused:
            await client.messages.create(**(asked | {"model": "other"}))

    (text,), (streamed_text,) = whole.content, streamed.content
    assert text.type == streamed_text.type == "text"
    assert text.text == streamed_text.text
    assert whole.usage.input_tokens == counted.input_tokens
    assert "not_found_error" == refused.value.body["error"]["type"]  # type: ignore[index]
    await service.until_idle()


async def test_anthropic_client_is_given_a_tool_call(service: Service) -> None:
    """As a block, also when it comes in pieces."""
    tool: Any = {"name": "Weather", "input_schema": _TOOL["function"]["parameters"]}
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 32, "tools": [tool]}
    async with (
        anthropic.AsyncAnthropic(base_url=service.url, api_key="none") as client,
        client.messages.stream(**asked, tool_choice={"type": "tool", "name": "Weather"}) as stream,
    ):
        message = await stream.get_final_message()
    blocks = [block for block in message.content if block.type == "tool_use"]

    assert 1 == len(blocks)
    assert Weather.model_validate(blocks[0].input)
    await service.until_idle()


# --- libraries on top of them


async def told(library: str, service: Service, reading: Service) -> Any:
    """Return what a program on a library was told by both services."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.e2e.frameworks.on_{library}", service.url, reading.url),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert 0 == process.returncode, err.decode()[-2_000:]
    await service.until_idle()
    await reading.until_idle()
    return json.loads(out.splitlines()[-1])


def check_talk(said: Any, tool: str) -> None:
    """Fail if a stream lost something, or a forced tool was not called as its schema says."""
    assert said["whole"]
    assert said["whole"] == said["streamed"]
    assert [tool] == [name for name, _ in said["called"]]
    assert all(isinstance(arguments["warm"], bool) for _, arguments in said["called"])


async def test_langchain_is_served(service: Service, reading: Service) -> None:
    """Its classes for OpenAI's and for Anthropic's form; both say the same."""
    said = await told("langchain", service, reading)

    check_talk(said["openai"], "Weather")
    check_talk(said["anthropic"], "Weather")
    assert said["openai"]["whole"] == said["anthropic"]["whole"]
    assert [64, 64] == said["sizes"]


async def test_llama_index_is_served(service: Service, reading: Service) -> None:
    """By its classes for services of OpenAI's form."""
    said = await told("llama_index", service, reading)

    check_talk(said, "weather")
    assert [64, 64] == said["sizes"]


async def test_litellm_is_served(service: Service, reading: Service) -> None:
    """By its providers for OpenAI's and Anthropic's form, and for vLLM's rankings."""
    said = await told("litellm", service, reading)

    check_talk(said, "Weather")
    assert said["whole"] == said["anthropic"]
    assert [64, 64] == said["sizes"]
    assert [1, 0] == said["ranking"]
