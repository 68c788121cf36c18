"""What the agents share: asking within the plan, and saying what came of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from justitia_ray.client import Completion, Messages
from justitia_ray.units import Tokens
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.prompts import prompt
from justitia_ray.workloads.transcript import Transcript


class Chats(Protocol):
    """What an agent needs of `justitia_ray.client.Application`."""

    async def chat(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        """Run one inference; see `Application.chat`."""


@dataclass(frozen=True, slots=True)
class CallMade:
    """One inference that an agent had, as the service counted its tokens."""

    stage: str
    index: int
    prompt_tokens: Tokens
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class Result:
    """What an agent did."""

    answer: str
    """Its answer; nonsense from a random model."""
    fan_outs: Mapping[str, int]
    """Inferences by stage, in order."""
    calls: tuple[CallMade, ...] = field(default=(), compare=False)
    """Its inferences, in the order in which they were answered."""


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
        self._calls: list[CallMade] = []

    async def ask(
        self,
        stage: str,
        index: int,
        instruction: str,
        material: str,
        *,
        examples: Sequence[str] = (),
        temperature: float = 0.0,
    ) -> str:
        """Run inference `index` of a stage and return the text of its answer."""
        words, fill = self._lengths.call(stage, index).prompt_words, self._lengths.steered
        text = prompt(instruction, material, words, fill=fill, examples=examples)
        return await self._chat(stage, index, text, temperature)

    async def turn(
        self, name: str, number: int, transcript: Transcript, *, stop: Sequence[str] = ()
    ) -> str:
        """Run turn `number`, from 1, of a loop on all that was said; note and return what it says.

        Args:
            name: The loop; its turns are the stages `NAME_1`, `NAME_2`, …
            number: Of the turn.
            transcript: What was said; the answer is added to it.
            stop: Texts at which an answer ends, unless its length is planned.
        """
        stage = f"{name}_{number}"
        words, fill = self._lengths.call(stage, 0).prompt_words, self._lengths.steered
        answer = await self._chat(stage, 0, transcript.prompt(words, fill=fill), 0.0, stop)
        transcript.add(answer)
        return answer

    async def use_tool(self, stage: str) -> None:
        """Wait as long as the tool before a stage takes by the plan."""
        await asyncio.sleep(self._lengths.gap_s(stage))

    async def run_tool(self, stage: str, tool: Callable[[], Awaitable[str]]) -> str:
        """Run the tool before a stage and return what it says.

        Under a plan its time passes and it says nothing: what a random model asks it for is noise,
        and the work would be taken from the engines.
        """
        if self._lengths.steered:
            await self.use_tool(stage)
            return ""
        return await tool()

    def result(self, answer: str) -> Result:
        """Return what was done."""
        return Result(answer, dict(self._fan_outs), tuple(self._calls))

    async def _chat(
        self, stage: str, index: int, text: str, temperature: float, stop: Sequence[str] = ()
    ) -> str:
        self._fan_outs[stage] += 1
        options: dict[str, Any] = {"ignore_eos": True} if self._lengths.steered else {}
        if stop and not self._lengths.steered:
            options["stop"] = list(stop)
        answer = await self._app.chat(
            text,
            max_tokens=self._lengths.call(stage, index).output_tokens,
            temperature=temperature,
            **options,
        )
        self._calls.append(CallMade(stage, index, answer.prompt_tokens, answer.output_tokens))
        return answer.text
