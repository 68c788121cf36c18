"""Plans of live loads: which applications arrive when, and how long their inferences are.

With random weights a model cannot decide when an answer ends, or how many claims it found.
*Steered* applications take both from a plan, so that the load does not depend on nonsense text, and
is equal under every policy. With a real model the plan only sets limits.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, cycle
from pathlib import Path
from typing import NamedTuple

from justitia_ray.sim.suites.application_runs import deal_classes, made_up_run
from justitia_ray.sim.suites.inputs import Input, load_inputs
from justitia_ray.sim.suites.measured_classes import CHOOSE_MODEL, LLM_TASK, LOOPS, PLAN, STAGES
from justitia_ray.sim.suites.recorded import (
    PLAYED_CLASSES,
    RecordedRun,
    RecordedStage,
    RecordedSubtask,
    load_runs,
)
from justitia_ray.units import Seconds, Tokens

WORDS_PER_TOKEN = 0.75
"""Words per token of English text with usual tokenizers, estimated."""

LEAST_MAX_PROMPT_WORDS = 100
"""Minimum number of words of a prompt: an agent's instruction and a few lines of text."""


class PlannedCall(NamedTuple):
    """Planned lengths of one inference."""

    prompt_words: int
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class CallMade:
    """Inference of an agent, with the service's token counts."""

    stage: str
    index: int
    prompt_tokens: Tokens
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Inferences that run in parallel, after `gap_s` seconds of tool time."""

    calls: tuple[PlannedCall, ...]
    gap_s: Seconds


@dataclass(frozen=True)
class Lengths:
    """Planned lengths of one application."""

    steered: bool
    """Whether an agent follows the planned lengths; otherwise the model's answers decide."""
    run: RecordedRun
    """Planned inferences of the application, with prompt lengths in words."""
    limits: Mapping[str, PlannedCall]
    """Longest inference of each stage in the recorded runs."""

    @cached_property
    def stages(self) -> dict[str, PlannedStage]:
        """Stages by name, in order; repeated stages are named `collapse_1`, `collapse_2` and so on.

        The inferences of the subtasks of class PE are in the stages `choose_model` and `llm_task`:
        the n-th subtask of a kind has the n-th inference of its stage.
        """
        return {
            stage.name: PlannedStage(tuple(PlannedCall(*call) for call in stage.calls), stage.gap_s)
            for planned in self.run.stages
            for stage in _without_subtasks(planned)
        }

    @property
    def subtasks(self) -> list[RecordedSubtask]:
        """Planned subtasks of an application of class PE, in order."""
        return [subtask for stage in self.run.stages for subtask in stage.subtasks]

    def fan_out(self, stage: str) -> int:
        return len(self.stages[stage].calls)

    def call(self, stage: str, index: int) -> PlannedCall:
        if self.steered:
            return self.stages[stage].calls[index]
        if stage in self.limits:
            return self.limits[stage]
        return self.limits[stage.rstrip("0123456789").rstrip("_")]

    def rounds(self, name: str) -> int:
        return sum(stage.rpartition("_")[0] == name for stage in self.stages)


@dataclass(kw_only=True)
class LengthPlan:
    """Draws lengths of applications; equal seeds give equal lengths.

    Raises:
        ConfigError: If a recorded file is wrong.
    """

    seed: int = 0
    """Seed; an application's lengths depend only on seed, class and number."""
    length_scale: float = 1.0
    """Factor on the lengths of prompts and outputs."""
    gap_scale: float = 1.0
    """Factor on tool time; 0 removes it."""
    steered: bool = True
    """Whether agents follow the planned lengths, for a model with random weights, or only the
    limits.
    """
    max_prompt_words: int = 400
    """Largest number of words of a prompt, which also has at most six bytes per word.

    A tokenizer with 2,048 entries makes 2 to 3.4 tokens of an English word, so that 400 words are
    at most some 1,400 tokens of a context of 2,048.
    """
    max_output_tokens: Tokens | None = None
    """Maximum output in tokens; None: the measured maximum."""
    words_per_token: float = WORDS_PER_TOKEN
    """Words of a prompt per token of the model."""
    samples: int = 5
    """Number of answers that vote on a question in class SC; 5 as in the measured runs."""
    most_fan_out: int | None = None
    """Maximum number of parallel inferences of a stage; None: no limit. Subtasks of a plan are not
    limited.
    """
    data_dir: Path | None = None
    """Directory with `recorded/CLASS.jsonl`; without it, runs are generated from published
    statistics.
    """

    def __post_init__(self) -> None:
        self._runs: dict[str, list[RecordedRun]] = {
            name: [] if self.data_dir is None else load_runs(self.data_dir, name, played=True)
            for name in PLAYED_CLASSES
        }

    def draw(self, application_class: str, item_id: str, number: int) -> Lengths:
        """Return the lengths of an application, from a recorded run on its input if there is one.

        Args:
            application_class: A class in `table.WORKLOADS`.
            item_id: Id of the application's input.
            number: Number of the application in the load; it varies the draws for the same input.
        """
        rng = random.Random(f"{self.seed}/lengths/{application_class}/{number}")
        runs = self._runs[application_class]
        matching = [run for run in runs if run.item_id == item_id] or runs
        run = (
            rng.choice(matching) if matching else made_up_run(application_class, rng, self.samples)
        )
        return self.lengths_of_run(application_class, run)

    def lengths_of_run(self, application_class: str, run: RecordedRun) -> Lengths:
        """Return the lengths of an application that repeats a recorded run."""
        planned = replace(run, stages=tuple(self._scale_stage(stage) for stage in run.stages))
        limits = {
            name: self._scale_call(*most)
            for name, most in _maximum_lengths(application_class).items()
        }
        return Lengths(self.steered, planned, limits)

    def _scale_stage(self, stage: RecordedStage) -> RecordedStage:
        return RecordedStage(
            stage.name,
            tuple(self._scale_call(*call) for call in stage.calls[: self.most_fan_out]),
            stage.gap_s * self.gap_scale,
            tuple(
                RecordedSubtask(
                    subtask.needs,
                    tuple((kind, *self._scale_call(p, d)) for kind, p, d in subtask.calls),
                    subtask.exec_s * self.gap_scale,
                )
                for subtask in stage.subtasks
            ),
        )

    def _scale_call(self, prompt_tokens: float, output_tokens: float) -> PlannedCall:
        words = round(prompt_tokens * self.length_scale * self.words_per_token)
        output = max(1, round(output_tokens * self.length_scale))
        if self.max_output_tokens is not None:
            output = min(output, self.max_output_tokens)
        return PlannedCall(min(words, self.max_prompt_words), output)


def _without_subtasks(stage: RecordedStage) -> list[RecordedStage]:
    if not stage.subtasks:
        return [stage]
    stages = []
    for kind in (CHOOSE_MODEL, LLM_TASK):
        calls = [call[1:] for task in stage.subtasks for call in task.calls if call[0] == kind]
        if calls:
            stages.append(RecordedStage(kind, tuple(calls)))
    return stages


def _maximum_lengths(application_class: str) -> dict[str, tuple[float, float]]:
    """Return the longest prompt and output of each stage of a class."""
    if application_class in LOOPS:
        loop = LOOPS[application_class]
        output = max(loop.first_output_tokens.max, loop.later_output_tokens.max)
        return {loop.name: (loop.max_prompt_tokens, output)}
    stages = STAGES.get(
        application_class, (PLAN.planning, PLAN.choose_model, PLAN.llm_task, PLAN.response)
    )
    return {stage.name: (stage.prompt_tokens.max, stage.output_tokens.max) for stage in stages}


@dataclass(frozen=True, slots=True)
class PlannedApplication:
    """Application of a load, with its input and planned lengths."""

    number: int
    """Index in the order of arrival, from 0."""
    application_class: str
    item_id: str
    text: str
    """Text that the user submits."""
    tenant: str
    arrived_at_s: Seconds
    """Time from the start of the load to the arrival, in seconds."""
    lengths: Lengths


def plan_load(
    lengths: LengthPlan,
    *,
    count: int,
    mix: Mapping[str, float],
    rate_per_s: float = 1.0,
    seed: int = 0,
    tenants: Sequence[str] = ("default",),
    arrivals: Sequence[Seconds] | None = None,
    dealt: bool = False,
) -> list[PlannedApplication]:
    """Draw the applications of a load in order of arrival; equal arguments give equal loads.

    Arrivals, classes, inputs and tenants are drawn independently: a change to one leaves the
    others.

    Args:
        lengths: Draws the lengths of the applications; inputs are read from its data directory.
        count: Number of applications.
        mix: Share of each class, in any unit.
        rate_per_s: Mean number of arrivals per second; arrivals are a Poisson process.
        seed: Seed of all draws except lengths.
        tenants: Tenants of the applications, with equal probability.
        arrivals: `count` sorted arrival times, instead of a Poisson process.
        dealt: Deal classes from shuffled decks that have exactly the mix; its shares must then be
            whole numbers. Otherwise each class is drawn independently.

    Raises:
        ConfigError: If inputs cannot be loaded.
    """

    def new_rng(purpose: str) -> random.Random:
        return random.Random(f"{seed}/{purpose}")

    def shuffled(application_class: str) -> Iterator[Input]:
        """Return the inputs of a class in random order, repeated as needed."""
        inputs = load_inputs(lengths.data_dir, application_class)
        new_rng(f"inputs/{application_class}").shuffle(inputs)
        return cycle(inputs)

    drawn = {name: share for name, share in mix.items() if share > 0}
    inputs = {name: shuffled(name) for name in drawn}
    if dealt:
        classes = deal_classes(
            {name: int(share) for name, share in drawn.items()}, new_rng("classes")
        )
    else:
        classes = iter(new_rng("classes").choices(list(drawn), list(drawn.values()), k=count))
    if arrivals is None:
        gaps = new_rng("arrivals")
        arrivals = list(accumulate(gaps.expovariate(rate_per_s) for _ in range(count)))
    of_tenants = new_rng("tenants")
    planned = []
    for number, (arrived_at_s, name) in enumerate(zip(arrivals, classes, strict=False)):
        item = next(inputs[name])
        planned.append(
            PlannedApplication(
                number=number,
                application_class=name,
                item_id=item.item_id,
                text=item.text,
                tenant=of_tenants.choice(tenants),
                arrived_at_s=arrived_at_s,
                lengths=lengths.draw(name, item.item_id, number),
            )
        )
    return planned
