"""What the three agents share: asking within the plan, and saying what came of it."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from justitia_ray.client import Completion, Messages
from justitia_ray.units import Tokens
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.prompts import prompt


class Chats(Protocol):
    """What an agent needs of `justitia_ray.client.Application`."""

    async def chat(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        """Run one inference; see `Application.chat`."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an agent did."""

    answer: str
    """Its answer; nonsense from a random model."""
    fan_outs: Mapping[str, int]
    """Inferences by stage, in order."""


class Workload(Protocol):
    """An agent: one run of an application."""

    async def __call__(self, app: Chats, text: str, lengths: Lengths) -> Result:
        """Work on a user's text, which is not blank, within an open application.

        Raises:
            ResponseError: If the service answered an inference with an error.
            ConnectionError: If it did not answer.
        """


class Steps:
    """The inferences of one run."""

    def __init__(self, app: Chats, lengths: Lengths) -> None:
        self._app = app
        self._lengths = lengths
        self._fan_outs: Counter[str] = Counter()

    async def ask(
        self, stage: str, index: int, instruction: str, material: str, *, temperature: float = 0.0
    ) -> str:
        """Run inference `index` of a stage and return the text of its answer."""
        planned, steered = self._lengths.call(stage, index), self._lengths.steered
        self._fan_outs[stage] += 1
        answer = await self._app.chat(
            prompt(instruction, material, planned.prompt_words, fill=steered),
            max_tokens=planned.output_tokens,
            temperature=temperature,
            **({"ignore_eos": True} if steered else {}),
        )
        return answer.text

    async def use_tool(self, stage: str) -> None:
        """Wait as long as the tool before a stage takes."""
        await asyncio.sleep(self._lengths.gap_s(stage))

    def result(self, answer: str) -> Result:
        """Return what was done."""
        return Result(answer, dict(self._fan_outs))
