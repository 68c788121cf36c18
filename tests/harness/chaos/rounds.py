"""Rounds of faults on a running application: the load during them, and its records."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from justitia_ray.client.transport import HandleTransport, Transport
from justitia_ray.config import AppConfig
from justitia_ray.units import Seconds
from tests.harness.answers import Answer
from tests.harness.chaos.callers import Callers
from tests.harness.chaos.connection_faults import ConnectionFaults
from tests.harness.chaos.faults import FaultInjector, InjectFault
from tests.harness.chaos.fleet_faults import FleetFaults, keep_sampling_fleet
from tests.harness.chaos.load import PlannedApplication
from tests.harness.chaos.plan import FaultKind, FaultRound
from tests.harness.chaos.records import EngineRun, InjectedFault, RunRecords, read_journal
from tests.harness.chaos.recovery import OVER_AFTER_S, is_over
from tests.harness.chaos.target import ChaosTarget, keep_sampling

_FROM_THE_MINIMUM = 0.5
"""Share of the rounds before which autoscaled replicas shrink to their smallest number."""
_REPLICAS = 2
"""Number of replicas that must be ready before a round begins, without autoscaling."""

Beside = Callable[[], Coroutine[Any, Any, None]]
"""Type of a coroutine function that makes further calls during each round."""
Told = Callable[[FaultRound, Sequence[InjectedFault], int], None]
"""Type of a callback that receives each round, its faults, and the number of calls open then."""


class FaultRounds:
    """Runs a load while faults are injected, one round of the plan after the other."""

    def __init__(
        self,
        target: ChaosTarget,
        http: Transport,
        load: Sequence[PlannedApplication],
        plan: Sequence[FaultRound],
        stopped_s: Seconds,
        more_ways: Mapping[FaultKind, InjectFault] | None = None,
    ) -> None:
        """Prepare the rounds; `run_rounds` makes the first call.

        Args:
            target: The running application.
            http: The way to it over HTTP.
            load: The applications of each round, and of the phase after the last one.
            plan: The rounds.
            stopped_s: How long a stopped process, a blocked port or a slow reader stays so.
            more_ways: For kinds of faults of what the application runs on.
        """
        self.target = target
        self.records = RunRecords()
        self.callers = Callers(
            http, HandleTransport(target.deployment_handle("Ingress")), self.records
        )
        self.fleet = FleetFaults(target)
        self._load = load
        self._plan = plan
        self._scaled = target.config.autoscaling
        connections = ConnectionFaults(target, self.callers, stopped_s)
        self.injector = FaultInjector(
            target,
            self.callers,
            self.records,
            load,
            stopped_s=stopped_s,
            more_ways={**connections.ways, **self.fleet.ways, **(more_ways or {})},
            replicas=_REPLICAS if self._scaled is None else self._scaled.min_replicas,
        )

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Record the states of the scheduler and the replicas during a `with` block."""
        sampling = [asyncio.create_task(keep_sampling(self.target, self.records))]
        if self._scaled is not None:
            fleet = keep_sampling_fleet(self.target, self.records)
            sampling.append(asyncio.create_task(fleet))
        try:
            yield
        finally:
            for task in sampling:
                task.cancel()
            await asyncio.gather(*sampling, return_exceptions=True)

    async def run_rounds(
        self,
        over_within_s: Seconds = OVER_AFTER_S,
        beside: Beside | None = None,
        told: Told | None = None,
    ) -> list[InjectedFault]:
        """Run the load and inject all faults; return the faults without a recovery in time.

        Args:
            over_within_s: How long a round waits for the recovery from its faults.
            beside: Makes more calls in each round.
            told: Called after each round.

        Returns:
            The faults from which the application had not recovered in that time.
        """
        late: list[InjectedFault] = []
        async with asyncio.TaskGroup() as group:
            for fault_round in self._plan:
                if self._scaled is not None and fault_round.draw < _FROM_THE_MINIMUM:
                    await self.fleet.wait_for_minimum()
                await self.injector.wait_until_ready(fault_round)
                group.create_task(
                    self.callers.run_applications(self._applications_of_phase(fault_round.number))
                )
                if beside is not None:
                    group.create_task(beside())
                await asyncio.sleep(fault_round.after_s)
                if self._scaled is not None:
                    await self.fleet.wait_for_several_replicas(fault_round)
                open_calls = self.callers.open_calls
                faults = await self.injector.inject_faults(fault_round)
                self.records.faults += faults
                over = await asyncio.gather(
                    *(self._recovers_in_time(one, over_within_s) for one in faults)
                )
                late += [fault for fault, is_so in zip(faults, over, strict=True) if not is_so]
                if told is not None:
                    told(fault_round, faults, open_calls)
            group.create_task(
                self.callers.run_applications(self._applications_of_phase(len(self._plan)))
            )
        return late

    def runs(self) -> list[EngineRun]:
        return read_journal(self.target.journal)

    def _applications_of_phase(self, phase: int) -> list[PlannedApplication]:
        return [planned for planned in self._load if planned.phase == phase]

    async def _recovers_in_time(self, fault: InjectedFault, within_s: Seconds) -> bool:
        """Wait for the recovery from a fault; return whether it came in time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if is_over(fault, self.records, await asyncio.to_thread(self.runs)):
                return True
            await asyncio.sleep(0.2)
        return False


def fake_answers(load: Sequence[PlannedApplication], config: AppConfig) -> dict[str, Answer]:
    """Return the fake engines' correct answer by inference name."""
    model, longest = config.model.name, config.engine.fake.max_model_len
    return {
        one.name: one.fake_answer(model, longest) for planned in load for one in planned.inferences
    }
