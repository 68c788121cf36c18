"""Count prompt tokens as the model will, off the event loop; the replica's count corrects it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.protocol.openai_body import CHAT, InferenceBody
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

    def __init__(self, count_each: Callable[[InferenceBody], list[Tokens]]) -> None:
        self._count_each = count_each
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-counter")

    async def size(self, body: InferenceBody) -> PromptSize:
        """Return the size of a request's prompts.

        Raises:
            RequestError: If a prompt or message has a form that cannot be read.
        """
        return await self._off_loop(self._size, body, len(str(body.fields)))

    async def text_tokens(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        body = InferenceBody("/v1/completions", {"prompt": text}, False, 1, None, False)
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
        counts = self._count_each(body)
        return PromptSize(len(counts), sum(counts), max(counts))


def prompt_text(body: InferenceBody) -> str:
    """Return what a request says, as far as it is text: the input of an application of one."""
    if body.path == CHAT:
        return "\n".join(_text_of(message.get("content")) for message in body.fields["messages"])
    return "\n".join(prompt for prompt in _prompts(body.fields) if isinstance(prompt, str))


def load_token_counter(config: AppConfig) -> TokenCounter:
    """Load what counts for the configured model. Blocks for some seconds with a real tokenizer."""
    if config.engine.kind == "fake":
        return TokenCounter(_count_fake)
    from transformers import AutoTokenizer

    trust = bool(config.engine.vllm_args.get("trust_remote_code", False))
    tokenizer_path = str(config.engine.vllm_args.get("tokenizer", model_directory(config)))
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, trust_remote_code=trust)
    return TokenCounter(lambda body: _count_real(tokenizer, body))


def _count_fake(body: InferenceBody) -> list[Tokens]:
    if body.path == CHAT:
        return [count_prompt_tokens(body.path, body.fields)]
    return [count_prompt_tokens(body.path, {"prompt": prompt}) for prompt in _prompts(body.fields)]


def _count_real(tokenizer: Any, body: InferenceBody) -> list[Tokens]:
    if body.path != CHAT:
        return [
            len(prompt) if isinstance(prompt, list) else len(tokenizer(prompt).input_ids)
            for prompt in _prompts(body.fields)
        ]
    messages = [
        {**message, "content": _text_of(message.get("content"))}
        for message in body.fields["messages"]
    ]
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, tools=body.fields.get("tools")
        )
    except Exception as error:  # templates raise whatever their author wrote
        raise RequestError(f"the chat template refuses the messages: {error}", "messages") from None
    return [len(tokenizer(text, add_special_tokens=False).input_ids)]


def _prompts(fields: dict[str, Any]) -> list[str | list[int]]:
    """Return the prompts of a completion: strings or lists of token ids."""
    prompt = fields["prompt"]
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(part, int) and not isinstance(part, bool) for part in prompt):
        return [prompt]
    for part in prompt:
        is_ids = isinstance(part, list) and part and all(isinstance(token, int) for token in part)
        if not (isinstance(part, str) or is_ids):
            raise RequestError("prompt must hold strings, or lists of token ids, only", "prompt")
    return list(prompt)


def _text_of(content: Any) -> str:
    """Return the text of a message; images and audio are left to the replica's count."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RequestError("content must be a string or a list of parts", "messages")
    return "\n".join(str(part.get("text", "")) for part in content)
