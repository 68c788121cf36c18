"""Recorded runs of a data directory: how many calls each stage had, and how long they were."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.json_lines import Record, read_records
from justitia_ray.workloads.stages import STAGES


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """One stage of a run."""

    name: str
    calls: tuple[tuple[Tokens, Tokens], ...]
    """Prompt and output tokens of each inference; all may run side by side."""
    gap_s: Seconds
    """Tool time before the stage."""


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
    _check_order(record, application_class, [stage.name for stage in run.stages])
    return run


def _stage(record: Record, field: str, stage: Any) -> RecordedStage:
    if not isinstance(stage, dict):
        raise record.error(field, "an object", stage)
    calls, gap_s = stage.get("calls"), stage.get("gap_before_s", 0.0)
    if not isinstance(calls, list) or not calls or not all(_is_call(call) for call in calls):
        raise record.error(
            f"{field}.calls", "a list of [prompt_tokens, output_tokens], each >= 1", calls
        )
    if not isinstance(gap_s, int | float) or not 0 <= gap_s < math.inf:
        raise record.error(f"{field}.gap_before_s", "seconds >= 0", gap_s)
    return RecordedStage(
        str(stage.get("name")), tuple((prompt, output) for prompt, output in calls), float(gap_s)
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
