"""Which inferences may be submitted when others have finished."""

from collections.abc import Iterable

from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId


class InferenceGraph:
    """Counts open predecessors of the inferences of applications that have arrived."""

    def __init__(self) -> None:
        self._applications: dict[ApplicationId, WorkloadApplication] = {}
        self._open: dict[ApplicationId, dict[InferenceId, int]] = {}
        self._successors: dict[ApplicationId, dict[InferenceId, list[WorkloadInference]]] = {}

    def arrive(self, application: WorkloadApplication) -> Iterable[WorkloadInference]:
        """Return the inferences that wait for no other, in order."""
        name = application.application_id
        roots = [inference for inference in application.inferences if not inference.after]
        if len(roots) == len(application.inferences):
            return roots
        self._applications[name] = application
        self._open[name] = {i.inference_id: len(set(i.after)) for i in application.inferences}
        successors = self._successors[name] = {i.inference_id: [] for i in application.inferences}
        for inference in application.inferences:
            for predecessor in dict.fromkeys(inference.after):
                successors[predecessor].append(inference)
        return roots

    def finish(
        self, application_id: ApplicationId, inference_id: InferenceId
    ) -> list[tuple[WorkloadApplication, WorkloadInference]]:
        """Return the inferences whose last open predecessor this was, in order."""
        application = self._applications.get(application_id)
        if application is None:
            return []
        still_open, ready = self._open[application_id], []
        for successor in self._successors[application_id].pop(inference_id):
            still_open[successor.inference_id] -= 1
            if still_open[successor.inference_id] == 0:
                ready.append((application, successor))
        if not self._successors[application_id]:
            for table in (self._applications, self._open, self._successors):
                del table[application_id]
        return ready
