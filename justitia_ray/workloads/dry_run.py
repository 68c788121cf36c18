"""What an agent would ask if it were played: its prompts, counted without any service."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from justitia_ray.client import Completion, Messages
from justitia_ray.units import Tokens
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.steps import CallMade
from justitia_ray.workloads.table import WORKLOADS

_FILLER = "lorem ipsum dolor sit amet "
"""In place of what a random model writes, which later prompts quote."""
_CHARS_PER_TOKEN = 3
"""Of the tiny model's output, about."""


async def dry_run(
    planned: PlannedApplication, count_tokens: Callable[[str], Tokens]
) -> tuple[CallMade, ...]:
    """Return the inferences that an application makes when its plan is played.

    Args:
        planned: The application; steered.
        count_tokens: How many tokens a user's message is as a prompt, chat template included.
    """
    result = await WORKLOADS[planned.application_class](
        _Counting(count_tokens), planned.text, _without_gaps(planned.lengths)
    )
    return result.calls


async def measured_words_per_token(
    applications: Sequence[PlannedApplication], count_tokens: Callable[[str], Tokens]
) -> float:
    """Return how many words of a load's prompts a model's tokenizer makes a token of.

    A load drawn again with it has prompts of about the lengths that are planned; short ones stay
    longer, because an instruction stays whole.
    """
    words, tokens = 0, 0

    def count(prompt: str) -> Tokens:
        nonlocal words, tokens
        counted = count_tokens(prompt)
        words, tokens = words + len(prompt.split()), tokens + counted
        return counted

    for planned in applications:
        await dry_run(planned, count)
    return words / tokens


class _Counting:
    """Answers every inference with as much filler as it may generate."""

    def __init__(self, count_tokens: Callable[[str], Tokens]) -> None:
        self._count_tokens = count_tokens

    async def chat(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        assert isinstance(messages, str)
        await asyncio.sleep(0)
        size = (max_tokens or 1) * _CHARS_PER_TOKEN
        text = (_FILLER * (size // len(_FILLER) + 1))[:size]
        return Completion(
            text, (text,), self._count_tokens(messages), max_tokens or 1, "length", fields
        )


def _without_gaps(lengths: Lengths) -> Lengths:
    return replace(
        lengths,
        stages={name: replace(stage, gap_s=0.0) for name, stage in lengths.stages.items()},
        subtasks=tuple(replace(subtask, exec_s=0.0) for subtask in lengths.subtasks),
    )
