"""A recorded play as a workload, as result rows, and as what a predictor learns from it.

Nobody says which inferences of an agent wait for which. An inference follows those that had ended
when it was submitted; what passed since the last of them is tool time. For stages that follow each
other this is what the program does; where branches run side by side it ties them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.bench.live_recorder import RecordedApplication, RecordedInference
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import StagePosition, StageServed
from justitia_ray.cost import kv_token_time
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.sample import Sample
from justitia_ray.sim.results import ApplicationResult, InferenceResult, RunResult
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import InferenceId, Seconds
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.play import ApplicationRecord


@dataclass(frozen=True, slots=True)
class PlayedApplication:
    """One application of a play: what was planned, what came of it, what was recorded."""

    planned: PlannedApplication
    record: ApplicationRecord
    recorded: RecordedApplication | None
    """None: it was never opened."""

    @property
    def name(self) -> str:
        """Its name in result files: its place in the load, the same in every arm."""
        return f"a{self.planned.number:03d}"

    @property
    def inferences(self) -> list[RecordedInference]:
        """Its inferences in the order of their submission."""
        rows = [] if self.recorded is None else self.recorded.inferences
        return sorted(rows, key=lambda row: (row.submitted_at_s, row.finished_at_s))

    @property
    def is_whole(self) -> bool:
        """Whether it completed and all of it was recorded."""
        return (
            self.record.outcome == "completed"
            and 0 < len(self.inferences) == self.record.inferences
        )


def as_workload(
    played: Sequence[PlayedApplication], call_latency_s: Seconds = 0.0
) -> list[WorkloadApplication]:
    """Return what was played, for the simulator: same arrivals, sizes, order and tool times.

    Args:
        played: Those that are not whole are left out.
        call_latency_s: Of each call, outside queue and engine; the simulator has no such thing, so
            that it is put before the submission.
    """
    return [_workload_application(one, call_latency_s) for one in played if one.is_whole]


def as_result(
    played: Sequence[PlayedApplication], kv_utilization: float | None, preemptions: int
) -> RunResult:
    """Return the rows of a play, as a simulation has them."""
    result = RunResult(kv_utilization=kv_utilization, preemptions=preemptions)
    for one in played:
        record, recorded = one.record, one.recorded
        is_done = record.outcome == "completed"
        rows = one.inferences
        result.applications.append(
            ApplicationResult(
                application_id=one.name,
                application_class=record.application_class,
                tenant=record.tenant,
                arrived_at_s=record.arrived_at_s,
                finished_at_s=record.finished_at_s if is_done else None,
                jct_s=record.jct_s if is_done else None,
                kv_token_time=sum(kv_token_time(r.prompt_tokens, r.output_tokens) for r in rows),
                predicted_kv_token_time=0.0
                if recorded is None
                else recorded.predicted_kv_token_time,
                virtual_finish_time=None,
                gps_finished_at_s=None,
                outcome=(Outcome.FINISHED if is_done else Outcome.FAILED).value,
            )
        )
        result.inferences += [_row(one.name, number, row) for number, row in enumerate(rows)]
        if recorded is not None and recorded.lateness is not None:
            result.lateness[one.name] = recorded.lateness
    ends = [a.finished_at_s for a in result.applications if a.finished_at_s is not None]
    if ends:
        result.makespan_s = max(ends) - min(a.arrived_at_s for a in result.applications)
    return result


def as_history(played: Sequence[PlayedApplication]) -> list[Observation]:
    """Return what a predictor learns of those that are whole: costs by class and stage, no texts.

    Without features of the input no models are trained of it: predictions are the class's.
    """
    return [_observation(one) for one in played if one.is_whole]


def _workload_application(one: PlayedApplication, latency_s: Seconds) -> WorkloadApplication:
    rows = one.inferences
    inferences = []
    for number, row in enumerate(rows):
        before = _predecessors(rows, number)
        since = max((rows[i].finished_at_s for i in before), default=one.record.arrived_at_s)
        inferences.append(
            WorkloadInference(
                _name(number),
                row.prompt_tokens,
                row.output_tokens,
                tuple(_name(i) for i in before),
                max(0.0, row.submitted_at_s - since) + latency_s,
            )
        )
    return WorkloadApplication(
        one.name,
        one.record.application_class,
        one.record.arrived_at_s,
        tuple(inferences),
        one.record.tenant,
    )


def _predecessors(rows: Sequence[RecordedInference], number: int) -> list[int]:
    """Return those that had ended when one was submitted, less those that others of them follow."""
    at = rows[number].submitted_at_s
    ended = [i for i in range(number) if rows[i].finished_at_s <= at]
    latest_start = max((rows[i].submitted_at_s for i in ended), default=at)
    return [i for i in ended if rows[i].finished_at_s > latest_start]


def _row(application_id: str, number: int, row: RecordedInference) -> InferenceResult:
    return InferenceResult(
        application_id=application_id,
        inference_id=_name(number),
        replica=row.replica,
        submitted_at_s=row.submitted_at_s,
        dispatched_at_s=row.submitted_at_s + row.waited_s,
        first_token_at_s=None,
        finished_at_s=row.finished_at_s,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
    )


def _observation(one: PlayedApplication) -> Observation:
    rows = one.inferences
    position, members = StagePosition(), list[list[RecordedInference]]()
    for kind, number in _happenings(rows):
        if kind == "submit":
            stage = position.submit()
            while len(members) <= stage:
                members.append([])
            members[stage].append(rows[number])
        else:
            position.finish(_stage_of(members, rows[number]))
    calls = [(row.prompt_tokens, row.output_tokens) for row in rows]
    sample = Sample(
        float(sum(kv_token_time(p, d) for p, d in calls)),
        len(calls),
        sum(d for _, d in calls),
        None,
    )
    return Observation(one.record.application_class, sample, tuple(map(_served, members)))


def _happenings(rows: Sequence[RecordedInference]) -> list[tuple[str, int]]:
    """Return submissions and ends in the order of time; an end comes before what follows it."""
    moments = [(row.submitted_at_s, 1, "submit", i) for i, row in enumerate(rows)]
    moments += [(row.finished_at_s, 0, "finish", i) for i, row in enumerate(rows)]
    return [(kind, number) for _, _, kind, number in sorted(moments)]


def _stage_of(members: Sequence[Sequence[RecordedInference]], row: RecordedInference) -> int:
    return next(stage for stage, rows in enumerate(members) if any(r is row for r in rows))


def _served(rows: Sequence[RecordedInference]) -> StageServed:
    return StageServed(
        len(rows),
        len(rows),
        sum(row.prompt_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        float(sum(kv_token_time(row.prompt_tokens, row.output_tokens) for row in rows)),
    )


def _name(number: int) -> InferenceId:
    return str(number)
