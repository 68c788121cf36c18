"""Open load: applications start at fixed times, independently of each other."""

import asyncio

from justitia_ray.client.load import LoadClock, LoadProgress, play_load
from tests.harness.simulation.virtual_loop import run_virtually

ARRIVALS = {"slow": 0.0, "late": 2.5}


async def run_application(name: str, clock: LoadClock) -> tuple[str, float, float]:
    began_s = clock.now_s()
    await clock.wait_until(began_s + (10.0 if name == "slow" else 1.0))
    return name, began_s, clock.now_s()


def play_two_applications(progress: list[LoadProgress]) -> list[tuple[str, float, float]]:
    """Run two applications in virtual time; one that ends after 5 s counts as failed."""

    async def play_all() -> list[tuple[str, float, float]]:
        return await play_load(
            list(ARRIVALS),
            run_application,
            arrived_at_s=ARRIVALS.__getitem__,
            has_failed=lambda result: result[2] > 5.0,
            on_progress=progress.append,
        )

    return run_virtually(play_all())


def test_application_starts_at_its_time_while_other_applications_run() -> None:
    """A load that waits for answers would send less to a slow service and make it look better."""
    assert [("slow", 0.0, 10.0), ("late", 2.5, 3.5)] == play_two_applications([])


def test_progress_is_reported_at_every_start_and_end() -> None:
    progress: list[LoadProgress] = []
    play_two_applications(progress)

    assert [
        LoadProgress(2, arrived=1),
        LoadProgress(2, arrived=2),
        LoadProgress(2, arrived=2, ended=1),
        LoadProgress(2, arrived=2, ended=2, failed=1),
    ] == progress


def test_application_whose_start_time_has_passed_starts_at_once() -> None:
    async def wait_too_late() -> float:
        clock = LoadClock()
        await asyncio.sleep(3.0)
        await clock.wait_until(1.0)
        return clock.now_s()

    assert 3.0 == run_virtually(wait_too_late())
