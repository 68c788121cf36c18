"""Open loads: applications start at their planned times, whether or not earlier ones have ended.

As with real users, only calls that depend on earlier answers wait for the service. A load that
waits for each answer would send less to a slow service, and make the service look better.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from justitia_ray.units import Seconds

Planned = TypeVar("Planned")
Played = TypeVar("Played")


class LoadClock:
    """Clock of a load test: seconds since its start, by the event loop's clock."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._began_at = self._time()

    def now_s(self) -> Seconds:
        return self._time() - self._began_at

    async def wait_until(self, instant_s: Seconds) -> None:
        """Sleep until a time in seconds since the start of the load test."""
        await asyncio.sleep(max(0.0, instant_s - self.now_s()))


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load test, counted in applications."""

    total: int
    arrived: int = 0
    ended: int = 0
    """Number of applications that have ended, including failed ones."""
    failed: int = 0


async def play_load(
    applications: Sequence[Planned],
    run: Callable[[Planned, LoadClock], Awaitable[Played]],
    *,
    arrived_at_s: Callable[[Planned], Seconds],
    has_failed: Callable[[Played], bool] = lambda _: False,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
) -> list[Played]:
    """Run each application of a load test at its arrival time; return results in the plan's order.

    Args:
        applications: Applications of the load.
        run: Runs one application to its end. An exception raised by `run` ends the whole load, so
            `run` has to catch all errors that must not end the load.
        arrived_at_s: Returns when an application arrives, in seconds from the start of the load.
        has_failed: Returns whether a result is a failure; used for the progress.
        on_progress: Called after every arrival and every end of an application.
    """
    load_clock = LoadClock()
    arrived = ended = failed = 0

    async def run_at_arrival(planned: Planned) -> Played:
        nonlocal arrived, ended, failed
        await load_clock.wait_until(arrived_at_s(planned))
        arrived += 1
        on_progress(LoadProgress(len(applications), arrived, ended, failed))
        result = await run(planned, load_clock)
        ended += 1
        failed += has_failed(result)
        on_progress(LoadProgress(len(applications), arrived, ended, failed))
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_at_arrival(planned)) for planned in applications]
    return [task.result() for task in tasks]
