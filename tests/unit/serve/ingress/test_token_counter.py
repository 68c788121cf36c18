"""Prompt tokens are counted as the engine will, and off the event loop if they are many."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import InferenceBody, Prompt
from justitia_ray.protocol.pooling_bodies import EMBEDDINGS, RANKINGS
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress.token_counter import PromptSize, TokenCounter


@pytest.fixture
def counter() -> Iterator[TokenCounter]:
    """The counter of the fake engine: a token for each word, four for each chat message."""
    config = {"model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}}
    counter = TokenCounter(load_prompt_counter(AppConfig.parse(config)))
    yield counter
    counter.close()


def body(path: str, **fields: Any) -> InferenceBody:
    """Return a body that has been parsed."""
    return parse_body(path, json.dumps(fields).encode(), ("m",), None)


@pytest.mark.parametrize(
    ("parsed", "expected"),
    [
        (body(COMPLETIONS, prompt="a b c"), PromptSize(1, 3, 3)),
        (body(COMPLETIONS, prompt=["a", "b c"]), PromptSize(2, 3, 2)),
        (body(COMPLETIONS, prompt=[1, 2, 3, 4]), PromptSize(1, 4, 4)),
        (body(COMPLETIONS, prompt=[[1, 2], [3]]), PromptSize(2, 3, 2)),
        (body(CHAT, messages=[{"role": "user", "content": "a b"}]), PromptSize(1, 6, 6)),
        (body(RESPONSES, input="a b"), PromptSize(1, 6, 6)),
        (
            body(MESSAGES, messages=[{"role": "user", "content": "a b"}], max_tokens=1),
            PromptSize(1, 6, 6),
        ),
        (body(EMBEDDINGS, input=["a", "b c"]), PromptSize(2, 3, 2)),
        (body(RANKINGS[0], query="a", documents=["b", "c d"]), PromptSize(2, 5, 3)),
    ],
)
async def test_size_counts_every_prompt_of_a_request(
    counter: TokenCounter, parsed: InferenceBody, expected: PromptSize
) -> None:
    """A batch is one lease: its cost is that of all its prompts."""
    assert expected == await counter.prompt_size(parsed)


async def test_empty_text_has_no_tokens(counter: TokenCounter) -> None:
    """An application may be opened without an input."""
    assert 0 == await counter.text_tokens("")
    assert 2 == await counter.text_tokens("two words")


async def test_long_prompt_is_counted_in_another_thread() -> None:
    """A tokenizer takes milliseconds for a long text; nobody else's stream may wait for that."""
    threads = []

    def count(prompt: Prompt, parsed: InferenceBody) -> int:
        threads.append(threading.current_thread())
        return 1

    counter = TokenCounter(count)
    await counter.prompt_size(body(COMPLETIONS, prompt="short"))
    await counter.prompt_size(body(COMPLETIONS, prompt="long " * 1_000))
    counter.close()

    assert [True, False] == [thread is threading.main_thread() for thread in threads]
