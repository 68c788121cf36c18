"""Runs made up from published statistics, for where there are no recorded ones."""

import random
from collections.abc import Sequence

from justitia_ray.units import Tokens
from justitia_ray.workloads.loops import LOOPS, Loop
from justitia_ray.workloads.recorded import RecordedRun, RecordedStage, RecordedSubtask
from justitia_ray.workloads.stages import STAGES, Stage
from justitia_ray.workloads.subtasks import CHOOSE_MODEL, LLM_TASK, MODEL, PLAN

_ONE_DOCUMENT = ("CC", "EV", "DM")
"""Classes all of whose prompts hold one text, so that they are long or short together."""

_MAX_SAMPLE_TOKENS: Tokens = 512
"""Of a sample of SC, as in the code that the class was measured with."""


def made_up_run(
    application_class: str, rng: random.Random, *, samples: int | None = None
) -> RecordedRun:
    """Make up a run of a class.

    Args:
        application_class: One of `stages.STAGES` or `loops.LOOPS`, or PE.
        rng: Draws everything.
        samples: Of a vote of SC; None: as many as the code that it was measured with, 5.
    """
    if application_class in LOOPS:
        return RecordedRun(None, _turns(LOOPS[application_class], rng))
    if application_class == "PE":
        return RecordedRun(None, _plan(rng))
    if application_class == "SC" and samples is not None:
        return RecordedRun(None, (_samples(rng, samples),))
    z = rng.gauss(0.0, 1.0) if application_class in _ONE_DOCUMENT else None
    return RecordedRun(None, _stages(STAGES[application_class], rng, z))


def _stages(
    stages: Sequence[Stage], rng: random.Random, prompt_z: float | None
) -> tuple[RecordedStage, ...]:
    """Make up stages, all prompts where `prompt_z` lies in their spreads, or each by itself."""
    run: list[RecordedStage] = []
    for stage in stages:
        for name in _rounds(stage, rng):
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


def _rounds(stage: Stage, rng: random.Random) -> list[str]:
    if not stage.round_weights:
        return [stage.name]
    [rounds] = rng.choices(range(len(stage.round_weights)), stage.round_weights)
    return [f"{stage.name}_{i}" for i in range(1, rounds + 1)]


def _turns(loop: Loop, rng: random.Random) -> tuple[RecordedStage, ...]:
    turns: list[RecordedStage] = []
    prompt_tokens = round(loop.first_prompt_tokens.draw(rng))
    for number in range(max(1, round(loop.turns.draw(rng)))):
        output = loop.later_output_tokens if number else loop.first_output_tokens
        output_tokens = round(output.draw(rng))
        gap_s = loop.gap_s.draw(rng) if number else 0.0
        name = f"{loop.name}_{number + 1}"
        turns.append(RecordedStage(name, ((prompt_tokens, output_tokens),), gap_s))
        prompt_tokens += output_tokens + round(loop.observation_tokens.draw(rng))
    return tuple(turns)


def _plan(rng: random.Random) -> tuple[RecordedStage, ...]:
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
            calls=(_call(calls[kind], rng),) if kind in calls else (),
            exec_s=0.0 if kind == LLM_TASK else exec_s,
            kind=kind,
        )
        for index, kind in enumerate(kinds)
    )
    return (
        RecordedStage(PLAN.planning.name, (_call(PLAN.planning, rng),), 0.0),
        RecordedStage("execute_subtasks", (), 0.0, subtasks),
        RecordedStage(PLAN.response.name, (_call(PLAN.response, rng),), 0.0),
    )


def _samples(rng: random.Random, samples: int) -> RecordedStage:
    """Samples of one prompt, each answer as long as one drawn by itself."""
    [stage] = STAGES["SC"]
    prompt_tokens = round(stage.prompt_tokens.draw(rng))
    calls = tuple(
        (prompt_tokens, min(_MAX_SAMPLE_TOKENS, round(stage.output_tokens.draw(rng))))
        for _ in range(samples)
    )
    return RecordedStage(stage.name, calls, 0.0)


def _call(stage: Stage, rng: random.Random) -> tuple[Tokens, Tokens]:
    return round(stage.prompt_tokens.draw(rng)), round(stage.output_tokens.draw(rng))
