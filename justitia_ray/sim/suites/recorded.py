"""Runs of applications, recorded or generated: calls by stage, their lengths, and tool time.

A run that an agent plays must have the agent's stages. The simulator and the predictor accept any
stages.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import JsonRecord, read_records
from justitia_ray.sim.suites.measured_classes import (
    CHOOSE_MODEL,
    LLM_TASK,
    LOOPS,
    MODEL,
    PLAN,
    STAGES,
)
from justitia_ray.sim.workload import (
    DurationField,
    TokensField,
    WorkloadInference,
    first_mistake,
)
from justitia_ray.units import InferenceId, Seconds, Tokens

PLAYED_CLASSES = (*STAGES, *LOOPS, "PE")
"""Application classes that an agent of this project plays."""

_Need: TypeAlias = Annotated[int, Field(ge=-1, strict=True)]
"""Index of a subtask in a plan; -1 is the plan itself, which all subtasks need."""


def _without_plan(needs: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(need for need in needs if need >= 0)


@dataclass(frozen=True, slots=True)
class RecordedSubtask:
    """Subtask of a plan: consecutive inferences, then a tool."""

    needs: Annotated[tuple[_Need, ...], Field(alias="dep"), AfterValidator(_without_plan)]
    calls: Annotated[tuple[tuple[str, TokensField, TokensField], ...], Field(alias="llm_calls")]
    """Inferences of the subtask, each with kind, prompt tokens and output tokens."""
    exec_s: DurationField
    """Seconds that the tool takes."""

    @property
    def kind(self) -> str:
        return self.calls[0][0] if self.calls else MODEL


@dataclass(frozen=True, slots=True)
class RecordedStage:
    """Stage of a recorded run: inferences, or subtasks."""

    name: str
    calls: Annotated[tuple[tuple[TokensField, TokensField], ...], Field(min_length=1)] = ()
    """Prompt tokens and output tokens of each inference; all may run in parallel."""
    gap_s: Annotated[DurationField, Field(alias="gap_before_s")] = 0.0
    """Seconds of tool time before the stage."""
    subtasks: Annotated[tuple[RecordedSubtask, ...], Field(min_length=1)] = ()


@dataclass(frozen=True, slots=True)
class RecordedRun:
    item_id: str | None
    """Id of the input; None if it is not among the inputs."""
    stages: Annotated[tuple[RecordedStage, ...], Field(min_length=1)]


_RUN = TypeAdapter(RecordedRun)


def load_runs(data_dir: Path, application_class: str, *, played: bool = False) -> list[RecordedRun]:
    """Return the runs in `recorded/CLASS.jsonl`; none without the file.

    Args:
        data_dir: Directory with `recorded/`.
        application_class: The class. The turns of a class in `loops.LOOPS` get the names that its
            agent uses.
        played: Whether the class's agent will play the runs: stages must then be the agent's.

    Raises:
        ConfigError: If the file is wrong; the message names file, line and field.
    """
    path = data_dir / "recorded" / f"{application_class}.jsonl"
    if not path.exists():
        return []
    return [_parse_run(record, application_class, played) for record in read_records(path)]


def _parse_run(record: JsonRecord, application_class: str, played: bool) -> RecordedRun:
    try:
        run = _RUN.validate_python(record.fields)
    except ValidationError as error:
        raise ConfigError(f"{record.where}: {first_mistake(error, {})}") from error
    for number, stage in enumerate(run.stages):
        if not stage.calls and not stage.subtasks:
            raise record.error(f"stages[{number}]", "calls or subtasks", None)
        for index, subtask in enumerate(stage.subtasks):
            if max(subtask.needs, default=-1) >= index:
                raise record.error(
                    f"stages[{number}].subtasks[{index}].dep",
                    f"a list of indices below {index}, or -1",
                    list(subtask.needs),
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


def _check_playable(
    record: JsonRecord, application_class: str, stages: Sequence[RecordedStage]
) -> None:
    """Check that a recorded run has the stages of the agent that plays its class."""
    if application_class in LOOPS:
        for index, stage in enumerate(stages):
            if len(stage.calls) != 1:
                raise record.error(
                    f"stages[{index}].calls", "one call: turns follow each other", stage.calls
                )
        return
    names = [stage.name for stage in stages]
    expected: list[str] = []
    if application_class == "PE":
        expected = [PLAN.planning.name, "execute_subtasks", PLAN.response.name]
    for known in STAGES.get(application_class, ()):
        if known.round_weights:
            rounds = sum(name.startswith(f"{known.name}_") for name in names)
            expected += [f"{known.name}_{i}" for i in range(1, rounds + 1)]
        else:
            expected.append(known.name)
    if names != expected:
        raise record.error("stages", f"named {', '.join(expected)}", names)
    for number, stage in enumerate(stages):
        for index, subtask in enumerate(stage.subtasks):
            kinds = [kind for kind, _, _ in subtask.calls]
            if kinds not in ([], [CHOOSE_MODEL], [LLM_TASK]):
                raise record.error(
                    f"stages[{number}].subtasks[{index}].llm_calls",
                    f"empty, or one call of kind {CHOOSE_MODEL} or {LLM_TASK}",
                    subtask,
                )


def inferences_of(run: RecordedRun, *, named: bool = False) -> tuple[WorkloadInference, ...]:
    """Return the inferences of a run in recorded order.

    A stage starts when the previous stage is done and `gap_s` seconds of tool time are over; its
    calls run in parallel. A subtask starts when the subtasks that it needs are done, and runs its
    calls one after the other, then its tool; the next stage waits for all subtasks. Tool time after
    the last inference delays no inference and is left out.

    Args:
        run: The run.
        named: Whether inferences are named `STAGE/INDEX`, those of subtasks `KIND/INDEX`, instead
            of `0`, `1`, …
    """
    dag = _InferenceGraph(named=named)
    done = _SubmissionTime((), 0)
    for stage in run.stages:
        start = _SubmissionTime(done.after, done.delay_s + stage.gap_s)
        if stage.subtasks:
            done = dag.add_subtasks(stage.subtasks, start)
        else:
            done = _SubmissionTime(
                tuple(dag.add(stage.name, *call, start) for call in stage.calls), 0
            )
    return tuple(dag.inferences)


@dataclass(frozen=True, slots=True)
class _SubmissionTime:
    """When an inference was submitted: some time after other inferences or the arrival."""

    after: tuple[InferenceId, ...]
    delay_s: Seconds


class _InferenceGraph:
    def __init__(self, *, named: bool) -> None:
        self.inferences: list[WorkloadInference] = []
        self._named = named
        self._counts = Counter[str]()
        self._lead_s: dict[InferenceId, dict[InferenceId, Seconds]] = {}

    def add(
        self, stage: str, prompt_tokens: Tokens, output_tokens: Tokens, start: _SubmissionTime
    ) -> InferenceId:
        name = f"{stage}/{self._counts[stage]}" if self._named else str(len(self.inferences))
        self._counts[stage] += 1
        self.inferences.append(
            WorkloadInference(
                name, prompt_tokens, output_tokens, start.after, round(start.delay_s, 6)
            )
        )
        return name

    def add_subtasks(
        self, subtasks: Iterable[RecordedSubtask], start: _SubmissionTime
    ) -> _SubmissionTime:
        ends: list[_SubmissionTime] = []
        for subtask in subtasks:
            at = (
                self._latest_submission_time([ends[i] for i in subtask.needs])
                if subtask.needs
                else start
            )
            for call in subtask.calls:
                name = self.add(*call, at)
                self._lead_s[name] = self._tool_times_before(at)
                at = _SubmissionTime((name,), 0.0)
            ends.append(_SubmissionTime(at.after, at.delay_s + subtask.exec_s))
        return self._latest_submission_time(ends)

    def _tool_times_before(self, at: _SubmissionTime) -> dict[InferenceId, Seconds]:
        leads = dict.fromkeys(at.after, at.delay_s)
        for name in at.after:
            for ancestor, lead_s in self._lead_s.get(name, {}).items():
                leads[ancestor] = max(leads.get(ancestor, 0.0), lead_s + at.delay_s)
        return leads

    def _latest_submission_time(self, ends: list[_SubmissionTime]) -> _SubmissionTime:
        """Return the latest of several submission times, as a workload file can express it.

        The format has a set of predecessors (`after`) and one delay for all of them. A predecessor
        of another predecessor is implied; the part of its delay that may still remain is kept. If
        delays differ, the longest is used after the last predecessor has ended: an inference must
        not be submitted too early.
        """
        delays: dict[InferenceId, Seconds] = {}
        delay_s = max((end.delay_s for end in ends if not end.after), default=0.0)
        for end in ends:
            for name in end.after:
                delays[name] = max(delays.get(name, 0.0), end.delay_s)
        last: list[InferenceId] = []
        for name, own_s in delays.items():
            of_others = [self._lead_s.get(other, {}) for other in delays]
            leads = [of_other[name] for of_other in of_others if name in of_other]
            if not leads:
                last.append(name)
            delay_s = max(delay_s, own_s - max(leads, default=0.0))
        return _SubmissionTime(tuple(last), delay_s)
