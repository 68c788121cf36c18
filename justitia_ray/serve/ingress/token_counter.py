"""Count prompt tokens off the event loop; the engine's own count corrects the number later."""

from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

from justitia_ray.protocol.inference_body import CountPrompt, InferenceBody, PromptSize
from justitia_ray.serve.ingress.fair_threads import FairThreads
from justitia_ray.serve.ingress.prefix_names import PrefixNames
from justitia_ray.units import Tokens

T = TypeVar("T")

_INLINE_CHARACTERS = 2_000
"""Maximum characters of bodies that are counted on the event loop; a thread would take longer."""


class TokenCounter:
    """Counts the prompt tokens of one model's requests.

    Args:
        count: Counts a prompt of a request as the model's engine will.
        threads: Threads that count long prompts for all models of the process; None: threads of its
            own.
        names: Names the prefixes of prompts; None: prefixes get no names.
    """

    def __init__(
        self,
        count: CountPrompt,
        threads: FairThreads | None = None,
        names: PrefixNames | None = None,
    ) -> None:
        self.names = names
        self._count = count
        self._threads = threads or FairThreads()

    def note_blocks(self, block_size: Tokens) -> None:
        """Store the block size of the engines' prefix caches in tokens; 0: without prefix cache."""
        if self.names is not None:
            self.names.block_size = block_size

    async def prompt_size(
        self, body: InferenceBody, tenant: str, max_model_len: Tokens | None
    ) -> PromptSize:
        """Return the token counts of a request's prompts.

        Counting stops at the first prompt that exceeds the context length: the request will be
        refused, and a count above the context length suffices. A prompt that the caller truncates
        is counted up to the truncated length.

        Args:
            body: Body of the request.
            tenant: Tenant of the request, in whose turn it is counted.
            max_model_len: Context length of the model (tokens); None: unknown.
        """
        return await self._run_steps(
            self._prompt_size_steps(body, tenant, max_model_len), tenant, len(body.payload)
        )

    async def text_tokens(self, text: str, tenant: str) -> Tokens:
        """Return the number of tokens of a text, counted when it is the tenant's turn."""
        if not text:
            return 0
        counting = self._count(text, InferenceBody({"prompt": text}, [text]), None)
        return (await self._run_steps(counting, tenant, len(text))).tokens

    async def _run_steps(self, steps: Generator[None, None, T], tenant: str, characters: int) -> T:
        if characters > _INLINE_CHARACTERS:
            return await self._threads.run(tenant, steps)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    def _prompt_size_steps(
        self, body: InferenceBody, tenant: str, max_model_len: Tokens | None
    ) -> Generator[None, None, PromptSize]:
        keeps, names = body.keeps, self.names
        prefixes, copies = b"", 1
        if names is not None and names.shares(body):
            copies = body.n
            body = replace(body, wants_ids=len(body.prompts) == 1)
        most = max_model_len
        if keeps is not None:
            most = keeps if most is None else min(keeps, most)
        counts: list[Tokens] = []
        is_exact = True
        for prompt in body.prompts:
            count = yield from self._count(prompt, body, most)
            counts.append(count.tokens if keeps is None else min(count.tokens, keeps))
            is_exact = is_exact and count.is_exact
            if max_model_len is not None and counts[-1] > max_model_len:
                break
            yield
            if names is not None and body.wants_ids:
                prefixes = names.names(count, body, tenant)
        return PromptSize(len(body.prompts), sum(counts), max(counts), is_exact, prefixes, copies)

    def close(self) -> None:
        self._threads.close()
