"""Prompt tokens are counted with the engine's rule, and long prompts off the event loop."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import (
    CountPrompt,
    InferenceBody,
    Prompt,
    PromptCount,
    PromptCounting,
    PromptSize,
)
from justitia_ray.protocol.pooling_bodies import EMBEDDINGS, RANKINGS
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress.fair_threads import FairThreads
from justitia_ray.serve.ingress.token_counter import TokenCounter
from tests.eventually import eventually


@pytest.fixture
def counter() -> Iterator[TokenCounter]:
    """Token counter of the fake engine: one token per word, and four per chat message."""
    config = {"model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}}
    counter = TokenCounter(load_prompt_counter(AppConfig.parse(config)))
    yield counter
    counter.close()


def body_of(path: str, **fields: Any) -> InferenceBody:
    return parse_body(path, json.dumps(fields).encode(), ("m",), None)


@pytest.mark.parametrize(
    ("parsed", "expected"),
    [
        (body_of(COMPLETIONS, prompt="a b c"), PromptSize(1, 3, 3)),
        (body_of(COMPLETIONS, prompt=["a", "b c"]), PromptSize(2, 3, 2)),
        (body_of(COMPLETIONS, prompt=[1, 2, 3, 4]), PromptSize(1, 4, 4)),
        (body_of(COMPLETIONS, prompt=[[1, 2], [3]]), PromptSize(2, 3, 2)),
        (body_of(CHAT, messages=[{"role": "user", "content": "a b"}]), PromptSize(1, 6, 6)),
        (body_of(RESPONSES, input="a b"), PromptSize(1, 6, 6)),
        (
            body_of(MESSAGES, messages=[{"role": "user", "content": "a b"}], max_tokens=1),
            PromptSize(1, 6, 6),
        ),
        (body_of(EMBEDDINGS, input=["a", "b c"]), PromptSize(2, 3, 2)),
        (body_of(RANKINGS[0], query="a", documents=["b", "c d"]), PromptSize(2, 5, 3)),
    ],
)
async def test_prompt_size_counts_every_prompt_of_a_request(
    counter: TokenCounter, parsed: InferenceBody, expected: PromptSize
) -> None:
    """A batch is one lease, so its cost covers all prompts."""
    assert expected == await counter.prompt_size(parsed, "t", None)


async def test_empty_text_has_no_tokens(counter: TokenCounter) -> None:
    assert 0 == await counter.text_tokens("", "t")
    assert 2 == await counter.text_tokens("two words", "t")


async def test_long_prompt_is_counted_in_another_thread() -> None:
    """Tokenizing a long text takes milliseconds, in which other streams would wait."""
    threads = []

    def note_thread(prompt: Prompt, parsed: InferenceBody, most: int | None) -> PromptCounting:
        yield from ()
        threads.append(threading.current_thread())
        return PromptCount(1)

    counter = TokenCounter(note_thread)
    await counter.prompt_size(body_of(COMPLETIONS, prompt="short"), "t", None)
    await counter.prompt_size(body_of(COMPLETIONS, prompt="long " * 1_000), "t", None)
    counter.close()

    assert [True, False] == [thread is threading.main_thread() for thread in threads]


def _letter_counter(counted: list[str]) -> CountPrompt:
    """Return a fake token counter that counts each letter as a token and records it."""

    def count_letters(prompt: Prompt, parsed: InferenceBody, most: int | None) -> PromptCounting:
        assert isinstance(prompt, str)
        for tokens, letter in enumerate(prompt.strip(), start=1):
            counted.append(letter)
            if most is not None and tokens > most:
                return PromptCount(tokens)
            yield
        return PromptCount(len(prompt.strip()), is_exact=prompt != "bb")

    return count_letters


@pytest.mark.parametrize(
    ("fields", "expected", "counted"),
    [
        ({"prompt": ["aaa", "bbbbbbbb", "ccc"]}, PromptSize(3, 8, 5), "aaabbbbb"),
        ({"prompt": ["aaa", "bb"]}, PromptSize(2, 5, 3, is_exact=False), "aaabb"),
        ({"prompt": "aaaaaaaa", "truncate_prompt_tokens": 2}, PromptSize(1, 2, 2), "aaa"),
        ({"prompt": "aaaaaaaa", "truncate_prompt_tokens": None}, PromptSize(1, 5, 5), "aaaaa"),
        ({"prompt": "aaaaaaaa", "truncate_prompt_tokens": -1}, PromptSize(1, 5, 5), "aaaaa"),
    ],
)
async def test_token_counting_stops_at_the_maximum_prompt_length(
    fields: dict[str, Any], expected: PromptSize, counted: str
) -> None:
    """A caller may send a thousand times the length of the context."""
    letters: list[str] = []
    counter = TokenCounter(_letter_counter(letters))
    size = await counter.prompt_size(body_of(COMPLETIONS, **fields), "t", 4)

    assert (expected, counted) == (size, "".join(letters))


async def test_tenants_take_turns_in_counting_tokens() -> None:
    """Another tenant waits for one step per thread, not for all ten long prompts."""
    letters: list[str] = []
    counter = TokenCounter(_letter_counter(letters), FairThreads(1, turn_s=0.0))

    async def count_prompt(tenant: str, letter: str, steps: int) -> None:
        text = letter * steps + " " * 3_000
        await counter.prompt_size(body_of(COMPLETIONS, prompt=text), tenant, None)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(count_prompt("a", "a", 50))
        tasks.create_task(count_prompt("b/c", "b", 5))
    counter.close()

    assert 505 == len(letters)
    assert "".join(letters).rindex("b") < 60


async def test_token_counting_stops_when_the_caller_disconnects() -> None:
    letters: list[str] = []
    counter = TokenCounter(_letter_counter(letters), FairThreads(1, turn_s=0.0))
    asked = body_of(COMPLETIONS, prompt="a" * 100_000)
    left = asyncio.create_task(counter.prompt_size(asked, "a", None))
    await eventually(lambda: letters, "the count has begun")
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    stays = await counter.prompt_size(body_of(COMPLETIONS, prompt="b" * 3_000), "a", None)
    counter.close()

    assert 3_000 == stays.total_tokens
    assert letters.count("a") < 100_000


async def test_failed_token_count_is_an_error_of_its_call_only() -> None:
    """The chat template refuses the messages; the counting threads continue."""

    def refuse_prompt(prompt: Prompt, parsed: InferenceBody, most: int | None) -> PromptCounting:
        yield
        if prompt == "b" * 3_000:
            return PromptCount(1)
        raise RequestError("the template refuses it")

    counter = TokenCounter(refuse_prompt, FairThreads(1))
    with pytest.raises(RequestError, match="the template refuses it"):
        await counter.prompt_size(body_of(COMPLETIONS, prompt="a" * 3_000), "a", None)
    assert (
        1 == (await counter.prompt_size(body_of(COMPLETIONS, prompt="b" * 3_000), "a", 9)).prompts
    )
    counter.close()
