"""Count prompt tokens before the engine does, off the event loop; its count corrects them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from justitia_ray.protocol.inference_body import CountPrompt, InferenceBody
from justitia_ray.units import Tokens

_INLINE_CHARACTERS = 2_000
"""Shorter bodies are counted on the loop: that takes less than the switch to a thread."""
_THREADS = 2


@dataclass(frozen=True, slots=True)
class PromptSize:
    """Number and tokens of a request's prompts."""

    prompts: int
    total_tokens: Tokens
    longest_tokens: Tokens


class TokenCounter:
    """Counts the prompt tokens of a model's requests."""

    def __init__(self, count: CountPrompt) -> None:
        """Prepare the threads.

        Args:
            count: Counts a prompt of a request as the model's engine will.
        """
        self._count = count
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-counter")

    async def prompt_size(self, body: InferenceBody) -> PromptSize:
        """Return the size of a request's prompts."""
        return await self._size(body, len(body.payload))

    async def text_tokens(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        body = InferenceBody({"prompt": text}, [text])
        return (await self._size(body, len(text))).total_tokens if text else 0

    async def _size(self, body: InferenceBody, characters: int) -> PromptSize:
        def size() -> PromptSize:
            counts = [self._count(prompt, body) for prompt in body.prompts]
            return PromptSize(len(counts), sum(counts), max(counts))

        if characters <= _INLINE_CHARACTERS:
            return size()
        return await asyncio.get_running_loop().run_in_executor(self._threads, size)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
