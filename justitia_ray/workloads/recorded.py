"""Recorded runs of a data directory: how many calls each stage had, and how long they were.

Runs of the classes that have a live agent (`stages.STAGES`) must go through the agent's stages.
Those of other classes may have any, and only the simulator reads them.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.json_lines import Record, read_records
from justitia_ray.workloads.stages import STAGES


@dataclass(frozen=True, slots=True)
class RecordedSubtask:
    """One subtask of a plan: inferences one after the other, then a tool."""

    needs: tuple[int, ...]
    """Which subtasks of the stage must be done first, by index; all are before it."""
    calls: tuple[tuple[Tokens, Tokens], ...]
    exec_s: Seconds
    """How long the tool takes."""


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


def load_runs(data_dir: Path, application_class: str) -> list[RecordedRun]:
    """Return the runs in `recorded/CLASS.jsonl`, none if there is no such file.

    Raises:
        ConfigError: If the file is wrong; file, line and field are named.
    """
    path = data_dir / "recorded" / f"{application_class}.jsonl"
    if not path.exists():
        return []
    return [_run(record, application_class) for record in read_records(path)]


def _run(record: Record, application_class: str) -> RecordedRun:
    item_id, stages = record.value("item_id"), record.value("stages")
    if item_id is not None and not isinstance(item_id, str):
        raise record.error("item_id", "a text or null", item_id)
    if not isinstance(stages, list) or not stages:
        raise record.error("stages", "a list with at least one stage", stages)
    run = RecordedRun(
        item_id, tuple(_stage(record, f"stages[{i}]", stage) for i, stage in enumerate(stages))
    )
    if application_class in STAGES:
        _check_order(record, application_class, [stage.name for stage in run.stages])
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
    )


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, list)
        and len(call) == 2
        and all(type(tokens) is int and tokens >= 1 for tokens in call)
    )


def _check_order(record: Record, application_class: str, names: list[str]) -> None:
    """Hold the stages to those that the agent of the class goes through."""
    expected: list[str] = []
    for stage in STAGES[application_class]:
        if stage.round_weights:
            rounds = sum(name.startswith(f"{stage.name}_") for name in names)
            expected += [f"{stage.name}_{i}" for i in range(1, rounds + 1)]
        else:
            expected.append(stage.name)
    if names != expected:
        raise record.error("stages", f"named {', '.join(expected)}", names)
