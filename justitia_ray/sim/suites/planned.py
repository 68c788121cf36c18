"""Planned applications of a live load as a workload file has them: one plan in two forms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from justitia_ray.sim.suites.recorded_dag import inferences_of
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Tokens
from justitia_ray.workloads.lengths import WORDS_PER_TOKEN, Lengths
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.recorded import RecordedRun, RecordedStage, RecordedSubtask
from justitia_ray.workloads.steps import CallMade


def planned_application(
    planned: PlannedApplication,
    name: str,
    *,
    words_per_token: float = WORDS_PER_TOKEN,
    calls: Sequence[CallMade] = (),
) -> WorkloadApplication:
    """Return an application whose inferences are called `STAGE/INDEX`.

    Args:
        planned: The application; steered.
        name: Its id.
        words_per_token: What the plan was drawn with: prompts are planned in words.
        calls: What its inferences really were, from a dry run or from a play
            (`ApplicationRecord.calls`); of those that are not among them, what was planned.
    """
    made = {(call.stage, call.index): (call.prompt_tokens, call.output_tokens) for call in calls}
    lengths = planned.lengths
    sizes = {
        (stage, index): made.get(
            (stage, index),
            (max(1, round(call.prompt_words / words_per_token)), call.output_tokens),
        )
        for stage, of_stage in lengths.stages.items()
        for index, call in enumerate(of_stage.calls)
    }
    order, run = _run(lengths, sizes)
    inferences = inferences_of(run)
    names = {inference.inference_id: order[i] for i, inference in enumerate(inferences)}
    return WorkloadApplication(
        name,
        planned.application_class,
        planned.arrived_at_s,
        tuple(
            replace(
                inference,
                inference_id=names[inference.inference_id],
                after=tuple(names[before] for before in inference.after),
            )
            for inference in inferences
        ),
        planned.tenant,
        input=planned.text,
    )


_Size = tuple[Tokens, Tokens]


def _run(lengths: Lengths, sizes: Mapping[tuple[str, int], _Size]) -> tuple[list[str], RecordedRun]:
    """Return the names of the inferences in the order of a run, and the run."""
    order: list[str] = []
    stages: list[RecordedStage] = []
    of_subtasks = {subtask.kind for subtask in lengths.subtasks}
    left = list(lengths.stages)
    while left:
        stage = left.pop(0)
        if stage in of_subtasks:
            continue
        if lengths.subtasks and not left:  # the response, which waits for all subtasks
            stages.append(_subtasks(lengths, sizes, order))
        count = lengths.fan_out(stage)
        order += [f"{stage}/{index}" for index in range(count)]
        calls = tuple(sizes[stage, index] for index in range(count))
        stages.append(RecordedStage(stage, calls, lengths.gap_s(stage)))
    return order, RecordedRun(None, tuple(stages))


def _subtasks(
    lengths: Lengths, sizes: Mapping[tuple[str, int], _Size], order: list[str]
) -> RecordedStage:
    kinds = [subtask.kind for subtask in lengths.subtasks]
    subtasks = []
    for index, subtask in enumerate(lengths.subtasks):
        own = (subtask.kind, kinds[:index].count(subtask.kind))
        calls = (sizes[own],) if own in sizes else ()
        order += [f"{own[0]}/{own[1]}" for _ in calls]
        subtasks.append(RecordedSubtask(subtask.needs, calls, subtask.exec_s, subtask.kind))
    return RecordedStage("execute_subtasks", (), 0.0, tuple(subtasks))
