"""Submissions to the scheduler: applications when they arrive, inferences when they are due."""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from graphlib import TopologicalSorter

from justitia_ray.sim.core_link import CoreLink
from justitia_ray.sim.results import InferenceResult
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, Seconds


class FrontEnd:
    """Front end that every call passes, one at a time, to the engines and back.

    Args:
        takes_s: Time for which a call occupies the front end, in each direction; 0: calls pass at
            once.
    """

    def __init__(self, takes_s: Seconds = 0.0) -> None:
        self._takes_s = takes_s
        self._free_at: Seconds = 0.0
        self._passed = 0
        self._passing_s: Seconds = 0.0

    def time_through_front_end(self, now: Seconds) -> Seconds:
        """Queue a call in the front end; return the time at which it has passed."""
        self._free_at = max(now, self._free_at) + self._takes_s
        self._passed += 1
        self._passing_s += self._free_at - now
        return self._free_at

    @property
    def mean_s(self) -> Seconds:
        """Mean time in seconds that calls took to pass."""
        return self._passing_s / self._passed if self._passed else 0.0


class InferenceGraph:
    """Dependencies of arrived applications, from which inferences become ready."""

    def __init__(self) -> None:
        self._open: dict[
            ApplicationId,
            tuple[
                TopologicalSorter[InferenceId],
                dict[InferenceId, tuple[WorkloadApplication, WorkloadInference]],
            ],
        ] = {}

    def arrive(self, application: WorkloadApplication) -> list[WorkloadInference]:
        """Return the inferences of an application that wait for no other inference."""
        roots = [inference for inference in application.inferences if not inference.after]
        if len(roots) < len(application.inferences):
            order = TopologicalSorter({i.inference_id: i.after for i in application.inferences})
            order.prepare()
            order.get_ready()
            by_id = {i.inference_id: (application, i) for i in application.inferences}
            self._open[application.application_id] = (order, by_id)
        return roots

    def finish(
        self, application_id: ApplicationId, inference_id: InferenceId
    ) -> list[tuple[WorkloadApplication, WorkloadInference]]:
        """Return the inferences that waited only for a given inference."""
        if application_id not in self._open:
            return []
        order, by_id = self._open[application_id]
        order.done(inference_id)
        ready = [by_id[name] for name in order.get_ready()]
        if not order.is_active():
            del self._open[application_id]
        return ready


class Submissions:
    """Submits the inferences of a workload when they are due."""

    def __init__(
        self, applications: Iterable[WorkloadApplication], link: CoreLink, front_end: FrontEnd
    ) -> None:
        self._link = link
        self._front_end = front_end
        self._graph = InferenceGraph()
        self._arrivals = deque(sorted(applications, key=lambda a: a.arrived_at_s))
        self._opened = 0
        self._dues: list[tuple[Seconds, int, WorkloadApplication, WorkloadInference]] = []
        self._dues_known = 0
        self._passing: deque[tuple[Seconds, Seconds, WorkloadApplication, WorkloadInference]]
        self._passing = deque()

    def next_at(self) -> Seconds:
        """Return the time of the next submission; inf if there is none."""
        return min(
            self._next_arrival_at(), self._next_due_at(), self._next_passage_through_front_end()
        )

    def submit_all_due(self, now: Seconds) -> None:
        """Submit all inferences that are due by `now`, in order of time.

        At equal times arrivals first.
        """
        while (arrival_at := self._next_arrival_at()) <= now or self._next_due_at() <= now:
            if arrival_at <= self._next_due_at():
                self._submit_arrivals(now)
            else:
                due_at, _, application, inference = heapq.heappop(self._dues)
                self._submit_via_front_end(application, inference, due_at, now)
        while self._next_passage_through_front_end() <= now:
            _, due_at, application, inference = self._passing.popleft()
            self._link.submit(application, inference, due_at, now)

    def open_on_time(self, now: Seconds) -> None:
        """Open applications exactly at their arrival times."""
        for application in self._arrivals:
            if application.arrived_at_s > now:
                return
            self._link.arrive(application, application.arrived_at_s)
            self._opened += 1

    def submit_successors(self, finished: InferenceResult, now: Seconds) -> None:
        """Submit the successors of a finished inference, at once or after a delay."""
        answered_at = self._front_end.time_through_front_end(now)
        following = self._graph.finish(finished.application_id, finished.inference_id)
        for application, inference in following:
            self._submit_after_delay(answered_at, application, inference, now)

    def _submit_arrivals(self, now: Seconds) -> None:
        application = self._arrivals.popleft()
        if self._opened:
            self._opened -= 1
        else:
            self._link.arrive(application, now)
        for root in self._graph.arrive(application):
            self._submit_after_delay(application.arrived_at_s, application, root, now)

    def _submit_after_delay(
        self,
        since: Seconds,
        application: WorkloadApplication,
        inference: WorkloadInference,
        now: Seconds,
    ) -> None:
        if inference.delay_s or since > now:
            self._dues_known += 1
            due_at = since + inference.delay_s
            heapq.heappush(self._dues, (due_at, self._dues_known, application, inference))
        else:
            self._submit_via_front_end(application, inference, since, now)

    def _submit_via_front_end(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        due_at: Seconds,
        now: Seconds,
    ) -> None:
        through_at = self._front_end.time_through_front_end(now)
        if through_at > now:
            self._passing.append((through_at, due_at, application, inference))
        else:
            self._link.submit(application, inference, due_at, now)

    def _next_arrival_at(self) -> Seconds:
        return self._arrivals[0].arrived_at_s if self._arrivals else math.inf

    def _next_due_at(self) -> Seconds:
        return self._dues[0][0] if self._dues else math.inf

    def _next_passage_through_front_end(self) -> Seconds:
        return self._passing[0][0] if self._passing else math.inf
