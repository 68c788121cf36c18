"""Count prompt tokens as the model will, off the event loop; the replica's count corrects it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.protocol.endpoints import prompts_of
from justitia_ray.protocol.inference_body import Conversation, InferenceBody, Pair, Prompt
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS
from justitia_ray.serve.engines import model_directory
from justitia_ray.serve.fake_openai import count_prompt_tokens
from justitia_ray.units import Tokens

_INLINE_CHARACTERS = 2_000
"""Shorter bodies are counted on the loop: it takes less than the switch to a thread."""
_THREADS = 2


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The prompts of one request."""

    prompts: int
    total_tokens: Tokens
    longest_tokens: Tokens


class TokenCounter:
    """Counts with the model's own tokenizer and chat template, or by the fake engine's rule."""

    def __init__(self, count: Callable[[Prompt, InferenceBody], Tokens]) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-counter")

    async def size(self, body: InferenceBody) -> PromptSize:
        """Return the size of a request's prompts.

        Raises:
            RequestError: If a prompt or message has a form that cannot be read.
        """
        return await self._off_loop(self._size, body, len(str(body.fields)))

    async def text_tokens(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        body = InferenceBody(COMPLETIONS, {"prompt": text}, False, 1, None, False)
        return (await self._off_loop(self._size, body, len(text))).total_tokens if text else 0

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _off_loop(
        self, size: Callable[[InferenceBody], PromptSize], body: InferenceBody, characters: int
    ) -> PromptSize:
        if characters <= _INLINE_CHARACTERS:
            return size(body)
        return await asyncio.get_running_loop().run_in_executor(self._threads, size, body)

    def _size(self, body: InferenceBody) -> PromptSize:
        counts = [self._count(prompt, body) for prompt in prompts_of(body)]
        return PromptSize(len(counts), sum(counts), max(counts))


def load_token_counter(config: AppConfig) -> TokenCounter:
    """Load what counts for the configured model. Blocks for some seconds with a real tokenizer."""
    if config.engine.kind == "fake":
        return TokenCounter(_count_fake)
    from transformers import AutoTokenizer

    trust = bool(config.engine.vllm_args.get("trust_remote_code", False))
    tokenizer_path = str(config.engine.vllm_args.get("tokenizer", model_directory(config)))
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, trust_remote_code=trust)
    return TokenCounter(lambda prompt, body: _count_real(tokenizer, prompt, body))


def _count_fake(prompt: Prompt, body: InferenceBody) -> Tokens:
    if isinstance(prompt, Conversation):
        return count_prompt_tokens(CHAT, {"messages": list(prompt.messages)})
    text = prompt.text if isinstance(prompt, Pair) else prompt
    return count_prompt_tokens(COMPLETIONS, {"prompt": text})


def _count_real(tokenizer: Any, prompt: Prompt, body: InferenceBody) -> Tokens:
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(tokenizer(prompt).input_ids)
    if isinstance(prompt, Pair):
        return len(tokenizer(prompt.first, prompt.second).input_ids)
    try:
        text = tokenizer.apply_chat_template(
            list(prompt.messages), tokenize=False, add_generation_prompt=True, tools=prompt.tools
        )
    except Exception as error:  # templates raise whatever their author wrote
        if body.estimated:  # the conversation is not yet in the form that the engine gives it
            return len(tokenizer(prompt.text).input_ids)
        raise RequestError(f"the chat template refuses the messages: {error}", "messages") from None
    return len(tokenizer(text, add_special_tokens=False).input_ids)
