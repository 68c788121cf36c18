"""Runs made up from published statistics, for where there are no recorded ones."""

import random

from justitia_ray.sim.suites.published_stages import LOOPS, PLAN, STAGES, Loop
from justitia_ray.sim.suites.self_consistency import MAX_OUTPUT_TOKENS
from justitia_ray.units import Tokens
from justitia_ray.workloads import stages as live
from justitia_ray.workloads.made_up import made_up_stages
from justitia_ray.workloads.recorded import RecordedRun, RecordedStage, RecordedSubtask
from justitia_ray.workloads.stages import Stage


def made_up_run(application_class: str, rng: random.Random, sc_samples: int) -> RecordedRun:
    """Make up a run of a class.

    Args:
        application_class: One of `application_runs.CLASSES`.
        rng: Draws everything.
        sc_samples: Samples of a self-consistency vote.
    """
    if application_class in LOOPS:
        return RecordedRun(None, _turns(LOOPS[application_class], rng))
    if application_class == "PE":
        return RecordedRun(None, _plan(rng))
    if application_class == "SC":
        return RecordedRun(None, (_samples(rng, sc_samples),))
    if application_class in STAGES:
        z = rng.gauss(0.0, 1.0)
        return RecordedRun(None, made_up_stages(STAGES[application_class], rng, prompt_z=z))
    return RecordedRun(None, made_up_stages(live.STAGES[application_class], rng))


def _turns(loop: Loop, rng: random.Random) -> tuple[RecordedStage, ...]:
    turns: list[RecordedStage] = []
    prompt_tokens = round(loop.first_prompt_tokens.draw(rng))
    for number in range(max(1, round(loop.turns.draw(rng)))):
        output = loop.later_output_tokens if number else loop.first_output_tokens
        output_tokens = round(output.draw(rng))
        gap_s = loop.gap_s.draw(rng) if number else 0.0
        turns.append(RecordedStage(f"turn_{number + 1}", ((prompt_tokens, output_tokens),), gap_s))
        prompt_tokens += output_tokens + round(loop.observation_tokens.draw(rng))
    return tuple(turns)


def _plan(rng: random.Random) -> tuple[RecordedStage, ...]:
    kinds = rng.choices(
        ("choose_model", "llm_task", "model"),
        (
            PLAN.choose_model_share,
            PLAN.llm_task_share,
            1 - PLAN.choose_model_share - PLAN.llm_task_share,
        ),
        k=max(1, round(PLAN.subtasks.draw(rng))),
    )
    exec_s = PLAN.exec_s.draw(rng) / max(1, len(kinds) - kinds.count("llm_task"))
    calls = {"choose_model": PLAN.choose_model, "llm_task": PLAN.llm_task}
    subtasks = tuple(
        RecordedSubtask(
            needs=(index - 1,) if index else (),
            calls=(_call(calls[kind], rng),) if kind in calls else (),
            exec_s=0.0 if kind == "llm_task" else exec_s,
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
    [stage] = live.STAGES["SC"]
    prompt_tokens = round(stage.prompt_tokens.draw(rng))
    calls = tuple(
        (prompt_tokens, min(MAX_OUTPUT_TOKENS, round(stage.output_tokens.draw(rng))))
        for _ in range(samples)
    )
    return RecordedStage(stage.name, calls, 0.0)


def _call(stage: Stage, rng: random.Random) -> tuple[Tokens, Tokens]:
    return round(stage.prompt_tokens.draw(rng)), round(stage.output_tokens.draw(rng))
