"""A simulated run in which an autoscaler changes the number of replicas, which load and drain.

A started replica loads before it serves. A replica that is to stop drains: it gets no new work and
stops when it is empty. Loading replicas are stopped first, then the newest, as Ray Serve does. A
replica costs from its start until it has stopped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import KvTokenTime, Seconds


@dataclass(frozen=True, slots=True)
class FleetView:
    """State of the simulated replicas in the form in which an autoscaler sees it."""

    now: Seconds
    core: SchedulerCore
    running: int
    """Number of replicas that serve."""
    target: int
    """Number of replicas that the last decision requested."""
    requests: int
    """Number of waiting and running inferences."""


class Autoscaler(Protocol):
    """Decides the number of simulated replicas."""

    def target(self, view: FleetView) -> int: ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    replicas: int

    def target(self, view: FleetView) -> int:
        return self.replicas


@dataclass(frozen=True, slots=True)
class FleetReading:
    """Number and load of the replicas at one decision of the autoscaler."""

    at: Seconds
    target: int
    running: int
    true_work: KvTokenTime
    """Remaining work of the live applications by their true costs, in KV token·iterations."""


@dataclass(slots=True)
class ScaledRun:
    """Result of a run with a changing number of replicas."""

    result: RunResult
    replica_s: Seconds = 0.0
    """Sum of the replicas' lifetimes in seconds."""
    readings: list[FleetReading] = field(default_factory=list)
    """State of the replicas at each decision of the autoscaler."""


class AutoscaledSimulation(Simulation):
    """A simulated run with a changing number of replicas; it can be run once."""

    def __init__(
        self,
        applications: Sequence[WorkloadApplication],
        settings: RunSettings,
        autoscaler: Autoscaler,
        *,
        load_s: Seconds,
        initial: int,
        every_s: Seconds = 1.0,
    ) -> None:
        """Create a simulated run with a changing number of replicas.

        Args:
            applications: The workload.
            settings: Settings of the run; `replicas` is the largest number at once, including
                draining replicas.
            autoscaler: Returns the target number of replicas at every decision.
            load_s: Time that a replica takes to load.
            initial: Number of replicas that serve from the start.
            every_s: Time between two decisions.
        """
        super().__init__(applications, settings)
        self._autoscaler = autoscaler
        self._load_s = load_s
        self._every_s = every_s
        self._decides_at: Seconds = 0.0
        self._target = initial
        self._serving = list(range(initial))
        self._loading: list[tuple[Seconds, int]] = []
        """Time at which each loading replica will serve, with the replica's index."""
        self._draining: list[int] = []
        self._free = list(range(settings.replicas - 1, initial - 1, -1))
        self._since: dict[int, Seconds] = dict.fromkeys(self._serving, 0.0)
        for index in self._free:
            self._gate.closed.add(index)
            self._idle.discard(index)
            self._link.handle(ev.ReplicaLost(str(index)), 0.0)
        self._scaled = ScaledRun(self._result)

    def run_scaled(self) -> ScaledRun:
        self.run(lambda ended: None)
        first_at = min((one.arrived_at_s for one in self._applications), default=0.0)
        end_at = first_at + self._result.makespan_s
        for since in self._since.values():
            self._scaled.replica_s += max(0.0, end_at - since)
        return self._scaled

    def _next_step_due_at(self) -> Seconds:
        due = super()._next_step_due_at()
        if self._link.ended == len(self._applications):
            return due
        ready = self._loading[0][0] if self._loading else math.inf
        return min(due, self._decides_at, ready)

    def _step(self, now: Seconds) -> None:
        while self._loading and self._loading[0][0] <= now:
            _, index = self._loading.pop(0)
            self._start_serving(index, now)
        if now >= self._decides_at:
            self._decide(now)
            self._decides_at = now + self._every_s
        super()._step(now)
        for index in [one for one in self._draining if self._is_done(one)]:
            self._draining.remove(index)
            self._link.handle(ev.ReplicaLost(str(index)), now)
            self._remove_drained_replica(index, now)

    def _decide(self, now: Seconds) -> None:
        state = self._core.state
        running = len(self._serving)
        view = FleetView(now, self._core, running, self._target, len(state.inferences))
        self._target = self._autoscaler.target(view)
        true_work = sum(
            max(0, (one.true_kv_token_time or 0) - one.kv_token_time)
            for one in state.applications.values()
        )
        self._scaled.readings.append(FleetReading(now, self._target, running, true_work))
        while len(self._serving) + len(self._loading) < self._target and self._free:
            index = self._free.pop()
            self._since[index] = now
            self._loading.append((now + self._load_s, index))
        while len(self._serving) + len(self._loading) > self._target:
            if self._loading:
                self._remove_drained_replica(self._loading.pop()[1], now)
            else:
                self._start_drain(self._serving.pop(), now)

    def _start_serving(self, index: int, now: Seconds) -> None:
        self._gate.closed.discard(index)
        self._servers[index].advance(now)
        self._idle.add(index)
        self._serving.append(index)
        server = self._servers[index]
        if self._send_granted(server, self._link.enter(server, now), now):
            server.start_iteration()
            self._set_next_times({index}, set(), now, others=True)

    def _start_drain(self, index: int, now: Seconds) -> None:
        self._gate.closed.add(index)
        self._tries.set(index, None)
        self._link.drain(self._servers[index], now)
        self._draining.append(index)

    def _is_done(self, index: int) -> bool:
        server = self._servers[index]
        return server.is_empty and not server.swapped

    def _remove_drained_replica(self, index: int, now: Seconds) -> None:
        self._idle.discard(index)
        self._scaled.replica_s += now - self._since.pop(index)
        self._free.insert(0, index)
