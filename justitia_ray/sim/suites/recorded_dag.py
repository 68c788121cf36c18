"""From a recorded run to inferences that wait for each other."""

from collections.abc import Iterable
from dataclasses import dataclass

from justitia_ray.sim.workload import WorkloadInference
from justitia_ray.units import InferenceId, Seconds, Tokens
from justitia_ray.workloads.recorded import RecordedRun, RecordedSubtask


def inferences_of(run: RecordedRun) -> tuple[WorkloadInference, ...]:
    """Return the inferences of a run, numbered `0`, `1`, … in the order of the record.

    A stage starts when the one before is done and `gap_s` seconds of tool time are over; its calls
    run side by side. Subtasks start when those they need are done, run their calls one after the
    other, then their tool; the next stage waits for all. Tool time after the last inference is
    nobody's wait and left out.
    """
    dag = _Dag()
    done = _Done((), 0.0)
    for stage in run.stages:
        start = _Done(done.after, done.delay_s + stage.gap_s)
        if stage.subtasks:
            done = dag.add_subtasks(stage.subtasks, start)
        else:
            done = _Done(tuple(dag.add(call, start) for call in stage.calls), 0.0)
    return tuple(dag.inferences)


@dataclass(frozen=True, slots=True)
class _Done:
    """An instant: so long after the last of some inferences, or after the arrival if of none."""

    after: tuple[InferenceId, ...]
    delay_s: Seconds


class _Dag:
    def __init__(self) -> None:
        self.inferences: list[WorkloadInference] = []
        self._lead_s: dict[InferenceId, dict[InferenceId, Seconds]] = {}
        """By inference, its ancestors and the tool time there is at least from their end to its
        submission."""

    def add(self, call: tuple[Tokens, Tokens], start: _Done) -> InferenceId:
        name = str(len(self.inferences))
        prompt_tokens, output_tokens = call
        self.inferences.append(
            WorkloadInference(
                name, prompt_tokens, output_tokens, start.after, round(start.delay_s, 6)
            )
        )
        return name

    def add_subtasks(self, subtasks: Iterable[RecordedSubtask], start: _Done) -> _Done:
        ends: list[_Done] = []
        for subtask in subtasks:
            at = self._latest([ends[i] for i in subtask.needs]) if subtask.needs else start
            for call in subtask.calls:
                name = self.add(call, at)
                self._lead_s[name] = self._leads(at)
                at = _Done((name,), 0.0)
            ends.append(_Done(at.after, at.delay_s + subtask.exec_s))
        return self._latest(ends)

    def _leads(self, at: _Done) -> dict[InferenceId, Seconds]:
        leads = dict.fromkeys(at.after, at.delay_s)
        for name in at.after:
            for ancestor, lead_s in self._lead_s.get(name, {}).items():
                leads[ancestor] = max(leads.get(ancestor, 0.0), lead_s + at.delay_s)
        return leads

    def _latest(self, ends: list[_Done]) -> _Done:
        """Return the last of several instants, as far as `after` and one delay can say it.

        An inference that another one of them waited for is implied; what of its delay may then be
        still to come is kept. Where delays differ, the longest counts from the last end: the format
        has one delay for all, and an inference must not be submitted too early.
        """
        delays: dict[InferenceId, Seconds] = {}
        delay_s = max((end.delay_s for end in ends if not end.after), default=0.0)
        for end in ends:
            for name in end.after:
                delays[name] = max(delays.get(name, 0.0), end.delay_s)
        last: list[InferenceId] = []
        for name, own_s in delays.items():
            leads = [self._lead_s[other][name] for other in delays if self._waits(other, name)]
            if not leads:
                last.append(name)
            delay_s = max(delay_s, own_s - max(leads, default=0.0))
        return _Done(tuple(last), delay_s)

    def _waits(self, inference: InferenceId, ancestor: InferenceId) -> bool:
        return ancestor in self._lead_s.get(inference, {})
