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
from justitia_ray.workloads.made_up import made_up_stages
from justitia_ray.workloads.recorded import RecordedRun, load_runs
from justitia_ray.workloads.stages import STAGES

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
class Lengths:
    """The lengths of one application."""

    steered: bool
    """True: fan-outs and lengths are those planned. False: the answers decide, within limits."""
    stages: Mapping[str, PlannedStage]
    """By name, in order; repeated ones as `collapse_1`, `collapse_2`, …"""
    limits: Mapping[str, PlannedCall]
    """What an inference of a stage may have when not steered; repeated ones by their plain name."""

    def fan_out(self, stage: str) -> int:
        """Return how many inferences were planned for a stage."""
        return len(self.stages[stage].calls)

    def call(self, stage: str, index: int) -> PlannedCall:
        """Return the length, or when not steered the limits, of one inference."""
        if self.steered:
            return self.stages[stage].calls[index]
        return self.limits[stage.rstrip("0123456789").rstrip("_")]

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
        data_dir: Where `recorded/CLASS.jsonl` lies; a class without that file, or without a
            directory, is drawn from `stages.STAGES`.

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
        self._seed = seed
        self._length_scale = length_scale
        self._gap_scale = gap_scale
        self._steered = steered
        self._max_prompt_words = max_prompt_words
        self._max_output_tokens = max_output_tokens
        self._runs: dict[str, list[RecordedRun]] = {
            name: [] if data_dir is None else load_runs(data_dir, name) for name in STAGES
        }

    def draw(self, application_class: str, item_id: str, number: int) -> Lengths:
        """Return the lengths of an application: of a recorded run on its input if there is one.

        Args:
            application_class: One of `stages.STAGES`.
            item_id: Its input.
            number: Its number in the load; two applications on one input differ by it.
        """
        rng = random.Random(f"{self._seed}/lengths/{application_class}/{number}")
        runs = self._runs[application_class]
        matching = [run for run in runs if run.item_id == item_id] or runs
        stages = (
            rng.choice(matching).stages
            if matching
            else made_up_stages(STAGES[application_class], rng)
        )
        return Lengths(
            steered=self._steered,
            stages={
                stage.name: PlannedStage(
                    tuple(self._call(*call) for call in stage.calls), stage.gap_s * self._gap_scale
                )
                for stage in stages
            },
            limits={
                stage.name: self._call(stage.prompt_tokens.max, stage.output_tokens.max)
                for stage in STAGES[application_class]
            },
        )

    def _call(self, prompt_tokens: float, output_tokens: float) -> PlannedCall:
        words = round(prompt_tokens * self._length_scale * WORDS_PER_TOKEN)
        output = max(1, round(output_tokens * self._length_scale))
        return PlannedCall(
            prompt_words=min(words, self._max_prompt_words),
            output_tokens=output
            if self._max_output_tokens is None
            else min(output, self._max_output_tokens),
        )
