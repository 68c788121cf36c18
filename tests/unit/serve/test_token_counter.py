"""Prompt tokens are counted as the engine will, and off the event loop if they are many."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import InferenceBody, Prompt
from justitia_ray.protocol.messages_body import MESSAGES
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS
from justitia_ray.protocol.pooling_body import EMBEDDINGS, RANKINGS
from justitia_ray.protocol.responses_body import RESPONSES
from justitia_ray.serve.token_counter import PromptSize, TokenCounter, load_token_counter


@pytest.fixture
def counter() -> Iterator[TokenCounter]:
    """The counter of the fake engine: a token for each word, four for each chat message."""
    config = {"model": {"name": "m", "path": "none"}, "engine": {"kind": "fake"}}
    counter = load_token_counter(parse_app_config(config))
    yield counter
    counter.close()


def body(path: str, **fields: Any) -> InferenceBody:
    """Return a body that has been parsed."""
    return InferenceBody(path, fields, False, 1, None, False)


@pytest.mark.parametrize(
    ("parsed", "expected"),
    [
        (body(COMPLETIONS, prompt="a b c"), PromptSize(1, 3, 3)),
        (body(COMPLETIONS, prompt=["a", "b c"]), PromptSize(2, 3, 2)),
        (body(COMPLETIONS, prompt=[1, 2, 3, 4]), PromptSize(1, 4, 4)),
        (body(COMPLETIONS, prompt=[[1, 2], [3]]), PromptSize(2, 3, 2)),
        (body(CHAT, messages=[{"role": "user", "content": "a b"}]), PromptSize(1, 6, 6)),
        (body(RESPONSES, input="a b"), PromptSize(1, 6, 6)),
        (body(MESSAGES, messages=[{"role": "user", "content": "a b"}]), PromptSize(1, 6, 6)),
        (body(EMBEDDINGS, input=["a", "b c"]), PromptSize(2, 3, 2)),
        (body(RANKINGS[0], query="a", documents=["b", "c d"]), PromptSize(2, 5, 3)),
    ],
)
async def test_size_counts_every_prompt_of_a_request(
    counter: TokenCounter, parsed: InferenceBody, expected: PromptSize
) -> None:
    """A batch is one lease: its cost is that of all its prompts."""
    assert expected == await counter.size(parsed)


@pytest.mark.parametrize("prompt", [["a", 1], [[1], []], [{"text": "a"}]])
async def test_prompt_of_another_form_is_the_callers_mistake(
    counter: TokenCounter, prompt: Any
) -> None:
    """It must not become an error of ours."""
    with pytest.raises(RequestError) as refused:
        await counter.size(body(COMPLETIONS, prompt=prompt))

    assert "prompt" == refused.value.param


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
    await counter.size(body(COMPLETIONS, prompt="short"))
    await counter.size(body(COMPLETIONS, prompt="long " * 1_000))
    counter.close()

    assert [True, False] == [thread is threading.main_thread() for thread in threads]
