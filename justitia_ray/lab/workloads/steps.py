"""Common parts of the agents: prompts of a bounded size, and inferences that follow a plan."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from justitia_ray.client import Completion, Messages, fan_out
from justitia_ray.sim.suites.load_plan import CallMade, Lengths
from justitia_ray.units import Tokens

_BYTES_PER_WORD = 6
"""Bytes of an English word with its space; also limits text without words, such as code."""
_LEAST_MATERIAL_WORDS = 8

_WORD = re.compile(r"\s*\S+")


def clip(text: str, max_words: int) -> str:
    """Return the start of a text: at most `max_words` words, and six bytes per word."""
    end, size, budget = 0, 0, max_words * _BYTES_PER_WORD
    for number, word in enumerate(_WORD.finditer(text)):
        size += len(word.group().encode())
        if number == max_words or size > budget:
            break
        end = word.end()
    if end:
        return text[:end]
    return text.encode()[:budget].decode(errors="ignore")  # The first word alone is too long.


def fits(text: str, max_words: int) -> bool:
    """Return whether `clip` leaves a text unchanged."""
    return clip(text, max_words) == text.rstrip()


def room(instruction: str, words: int) -> int:
    """Return the number of a prompt's words that remain for the input text; at least eight."""
    return max(_LEAST_MATERIAL_WORDS, words - len(instruction.split()))


def prompt(
    instruction: str, material: str, words: int, *, fill: bool, examples: Sequence[str] = ()
) -> str:
    """Return a prompt of instruction, examples and input text, with at most `words` words.

    The instruction stays whole, and so do eight words of the material.

    Args:
        instruction: What the model must do.
        material: Input of the task; cut at the end.
        words: Size of the prompt.
        fill: Repeat the examples up to that size, or the material if there are no examples. The
            repetitions replace the examples in the recorded prompts, which are longer than ours.
        examples: Examples before the material: as many of them as leave room for it.
    """
    wanted = room(instruction, words)
    if not examples:
        material = clip(repeated(material, wanted) if fill else material, wanted)
        return f"{instruction}\n\n{material}"
    material = clip(material, wanted)
    left = wanted - len(material.split())
    if fill:
        shown = clip(repeated("\n\n".join(examples), left), left)
    else:
        kept = [e for i, e in enumerate(examples) if fits("\n\n".join(examples[: i + 1]), left)]
        shown = "\n\n".join(kept)
    return "\n\n".join(part for part in (instruction, shown, material) if part)


def repeated(text: str, words: int) -> str:
    """Return a text repeated up to `words` words; a blank text is unchanged."""
    have = len(text.split())
    return "\n".join([text] * -(-words // have)) if 0 < have < words else text


_LEFT_OUT = "[earlier turns left out]"


class Transcript:
    """Prompt of an agent that grows with each answer and each observation.

    Args:
        instruction: What the model must do in every turn.
        material: Input of the task.
        examples: Whole conversations at the beginning; as many as leave room for the turns.
    """

    def __init__(self, instruction: str, material: str, examples: Sequence[str] = ()) -> None:
        self._instruction = instruction
        self._material = material
        self._examples = examples
        self._turns: list[str] = []
        self._sent = ""
        self._sent_count = 0

    def add(self, text: str) -> None:
        self._turns.append(text.strip())

    def prompt(self, words: int, *, fill: bool) -> str:
        """Return the prompt, shortened to at most `words` words.

        Args:
            words: Size of the prompt.
            fill: Make it exactly that long, as far as each prompt can begin with the one before it
                (which an engine with a prefix cache has computed). Otherwise examples, then the
                oldest turns are dropped in favour of the newest.
        """
        self._sent = self._filled_prompt(words) if fill else self._clipped_prompt(words)
        self._sent_count = len(self._turns)
        return self._sent

    def _filled_prompt(self, words: int) -> str:
        if not self._sent:
            return prompt(
                self._instruction, self._material, words, fill=True, examples=self._examples
            )
        new = _join_parts(*self._turns[self._sent_count :])
        left = words - len(self._sent.split()) - len(new.split())
        padding = clip(repeated(self._material, left), left) if left > 0 else ""
        return clip(_join_parts(self._sent, new, padding), words)

    def _clipped_prompt(self, words: int) -> str:
        turns = _join_parts(*self._turns)
        for count in range(len(self._examples), -1, -1):
            whole = _join_parts(self._instruction, *self._examples[:count], self._material, turns)
            if fits(whole, words):
                return whole
        head = _join_parts(self._instruction, self._material, _LEFT_OUT)
        kept = self._turns[-1:]
        for turn in reversed(self._turns[:-1]):
            if not fits(_join_parts(head, turn, *kept), words):
                break
            kept = [turn, *kept]
        return clip(_join_parts(head, *kept), words)


def _join_parts(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


class Chats(Protocol):
    """The methods of `justitia_ray.client.Application` that agents use."""

    async def chat(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        """Run one inference; see `Application.chat`."""


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Result of an agent."""

    answer: str
    """Answer of the agent; without meaning if the model is random."""
    calls: tuple[CallMade, ...]
    """Inferences of the agent, in the order of their answers."""

    @property
    def fan_outs(self) -> Mapping[str, int]:
        """Number of inferences of each stage."""
        return Counter(call.stage for call in self.calls)


Workload: TypeAlias = Callable[[Chats, str, Lengths], Awaitable[AgentResult]]
"""An agent: a function that works on a user's text within an open application.

The text is not blank. The agent raises ResponseError if the service answered an inference with an
error, and ConnectionError if it did not answer.
"""


class Steps:
    """Runs the inferences of an agent with planned lengths."""

    def __init__(self, app: Chats, lengths: Lengths) -> None:
        self._app = app
        self._lengths = lengths
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
        """Run an inference of a stage; return the text of its answer."""
        words, fill = self._lengths.call(stage, index).prompt_words, self._lengths.steered
        text = prompt(instruction, material, words, fill=fill, examples=examples)
        return await self._run_inference(stage, index, text, temperature)

    async def ask_each(
        self,
        stage: str,
        instruction: str,
        materials: Iterable[str],
        *,
        examples: Sequence[str] = (),
        temperature: float = 0.0,
    ) -> list[str]:
        """Run the inferences of a stage in parallel, one for each input text."""
        return await fan_out(
            self.ask(
                stage, index, instruction, material, examples=examples, temperature=temperature
            )
            for index, material in enumerate(materials)
        )

    async def turn(
        self, name: str, number: int, transcript: Transcript, *, stop: Sequence[str] = ()
    ) -> str:
        """Run one turn of an agent's loop, append the answer to the transcript, and return it.

        Args:
            name: Name of the loop; its turns are the stages `NAME_1`, `NAME_2`, …
            number: Number of the turn.
            transcript: Earlier answers and observations; the answer is appended.
            stop: Texts at which an answer ends, unless its length is planned.
        """
        stage = f"{name}_{number}"
        words, fill = self._lengths.call(stage, 0).prompt_words, self._lengths.steered
        answer = await self._run_inference(stage, 0, transcript.prompt(words, fill=fill), 0.0, stop)
        transcript.add(answer)
        return answer

    async def use_tool(self, stage: str) -> None:
        """Wait for the planned duration of the tool call before a stage."""
        await asyncio.sleep(self._lengths.stages[stage].gap_s)

    async def run_tool(self, stage: str, tool: Callable[[], Awaitable[str]]) -> str:
        """Run the tool whose output a stage of the agent needs.

        If lengths are planned, wait for the planned duration and return "": the tool request of a
        random model has no meaning, and the tool's work would take CPU from the engines.
        """
        if self._lengths.steered:
            await self.use_tool(stage)
            return ""
        return await tool()

    def result(self, answer: str) -> AgentResult:
        """Return the agent's answer with all inferences so far."""
        return AgentResult(answer, tuple(self._calls))

    async def _run_inference(
        self, stage: str, index: int, text: str, temperature: float, stop: Sequence[str] = ()
    ) -> str:
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
