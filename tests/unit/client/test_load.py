"""An open load: who starts when, and what becomes of the others."""

import asyncio

from justitia_ray.client.load import LoadClock, LoadProgress, play_load
from tests.harness.simulation.virtual_loop import run_virtually

ARRIVALS = {"slow": 0.0, "late": 2.5}


async def run(name: str, clock: LoadClock) -> tuple[str, float, float]:
    """Take 10 s, or 1 s; return when that began and when it ended."""
    began_s = clock.now_s()
    await clock.wait_until(began_s + (10.0 if name == "slow" else 1.0))
    return name, began_s, clock.now_s()


def play(progress: list[LoadProgress]) -> list[tuple[str, float, float]]:
    """Play both in virtual time; what ends after 5 s has failed."""

    async def main() -> list[tuple[str, float, float]]:
        return await play_load(
            list(ARRIVALS),
            run,
            arrived_at_s=ARRIVALS.__getitem__,
            has_failed=lambda result: result[2] > 5.0,
            on_progress=progress.append,
        )

    return run_virtually(main())


def test_an_application_waits_for_its_instant_and_for_nobody_else() -> None:
    """A closed loop would send less to a slow service, and flatter it."""
    assert [("slow", 0.0, 10.0), ("late", 2.5, 3.5)] == play([])


def test_progress_is_told_at_every_arrival_and_every_end() -> None:
    """A person in front of a terminal sees that something happens."""
    progress: list[LoadProgress] = []
    play(progress)

    assert [
        LoadProgress(2, arrived=1),
        LoadProgress(2, arrived=2),
        LoadProgress(2, arrived=2, ended=1),
        LoadProgress(2, arrived=2, ended=2, failed=1),
    ] == progress


def test_an_instant_that_has_passed_is_not_waited_for() -> None:
    """A stalled player sends at once what is late."""

    async def main() -> float:
        clock = LoadClock()
        await asyncio.sleep(3.0)
        await clock.wait_until(1.0)
        return clock.now_s()

    assert 3.0 == run_virtually(main())
