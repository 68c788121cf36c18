"""Open loads: applications start at their instants, whatever becomes of those before them.

Nothing waits for the service but what follows on its answers, as with real users: a closed loop
would send less to a slow service, and flatter it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from justitia_ray.units import Seconds

Planned = TypeVar("Planned")
Played = TypeVar("Played")


class LoadClock:
    """Seconds since a load began, by the time of the event loop."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._began_at = self._time()

    def now_s(self) -> Seconds:
        """Return the seconds since the load began."""
        return self._time() - self._began_at

    async def wait_until(self, instant_s: Seconds) -> None:
        """Wait for an instant of the load; return at once if it has passed."""
        await asyncio.sleep(max(0.0, instant_s - self.now_s()))


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load, in applications."""

    total: int
    arrived: int = 0
    ended: int = 0
    """Failed ones included."""
    failed: int = 0


async def play_load(
    applications: Sequence[Planned],
    run: Callable[[Planned, LoadClock], Awaitable[Played]],
    *,
    arrived_at_s: Callable[[Planned], Seconds],
    has_failed: Callable[[Played], bool] = lambda _: False,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
) -> list[Played]:
    """Run the applications, each from its instant of arrival; return their results in order.

    Args:
        applications: The load.
        run: Runs one application to its end. It catches what must not stop the others: an exception
            of it ends the load.
        arrived_at_s: Returns when an application arrives, in seconds from the start of the load.
        has_failed: Tells failed results from others, for the progress.
        on_progress: Called after every arrival and every end.
    """
    load_clock = LoadClock()
    arrived = ended = failed = 0

    async def play_one(planned: Planned) -> Played:
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
        tasks = [group.create_task(play_one(planned)) for planned in applications]
    return [task.result() for task in tasks]
