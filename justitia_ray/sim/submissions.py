"""What comes to the scheduler: applications when they arrive, inferences when they are due."""

import heapq
import math
from collections import deque
from collections.abc import Iterable

from justitia_ray.sim.front_end import FrontEnd
from justitia_ray.sim.inference_graph import InferenceGraph
from justitia_ray.sim.link import CoreLink
from justitia_ray.sim.results import InferenceResult
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds


class Submissions:
    """Arrivals in order, and inferences that follow on others or wait for a tool."""

    def __init__(
        self, applications: Iterable[WorkloadApplication], link: CoreLink, front_end: FrontEnd
    ) -> None:
        self._link = link
        self._front_end = front_end
        self._graph = InferenceGraph()
        self._arrivals = deque(sorted(applications, key=lambda a: a.arrived_at_s))
        self._opened = 0
        """How many of the first of them are open before the boundary that they wait for."""
        self._dues: list[tuple[Seconds, int, WorkloadApplication, WorkloadInference]] = []
        """When what is submitted; then in the order in which that was known."""
        self._dues_known = 0
        self._passing: deque[tuple[Seconds, Seconds, WorkloadApplication, WorkloadInference]]
        """When who is through the front end, in order, and since when it was due."""
        self._passing = deque()

    def next_at(self) -> Seconds:
        """Return when something comes next; inf if nothing does."""
        return min(self._next_arrival(), self._next_due(), self._next_passed())

    def take(self, now: Seconds) -> None:
        """Submit what is due by now, in the order of time; arrivals first."""
        while (arrival_at := self._next_arrival()) <= now or self._next_due() <= now:
            if arrival_at <= self._next_due():
                self._arrive(now)
            else:
                due_at, _, application, inference = heapq.heappop(self._dues)
                self._send(application, inference, due_at, now)
        while self._next_passed() <= now:
            _, due_at, application, inference = self._passing.popleft()
            self._link.submit(application, inference, due_at, now)

    def open_on_time(self, now: Seconds) -> None:
        """Open applications at their instants: the nominal clock goes by those."""
        for application in self._arrivals:
            if application.arrived_at_s > now:
                return
            self._link.arrive(application, application.arrived_at_s)
            self._opened += 1

    def follow(self, finished: InferenceResult, now: Seconds) -> None:
        """Submit what waited for an inference that has finished, or have it due after its delay."""
        answered_at = self._front_end.passed_at(now)
        following = self._graph.finish(finished.application_id, finished.inference_id)
        for application, inference in following:
            self._submit_after(answered_at, application, inference, now)

    def _arrive(self, now: Seconds) -> None:
        application = self._arrivals.popleft()
        if self._opened:
            self._opened -= 1
        else:
            self._link.arrive(application, now)
        for root in self._graph.arrive(application):
            self._submit_after(application.arrived_at_s, application, root, now)

    def _submit_after(
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
            self._send(application, inference, since, now)

    def _send(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        due_at: Seconds,
        now: Seconds,
    ) -> None:
        """Submit an inference that is due, through the front end if there is one."""
        through_at = self._front_end.passed_at(now)
        if through_at > now:
            self._passing.append((through_at, due_at, application, inference))
        else:
            self._link.submit(application, inference, due_at, now)

    def _next_arrival(self) -> Seconds:
        return self._arrivals[0].arrived_at_s if self._arrivals else math.inf

    def _next_due(self) -> Seconds:
        return self._dues[0][0] if self._dues else math.inf

    def _next_passed(self) -> Seconds:
        return self._passing[0][0] if self._passing else math.inf
