"""Unmodified API clients of agents over real HTTP are served.

The services require keys, and each client sends its key in its own way.

The model has random weights; a tool is called only because the call is forced. The tests show that
each client reads every answer, and that nothing of its inference is left behind. Tools with the
official clients are in `test_tools.py`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import ADAPTER, EMBEDDING
from tests.e2e.frameworks import Weather
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

MODEL = "tiny-llama"
_ROOT = Path(__file__).resolve().parents[2]
_SAID: Any = [{"role": "user", "content": "a b c"}]


# --- OpenAI's client


async def test_openai_client_parses_structured_output(service: Service) -> None:
    """The client sends a class as a JSON schema, and parses the answer into that class."""
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 32, "response_format": Weather}
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.api_key) as client:
        whole = await client.chat.completions.parse(**asked)
        async with client.chat.completions.stream(**asked) as stream:
            streamed = await stream.get_final_completion()
        response = await client.responses.parse(model=MODEL, input="a", text_format=Weather)

    for answer in (whole, streamed):
        assert isinstance(answer.choices[0].message.parsed, Weather)
    assert isinstance(response.output_parsed, Weather)
    await service.until_idle()


async def test_openai_client_reads_choices_and_log_probabilities(service: Service) -> None:
    """The test covers whole and streamed chats, a batch, and the Responses API."""
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 4, "n": 2, "temperature": 1}
    measured: Any = {"logprobs": True, "top_logprobs": 2}
    output: Any = "message.output_text.logprobs"
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.api_key) as client:
        whole = await client.chat.completions.create(**asked, **measured)
        stream = await client.chat.completions.create(**asked, **measured, stream=True)
        pieces = [choice async for chunk in stream for choice in chunk.choices]
        batch = await client.completions.create(
            model=MODEL, prompt=["a", "b c"], max_tokens=4, n=2, logprobs=1, temperature=1
        )
        response = await client.responses.create(
            model=MODEL, input="a", max_output_tokens=4, include=[output], top_logprobs=2
        )

    assert [0, 1] == [choice.index for choice in whole.choices]
    assert {0, 1} == {piece.index for piece in pieces}
    for choices in (whole.choices, pieces):
        tokens = [token for one in choices if one.logprobs for token in one.logprobs.content or []]
        assert {2} == {len(token.top_logprobs) for token in tokens}
    assert [0, 1, 2, 3] == [choice.index for choice in batch.choices]
    for text in batch.choices:
        assert text.logprobs is not None
        assert all(value <= 0 for value in text.logprobs.token_logprobs or [1])
    said: Any = response.output[-1]
    assert {2} == {len(token.top_logprobs) for token in said.content[0].logprobs}
    await service.until_idle()


async def test_clients_find_the_adapter_in_the_model_list(service: Service) -> None:
    """Callers may name a LoRA adapter as the model in OpenAI's and Anthropic's APIs."""
    asked: Any = {"model": ADAPTER, "max_tokens": 6, "temperature": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.api_key) as client,
        anthropic.AsyncAnthropic(base_url=service.url, api_key=service.api_key) as other,
    ):
        listed = [model.id async for model in client.models.list()]
        one, same = await client.models.retrieve(ADAPTER), await other.models.retrieve(ADAPTER)
        chat = await client.chat.completions.create(**asked, messages=_SAID)
        completion = await client.completions.create(**asked, prompt="a b c")
        response = await client.responses.create(model=ADAPTER, input="a", max_output_tokens=6)
        message = await other.messages.create(model=ADAPTER, messages=_SAID, max_tokens=6)

    assert [MODEL, ADAPTER] == listed
    assert [ADAPTER] * 2 == [one.id, same.id]
    assert {ADAPTER} == {chat.model, completion.model, response.model, message.model}
    await service.until_idle()


async def test_openai_client_reads_embeddings(reading: Service) -> None:
    """By default the client requests base64 and decodes it; texts may also be sent as tokens."""
    async with (
        openai.AsyncOpenAI(base_url=f"{reading.url}/v1", api_key=reading.api_key) as client,
        reading.http() as http,
    ):
        answer = await client.embeddings.create(model=EMBEDDING, input=["a b", "c"])
        counted = (await http.post("/tokenize", json={"model": EMBEDDING, "prompt": "a b"})).json()
        of_tokens = await client.embeddings.create(model=EMBEDDING, input=counted["tokens"])
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model=EMBEDDING, messages=_SAID)
    first = answer.data[0].embedding

    assert [64, 64] == [len(one.embedding) for one in answer.data]
    assert abs(sum(value * value for value in first) - 1) < 1e-3
    assert first == pytest.approx(of_tokens.data[0].embedding, abs=1e-3)
    await reading.until_idle()


# --- Anthropic's client


async def test_anthropic_client_reads_messages_whole_and_as_a_stream(service: Service) -> None:
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 6}
    asked["extra_body"] = {"temperature": 0}  # The newest client has no such argument.
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key=service.api_key) as client:
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


async def test_anthropic_client_parses_structured_output(service: Service) -> None:
    """The schema is sent in Anthropic's format; the answer is whole or streamed."""
    asked: Any = {"model": MODEL, "messages": _SAID, "max_tokens": 32, "output_format": Weather}
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key=service.api_key) as client:
        whole = await client.messages.parse(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()

    assert isinstance(whole.parsed_output, Weather)
    assert isinstance(streamed.parsed_output, Weather)
    await service.until_idle()


# --- libraries on top of OpenAI's and Anthropic's clients


async def library_output(library: str, service: Service, reading: Service) -> Any:
    """Run a library's program that calls both services, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.e2e.frameworks.on_{library}", service.url, reading.url),
        str(service.api_key),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert 0 == process.returncode, err.decode()[-2_000:]
    await service.until_idle()
    await reading.until_idle()
    return json.loads(out.splitlines()[-1])


def check_chat_answers(said: Any, tool: str, calls: int) -> None:
    """Check that a streamed answer is complete, and that a forced tool call fits its schema.

    Args:
        said: By a program of `frameworks`.
        tool: Its name.
        calls: How often it was called, whole and in pieces.
    """
    assert said["whole"]
    assert said["whole"] == said["streamed"]
    assert [tool] * calls == [name for name, _ in said["called"]]
    for shaped in (said["shaped"], *(arguments for _, arguments in said["called"])):
        assert isinstance(shaped["warm"], bool)
        assert 1 == len(shaped)


async def test_langchain_gets_equal_answers_over_every_api(
    service: Service, reading: Service
) -> None:
    said = await library_output("langchain", service, reading)

    for form in ("openai", "responses", "anthropic"):
        check_chat_answers(said[form], "Weather", 2)
        assert said["openai"]["whole"] == said[form]["whole"]
        assert all(said[form]["batch"])
    assert said["adapted"] != said["openai"]["whole"]
    assert 2 == said["choices"]
    assert {2} == set(said["alternatives"])
    assert [64, 64] == said["sizes"]


async def test_llama_index_gets_answers_and_embeddings(service: Service, reading: Service) -> None:
    said = await library_output("llama_index", service, reading)

    check_chat_answers(said, "weather", 2)
    assert said["completed"]
    assert said["completed"] == said["completed_in_pieces"]
    assert said["adapted"] != said["whole"]
    assert {2} == set(said["alternatives"])
    assert [64, 64] == said["sizes"]


async def test_litellm_gets_answers_and_rankings(service: Service, reading: Service) -> None:
    said = await library_output("litellm", service, reading)

    check_chat_answers(said, "Weather", 3)
    assert said["whole"] == said["anthropic"] == said["response"]
    assert said["adapted"] != said["whole"]
    assert 2 == said["choices"] == len(said["batch"])
    assert all(said["batch"])
    assert {2} == set(said["alternatives"])
    assert [64, 64] == said["sizes"]
    assert [1, 0] == said["ranking"]
    assert [0, 1] == sorted(said["pair_ranking"])
