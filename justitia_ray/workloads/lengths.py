"""How long the inferences of one application are, decided before it runs.

A model with random weights never says when an answer is over, nor how many claims it found. Steered
applications take those from a plan, so that load does not depend on nonsense text and is the same
under every policy. With a real model the plan only sets limits.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.loops import LOOPS
from justitia_ray.workloads.made_up import made_up_run
from justitia_ray.workloads.recorded import PLAYED_CLASSES, RecordedRun, RecordedStage, load_runs
from justitia_ray.workloads.stages import STAGES
from justitia_ray.workloads.subtasks import CHOOSE_MODEL, LLM_TASK, PLAN

WORDS_PER_TOKEN = 0.75
"""English under the usual tokenizers. A rule and not a count: an agent has no tokenizer."""

LEAST_MAX_PROMPT_WORDS = 100
"""Room for an agent's instruction and a few lines of what it is about."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One inference: how long its prompt is, and its output."""

    prompt_words: int
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Inferences that run side by side, after `gap_s` seconds of tool time."""

    calls: tuple[PlannedCall, ...]
    gap_s: Seconds


@dataclass(frozen=True, slots=True)
class PlannedSubtask:
    """One subtask of PE. The n-th of a kind that has inferences has the n-th of that stage."""

    kind: str
    """One of `subtasks`."""
    needs: tuple[int, ...]
    """Which subtasks must be done first, by index; all are before it."""
    exec_s: Seconds
    """How long the model that is no LLM takes, after its inference if it has one."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of one application."""

    steered: bool
    """True: fan-outs and lengths are those planned. False: the answers decide, within limits."""
    stages: Mapping[str, PlannedStage]
    """By name, in order; repeated ones as `collapse_1`, `collapse_2`, …"""
    limits: Mapping[str, PlannedCall]
    """What an inference of a stage may have when not steered; repeated ones by their plain name."""
    subtasks: tuple[PlannedSubtask, ...] = ()
    """Of PE, in order; their inferences are the stages `choose_model` and `llm_task`."""

    def fan_out(self, stage: str) -> int:
        """Return how many inferences were planned for a stage."""
        return len(self.stages[stage].calls)

    def call(self, stage: str, index: int) -> PlannedCall:
        """Return the length, or when not steered the limits, of one inference."""
        if self.steered:
            return self.stages[stage].calls[index]
        if stage in self.limits:
            return self.limits[stage]
        return self.limits[stage.rstrip("0123456789").rstrip("_")]

    def rounds(self, name: str) -> int:
        """Return how many rounds of a repeated stage were planned."""
        return sum(stage.rpartition("_")[0] == name for stage in self.stages)

    def gap_s(self, stage: str) -> Seconds:
        """Return the tool time before a stage."""
        return self.stages[stage].gap_s


class LengthPlan:
    """Draws the lengths of applications; the same seed draws the same.

    Args:
        seed: Of all draws. Each application's draw depends on the seed, its class and its number
            only.
        length_scale: Factor on all lengths, of prompts and of outputs; fan-outs stay.
        gap_scale: Factor on tool time; 0 leaves it out.
        steered: Whether agents follow the plan (a random model) or its limits (a real one).
        max_prompt_words: A prompt has no more words than that, and no more than six times as many
            bytes. A tokenizer of 2,048 entries makes 2 to 3.4 tokens of an English word, so that
            400 words are at most some 1,400 of a 2,048-token context.
        max_output_tokens: No output is longer; None: no bound but the measured maximum.
        words_per_token: Of the prompts, under the tokenizer of the model.
        samples: Of a vote of SC; None: as many as it was measured with, 5.
        most_fan_out: Of what a stage runs side by side, the first so many are played; None: all.
            Subtasks of a plan are left as they are.
        data_dir: Where `recorded/CLASS.jsonl` lies; a class without that file, or without a
            directory, is made up from published statistics (`made_up`).

    Raises:
        ConfigError: If an argument is out of range, or a recorded file is wrong.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        length_scale: float = 1.0,
        gap_scale: float = 1.0,
        steered: bool = True,
        max_prompt_words: int = 400,
        max_output_tokens: Tokens | None = None,
        words_per_token: float = WORDS_PER_TOKEN,
        samples: int | None = None,
        most_fan_out: int | None = None,
        data_dir: Path | None = None,
    ) -> None:
        if not 0 < length_scale < math.inf:
            raise ConfigError(f"length_scale must be a number > 0, got {length_scale}")
        if not 0 <= gap_scale < math.inf:
            raise ConfigError(f"gap_scale must be a number >= 0, got {gap_scale}")
        if max_prompt_words < LEAST_MAX_PROMPT_WORDS:
            raise ConfigError(
                f"max_prompt_words must be >= {LEAST_MAX_PROMPT_WORDS}, got {max_prompt_words}"
            )
        if max_output_tokens is not None and max_output_tokens < 1:
            raise ConfigError(f"max_output_tokens must be >= 1, got {max_output_tokens}")
        if not 0 < words_per_token < math.inf:
            raise ConfigError(f"words_per_token must be a number > 0, got {words_per_token}")
        if samples is not None and samples < 1:
            raise ConfigError(f"samples must be >= 1, got {samples}")
        if most_fan_out is not None and most_fan_out < 1:
            raise ConfigError(f"most_fan_out must be >= 1, got {most_fan_out}")
        self._seed = seed
        self._length_scale = length_scale
        self._gap_scale = gap_scale
        self._steered = steered
        self._max_prompt_words = max_prompt_words
        self._max_output_tokens = max_output_tokens
        self._words_per_token = words_per_token
        self._samples = samples
        self._most_fan_out = most_fan_out
        self._runs: dict[str, list[RecordedRun]] = {
            name: [] if data_dir is None else load_runs(data_dir, name, played=True)
            for name in PLAYED_CLASSES
        }

    def draw(self, application_class: str, item_id: str, number: int) -> Lengths:
        """Return the lengths of an application: of a recorded run on its input if there is one.

        Args:
            application_class: One of `table.WORKLOADS`.
            item_id: Its input.
            number: Its number in the load; two applications on one input differ by it.
        """
        rng = random.Random(f"{self._seed}/lengths/{application_class}/{number}")
        runs = self._runs[application_class]
        matching = [run for run in runs if run.item_id == item_id] or runs
        run = (
            rng.choice(matching)
            if matching
            else made_up_run(application_class, rng, samples=self._samples)
        )
        return self.of_run(application_class, run)

    def of_run(self, application_class: str, run: RecordedRun) -> Lengths:
        """Return the lengths of an application that goes as a run went."""
        subtasks = tuple(
            PlannedSubtask(subtask.kind, subtask.needs, subtask.exec_s * self._gap_scale)
            for stage in run.stages
            for subtask in stage.subtasks
        )
        return Lengths(
            steered=self._steered,
            stages={
                stage.name: PlannedStage(
                    tuple(
                        self._call(*call)
                        for call in stage.calls[: None if recorded.subtasks else self._most_fan_out]
                    ),
                    stage.gap_s * self._gap_scale,
                )
                for recorded in run.stages
                for stage in _flat(recorded)
            },
            limits={name: self._call(*most) for name, most in _most(application_class).items()},
            subtasks=subtasks,
        )

    def _call(self, prompt_tokens: float, output_tokens: float) -> PlannedCall:
        words = round(prompt_tokens * self._length_scale * self._words_per_token)
        output = max(1, round(output_tokens * self._length_scale))
        return PlannedCall(
            prompt_words=min(words, self._max_prompt_words),
            output_tokens=output
            if self._max_output_tokens is None
            else min(output, self._max_output_tokens),
        )


def _flat(stage: RecordedStage) -> list[RecordedStage]:
    """Return a stage, or in place of subtasks a stage for each kind that has inferences."""
    if not stage.subtasks:
        return [stage]
    calls = {
        kind: tuple(call for task in stage.subtasks if task.kind == kind for call in task.calls)
        for kind in (CHOOSE_MODEL, LLM_TASK)
    }
    return [RecordedStage(kind, found, 0.0) for kind, found in calls.items() if found]


def _most(application_class: str) -> dict[str, tuple[float, float]]:
    """Return the longest prompt and output of each stage of a class."""
    if application_class in LOOPS:
        loop = LOOPS[application_class]
        output = max(loop.first_output_tokens.max, loop.later_output_tokens.max)
        return {loop.name: (loop.max_prompt_tokens, output)}
    stages = STAGES.get(
        application_class, (PLAN.planning, PLAN.choose_model, PLAN.llm_task, PLAN.response)
    )
    return {stage.name: (stage.prompt_tokens.max, stage.output_tokens.max) for stage in stages}
