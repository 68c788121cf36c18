"""Recorded runs of a data directory: how many calls each stage had, and how long they were.

What an agent is to play must go through the agent's stages. The simulator and the predictor read
runs of any stages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.json_lines import Record, read_records
from justitia_ray.workloads.loops import LOOPS
from justitia_ray.workloads.stages import STAGES
from justitia_ray.workloads.subtasks import CHOOSE_MODEL, LLM_TASK, MODEL, PLAN

PLAYED_CLASSES = (*STAGES, *LOOPS, "PE")
"""Classes that have an agent."""


@dataclass(frozen=True, slots=True)
class RecordedSubtask:
    """One subtask of a plan: inferences one after the other, then a tool."""

    needs: tuple[int, ...]
    """Which subtasks of the stage must be done first, by index; all are before it."""
    calls: tuple[tuple[Tokens, Tokens], ...]
    exec_s: Seconds
    """How long the tool takes."""
    kind: str = MODEL
    """What its calls are for; see `subtasks`."""


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """One stage of a run: calls, or subtasks."""

    name: str
    calls: tuple[tuple[Tokens, Tokens], ...]
    """Prompt and output tokens of each inference; all may run side by side."""
    gap_s: Seconds
    """Tool time before the stage."""
    subtasks: tuple[RecordedSubtask, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of an application."""

    item_id: str | None
    """The input it ran on; None if that is not among the inputs."""
    stages: tuple[RecordedStage, ...]


def load_runs(data_dir: Path, application_class: str, *, played: bool = False) -> list[RecordedRun]:
    """Return the runs in `recorded/CLASS.jsonl`, none if there is no such file.

    Args:
        data_dir: Where `recorded/` lies.
        application_class: The class. Turns of one that goes in turns (`loops.LOOPS`) are named as
            the agent names them, whatever they were.
        played: Whether the class's agent is to play them: stages must then be the agent's.

    Raises:
        ConfigError: If the file is wrong; file, line and field are named.
    """
    path = data_dir / "recorded" / f"{application_class}.jsonl"
    if not path.exists():
        return []
    return [_run(record, application_class, played) for record in read_records(path)]


def _run(record: Record, application_class: str, played: bool) -> RecordedRun:
    item_id, stages = record.value("item_id"), record.value("stages")
    if item_id is not None and not isinstance(item_id, str):
        raise record.error("item_id", "a text or null", item_id)
    if not isinstance(stages, list) or not stages:
        raise record.error("stages", "a list with at least one stage", stages)
    run = RecordedRun(
        item_id, tuple(_stage(record, f"stages[{i}]", stage) for i, stage in enumerate(stages))
    )
    if application_class in LOOPS:
        name = LOOPS[application_class].name
        run = replace(
            run,
            stages=tuple(replace(s, name=f"{name}_{i}") for i, s in enumerate(run.stages, 1)),
        )
    if played:
        _check_playable(record, application_class, run.stages)
    return run


def _stage(record: Record, field: str, stage: Any) -> RecordedStage:
    if not isinstance(stage, dict):
        raise record.error(field, "an object", stage)
    calls, gap_s = stage.get("calls"), stage.get("gap_before_s", 0.0)
    if not isinstance(gap_s, int | float) or not 0 <= gap_s < math.inf:
        raise record.error(f"{field}.gap_before_s", "seconds >= 0", gap_s)
    if "subtasks" in stage:
        subtasks = _subtasks(record, f"{field}.subtasks", stage["subtasks"])
        return RecordedStage(str(stage.get("name")), (), float(gap_s), subtasks)
    if not isinstance(calls, list) or not calls or not all(_is_call(call) for call in calls):
        raise record.error(
            f"{field}.calls", "a list of [prompt_tokens, output_tokens], each >= 1", calls
        )
    return RecordedStage(
        str(stage.get("name")), tuple((prompt, output) for prompt, output in calls), float(gap_s)
    )


def _subtasks(record: Record, field: str, subtasks: Any) -> tuple[RecordedSubtask, ...]:
    if not isinstance(subtasks, list) or not subtasks:
        raise record.error(field, "a list with at least one subtask", subtasks)
    return tuple(
        _subtask(record, f"{field}[{i}]", i, subtask) for i, subtask in enumerate(subtasks)
    )


def _subtask(record: Record, field: str, index: int, subtask: Any) -> RecordedSubtask:
    if not isinstance(subtask, dict):
        raise record.error(field, "an object", subtask)
    needs, calls, exec_s = (subtask.get(name) for name in ("dep", "llm_calls", "exec_s"))
    if not isinstance(needs, list) or not all(
        type(need) is int and -1 <= need < index for need in needs
    ):
        raise record.error(f"{field}.dep", f"a list of indices below {index}, or -1", needs)
    if not isinstance(calls, list) or not all(
        isinstance(call, list) and _is_call(call[1:]) for call in calls
    ):
        raise record.error(
            f"{field}.llm_calls", "a list of [kind, prompt_tokens, output_tokens]", calls
        )
    if not isinstance(exec_s, int | float) or not 0 <= exec_s < math.inf:
        raise record.error(f"{field}.exec_s", "seconds >= 0", exec_s)
    return RecordedSubtask(
        needs=tuple(need for need in needs if need >= 0),
        calls=tuple((prompt, output) for _, prompt, output in calls),
        exec_s=float(exec_s),
        kind=str(calls[0][0]) if calls else MODEL,
    )


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, list)
        and len(call) == 2
        and all(type(tokens) is int and tokens >= 1 for tokens in call)
    )


def _check_playable(
    record: Record, application_class: str, stages: Sequence[RecordedStage]
) -> None:
    """Hold the stages to those that the agent of the class goes through."""
    names = [stage.name for stage in stages]
    if application_class in LOOPS:
        for index, stage in enumerate(stages):
            if len(stage.calls) != 1:
                raise record.error(
                    f"stages[{index}].calls", "one call: turns follow each other", stage.calls
                )
        return
    if application_class == "PE":
        _check_names(record, names, [PLAN.planning.name, "execute_subtasks", PLAN.response.name])
        for index, subtask in enumerate(stages[1].subtasks):
            kinds = (CHOOSE_MODEL, LLM_TASK) if subtask.calls else (MODEL,)
            if len(subtask.calls) > 1 or subtask.kind not in kinds:
                raise record.error(
                    f"stages[1].subtasks[{index}].llm_calls",
                    f"empty, or one call of kind {CHOOSE_MODEL} or {LLM_TASK}",
                    subtask,
                )
        return
    expected: list[str] = []
    for known in STAGES[application_class]:
        if known.round_weights:
            rounds = sum(name.startswith(f"{known.name}_") for name in names)
            expected += [f"{known.name}_{i}" for i in range(1, rounds + 1)]
        else:
            expected.append(known.name)
    _check_names(record, names, expected)


def _check_names(record: Record, names: list[str], expected: list[str]) -> None:
    if names != expected:
        raise record.error("stages", f"named {', '.join(expected)}", names)
