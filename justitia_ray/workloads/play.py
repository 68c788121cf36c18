"""Playing a load against a live service."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from justitia_ray.client import JustitiaClient
from justitia_ray.units import ApplicationId, Seconds, Tokens
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.steps import CallMade
from justitia_ray.workloads.table import WORKLOADS


@dataclass(frozen=True, slots=True)
class ApplicationRecord:
    """What became of one application. Instants are seconds from the start of the load."""

    application_id: ApplicationId | None
    """The service's id for it; None if it was never opened."""
    application_class: str
    tenant: str
    arrived_at_s: Seconds
    """When the plan had it arrive. When it was sent would flatter the service if that is late."""
    finished_at_s: Seconds
    jct_s: Seconds
    """Completion time, `finished_at_s - arrived_at_s`."""
    outcome: Literal["completed", "failed"]
    inferences: int
    """Inferences answered."""
    output_tokens: Tokens
    """Output tokens of those."""
    error: str | None
    """What it failed of."""
    calls: tuple[CallMade, ...] = ()
    """Its inferences as the service counted them; none if it failed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load has come."""

    total: int
    arrived: int
    completed: int
    failed: int


async def play(
    applications: Sequence[PlannedApplication],
    client: JustitiaClient,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], Seconds] = time.monotonic,
    sleep: Callable[[Seconds], Awaitable[None]] = asyncio.sleep,
) -> list[ApplicationRecord]:
    """Run the applications, each from its instant of arrival, and return their records in order.

    The load is open: nothing waits for the service, and an application that fails is recorded as
    failed and stops no other.

    Args:
        applications: The load.
        client: The client to play it with.
        on_progress: Called after every arrival and every end.
        clock: Tells the time in seconds.
        sleep: Waits that many seconds.
    """
    player = _Player(client, len(applications), on_progress, clock, sleep)
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(player.run(planned)) for planned in applications]
    return [run.result() for run in runs]


class _Player:
    def __init__(
        self,
        client: JustitiaClient,
        total: int,
        on_progress: Callable[[Progress], None] | None,
        clock: Callable[[], Seconds],
        sleep: Callable[[Seconds], Awaitable[None]],
    ) -> None:
        self._client = client
        self._total = total
        self._on_progress = on_progress
        self._clock = clock
        self._sleep = sleep
        self._started_at = clock()
        self._arrived = 0
        self._ended = {"completed": 0, "failed": 0}

    async def run(self, planned: PlannedApplication) -> ApplicationRecord:
        await self._sleep(max(0.0, planned.arrived_at_s - self._now_s()))
        self._arrived += 1
        self._tell()
        record = await self._record(planned)
        self._ended[record.outcome] += 1
        self._tell()
        return record

    async def _record(self, planned: PlannedApplication) -> ApplicationRecord:
        app, error = None, None
        calls: tuple[CallMade, ...] = ()
        try:
            app = self._client.application(
                planned.application_class, input=planned.text, tenant=planned.tenant
            )
            async with app:
                run = WORKLOADS[planned.application_class]
                calls = (await run(app, planned.text, planned.lengths)).calls
                finished_at_s = self._now_s()
        except Exception as failure:
            # Whatever an agent fails of is its own matter: the rest of the load must not stop.
            error, finished_at_s = f"{type(failure).__name__}: {failure}", self._now_s()
        return ApplicationRecord(
            application_id=app.application_id if app and app.was_opened else None,
            application_class=planned.application_class,
            tenant=planned.tenant,
            arrived_at_s=planned.arrived_at_s,
            finished_at_s=finished_at_s,
            jct_s=finished_at_s - planned.arrived_at_s,
            outcome="completed" if error is None else "failed",
            inferences=app.inferences if app else 0,
            output_tokens=app.output_tokens if app else 0,
            error=error,
            calls=calls,
        )

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    self._total, self._arrived, self._ended["completed"], self._ended["failed"]
                )
            )

    def _now_s(self) -> Seconds:
        return self._clock() - self._started_at
