"""Runs of the papers' application classes, one after the other: recorded or generated.

With a data directory: the recorded runs of a class in random order, repeated when used up, with the
input text where it is known (not for MRS). Without one: runs generated from published statistics.

Self-consistency (several samples of one prompt, then a vote without an inference) has no recorded
runs. Two sources are published: one greedy answer of each of three models to every question of
GSM8K (Tebmer/Rereading-LLM-Reasoning, commit 0dbad50b), counted as 3.3 characters per token; and
the sample code of Hermes (NephrenCake/Hermes, commit 3894339d), with a template of about 600
characters and at most 512 tokens. A sample is as long as one of the three answers to the same
question.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import JsonRecord, read_records
from justitia_ray.sim.suites.inputs import load_inputs
from justitia_ray.sim.suites.measured_classes import (
    CHOOSE_MODEL,
    LLM_TASK,
    LOOPS,
    MODEL,
    PLAN,
    STAGES,
    Loop,
    Stage,
)
from justitia_ray.sim.suites.recorded import (
    RecordedRun,
    RecordedStage,
    RecordedSubtask,
    inferences_of,
    load_runs,
)
from justitia_ray.sim.workload import WorkloadInference
from justitia_ray.units import Tokens

DEFAULT_SAMPLES = 40
"""Number of answers that vote in an application of class SC, as in its paper (Wang et al., 2023).

Its cost is then 2.7 million token·iterations, which makes it a medium class, as in the Justitia
paper; with the 5 samples of the Hermes code it would be as small as the class KBQAV.
"""

CHARS_PER_TOKEN = 3.3
TEMPLATE_CHARS = 600
MAX_OUTPUT_TOKENS: Tokens = 512
"""Largest output of an answer that votes in class SC, in tokens."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question with the lengths of the recorded answers to it."""

    item_id: str
    text: str
    answers: tuple[Tokens, ...]


def load_questions(data_dir: Path) -> list[Question]:
    """Return the recorded questions in `apps/SC.jsonl`, at least one.

    Raises:
        ConfigError: If the file is missing, empty or wrong; the message names file, line and field.
    """
    path = data_dir / "apps" / "SC.jsonl"
    questions = [_parse_question(record) for record in read_records(path)]
    if not questions:
        raise ConfigError(f"{path}: must hold at least one question, is empty")
    return questions


def _parse_question(record: JsonRecord) -> Question:
    meta = record.value("meta")
    chars = meta.get("recorded_cot_chars") if isinstance(meta, dict) else None
    if (
        not isinstance(chars, dict)
        or not chars
        or not all(type(length) is int and length >= 1 for length in chars.values())
    ):
        raise record.error("meta.recorded_cot_chars", "whole numbers >= 1 by model", chars)
    return Question(
        record.text("id"),
        record.text("input"),
        tuple(
            min(MAX_OUTPUT_TOKENS, max(1, round(chars[model] / CHARS_PER_TOKEN)))
            for model in sorted(chars)
        ),
    )


_ONE_DOCUMENT = ("CC", "EV", "DM")
"""Classes whose prompts all contain one document, so that all are long or all are short."""


def made_up_run(application_class: str, rng: random.Random, samples: int) -> RecordedRun:
    """Generate a run of a class.

    Args:
        application_class: A class in `measured_classes.STAGES` or `LOOPS`, or PE.
        rng: Source of all draws.
        samples: Number of samples of an SC vote.
    """
    if application_class in LOOPS:
        return looped_run(LOOPS[application_class], rng)
    if application_class == "PE":
        return RecordedRun(None, _draw_plan(rng))
    if application_class == "SC":
        [stage] = STAGES["SC"]
        prompt_tokens = round(stage.prompt_tokens.draw(rng))
        answers = [round(stage.output_tokens.draw(rng)) for _ in range(samples)]
        calls = tuple((prompt_tokens, min(MAX_OUTPUT_TOKENS, answer)) for answer in answers)
        return RecordedRun(None, (RecordedStage(stage.name, calls),))
    z = rng.gauss(0.0, 1.0) if application_class in _ONE_DOCUMENT else None
    return RecordedRun(None, _stages(STAGES[application_class], rng, z))


def _stages(
    stages: Sequence[Stage], rng: random.Random, prompt_z: float | None
) -> tuple[RecordedStage, ...]:
    run: list[RecordedStage] = []
    for stage in stages:
        for name in _draw_rounds(stage, rng):
            size = len(run[-1].calls) if stage.fan_out is None else stage.fan_out.draw(rng)
            calls = tuple(
                (
                    round(
                        stage.prompt_tokens.draw(rng)
                        if prompt_z is None
                        else stage.prompt_tokens.at(prompt_z)
                    ),
                    round(stage.output_tokens.draw(rng)),
                )
                for _ in range(max(1, round(size)))
            )
            run.append(RecordedStage(name, calls, stage.gap_s.draw(rng) if stage.gap_s else 0.0))
    return tuple(run)


def _draw_rounds(stage: Stage, rng: random.Random) -> list[str]:
    if not stage.round_weights:
        return [stage.name]
    [rounds] = rng.choices(range(len(stage.round_weights)), stage.round_weights)
    return [f"{stage.name}_{i}" for i in range(1, rounds + 1)]


def looped_run(loop: Loop, rng: random.Random) -> RecordedRun:
    """Generate a run of turns in which each prompt repeats all earlier turns."""
    turns: list[RecordedStage] = []
    prompt_tokens = round(loop.first_prompt_tokens.draw(rng))
    for number in range(max(1, round(loop.turns.draw(rng)))):
        output = loop.later_output_tokens if number else loop.first_output_tokens
        output_tokens = max(1, round(output.draw(rng)))
        gap_s = loop.gap_s.draw(rng) if number else 0.0
        name = f"{loop.name}_{number + 1}"
        turns.append(RecordedStage(name, ((prompt_tokens, output_tokens),), gap_s))
        prompt_tokens += output_tokens + round(loop.observation_tokens.draw(rng))
    return RecordedRun(None, tuple(turns))


def _draw_plan(rng: random.Random) -> tuple[RecordedStage, ...]:
    kinds = rng.choices(
        (CHOOSE_MODEL, LLM_TASK, MODEL),
        (
            PLAN.choose_model_share,
            PLAN.llm_task_share,
            1 - PLAN.choose_model_share - PLAN.llm_task_share,
        ),
        k=max(1, round(PLAN.subtasks.draw(rng))),
    )
    exec_s = PLAN.exec_s.draw(rng) / max(1, len(kinds) - kinds.count(LLM_TASK))
    calls = {CHOOSE_MODEL: PLAN.choose_model, LLM_TASK: PLAN.llm_task}
    subtasks = tuple(
        RecordedSubtask(
            needs=(index - 1,) if index else (),
            calls=((kind, *_draw_call(calls[kind], rng)),) if kind in calls else (),
            exec_s=0.0 if kind == LLM_TASK else exec_s,
        )
        for index, kind in enumerate(kinds)
    )
    return (
        RecordedStage(PLAN.planning.name, (_draw_call(PLAN.planning, rng),), 0.0),
        RecordedStage("execute_subtasks", (), 0.0, subtasks),
        RecordedStage(PLAN.response.name, (_draw_call(PLAN.response, rng),), 0.0),
    )


def _draw_call(stage: Stage, rng: random.Random) -> tuple[Tokens, Tokens]:
    return round(stage.prompt_tokens.draw(rng)), round(stage.output_tokens.draw(rng))


CLASSES = ("ALFWI", "CC", "CG", "DM", "EV", "FV", "KBQAV", "MRS", "PE", "SC")
"""Names of all application classes."""


def deal_classes(mix: Mapping[str, int], rng: random.Random) -> Iterator[str]:
    """Yield classes in random order, in exactly the wanted proportions.

    The paper draws each class independently. Of 300 applications, two to eleven would then be
    large, and the load of one seed several times the load of another.
    """
    deck = [name for name, number in mix.items() for _ in range(number)]
    while True:
        rng.shuffle(deck)
        yield from deck


@dataclass(frozen=True, slots=True)
class ApplicationRun:
    """Inferences of one application, and its input text ("" if unknown)."""

    inferences: tuple[WorkloadInference, ...]
    text: str


def deal_runs(
    application_class: str, seed: int, data_dir: Path | None, samples: int
) -> Iterator[ApplicationRun]:
    """Yield runs of a class endlessly; equal arguments yield equal runs.

    Args:
        application_class: The class.
        seed: Seed of all draws.
        data_dir: Directory with `recorded/` and `apps/`; None: runs are generated.
        samples: Number of samples of a self-consistency vote.

    Raises:
        ConfigError: If the data directory has no run of that class, or a file is wrong.
    """
    rng = random.Random(f"{seed}/runs/{application_class}")
    if data_dir is None:
        while True:
            run = made_up_run(application_class, rng, samples)
            yield ApplicationRun(inferences_of(run), "")
    if application_class == "SC":
        questions = load_questions(data_dir)
        rng.shuffle(questions)
        for question in cycle(questions):
            yield ApplicationRun(_sampled_answers(question, samples, rng), question.text)
    runs = _recorded_runs(data_dir, application_class)
    rng.shuffle(runs)
    yield from cycle(runs)


def _sampled_answers(
    question: Question, samples: int, rng: random.Random
) -> tuple[WorkloadInference, ...]:
    """Return `samples` inferences, with the lengths of randomly drawn recorded answers."""
    prompt_tokens = round((TEMPLATE_CHARS + len(question.text)) / CHARS_PER_TOKEN)
    return tuple(
        WorkloadInference(str(number), prompt_tokens, rng.choice(question.answers))
        for number in range(samples)
    )


def _recorded_runs(data_dir: Path, application_class: str) -> list[ApplicationRun]:
    recorded = load_runs(data_dir, application_class)
    if not recorded:
        raise ConfigError(
            f"{data_dir / 'recorded' / application_class}.jsonl: must hold at least one run, "
            "has none"
        )
    texts = {}
    if any(run.item_id is not None for run in recorded):
        inputs = load_inputs(data_dir, application_class)
        texts = {item.item_id: item.text for item in inputs}
    return [
        ApplicationRun(inferences_of(run), texts.get(run.item_id or "", "")) for run in recorded
    ]
