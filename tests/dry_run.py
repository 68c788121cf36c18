"""Dry runs of agents: token counts of their prompts, without a service."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from justitia_ray.client import Completion, Messages
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.sim.suites.load_plan import CallMade, Lengths, PlannedApplication
from justitia_ray.units import Tokens

_FILLER = "lorem ipsum dolor sit amet "
"""Text that replaces a random model's output in later prompts."""
_CHARS_PER_TOKEN = 3
"""Average number of characters per output token of the tiny model."""


async def dry_run(
    planned: PlannedApplication, count_tokens: Callable[[str], Tokens]
) -> tuple[CallMade, ...]:
    """Run an application's plan with a fake client, and return the inferences that it makes.

    Args:
        planned: The application; steered.
        count_tokens: How many tokens a user's message is as a prompt, chat template included.
    """
    result = await WORKLOADS[planned.application_class](
        _CountingClient(count_tokens), planned.text, _without_gaps(planned.lengths)
    )
    return result.calls


class _CountingClient:
    """Fake client that answers every inference with the longest allowed answer."""

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
    stages = (
        replace(stage, gap_s=0.0, subtasks=tuple(replace(s, exec_s=0.0) for s in stage.subtasks))
        for stage in lengths.run.stages
    )
    return replace(lengths, run=replace(lengths.run, stages=tuple(stages)))
