"""How fast the machine is meanwhile: a fixed computation, in CPU time."""

import asyncio

import pytest

from justitia_ray.bench.machine_speed import MachineSpeed, fixed_computation


class Cpu:
    """CPU time that passes only in the computation."""

    def __init__(self, *took_s: float) -> None:
        self._took_s = list(took_s)
        self.now_s = 0.0

    def compute(self) -> None:
        """Take the next of the times."""
        self.now_s += self._took_s.pop(0)

    def time(self) -> float:
        """Return the CPU time so far."""
        return self.now_s


def test_speed_is_the_mean_without_the_slowest_tenth() -> None:
    """In those an interrupt was counted, or the first use of something."""
    cpu = Cpu(*[1.0] * 8, 3.0, 50.0)
    speed = MachineSpeed(cpu.compute, cpu.time)
    for _ in range(10):
        speed.sample()

    assert pytest.approx(11 / 9) == speed.computation_s


def test_play_that_was_too_short_for_a_sample_has_one() -> None:
    """A speed of nothing would make the model infinitely fast."""
    cpu = Cpu(2.0)

    assert MachineSpeed(cpu.compute, cpu.time).computation_s == 2.0


def test_watch_takes_samples_until_it_is_cancelled() -> None:
    """It runs beside a play and ends with it."""

    async def watched() -> int:
        samples = asyncio.Semaphore(0)
        watch = asyncio.create_task(MachineSpeed(samples.release).watch())
        async with asyncio.timeout(30):
            await samples.acquire()
            await samples.acquire()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        return 2

    assert 2 == asyncio.run(watched())


def test_computation_takes_time() -> None:
    """It is the yardstick: none at all would compare nothing."""
    assert MachineSpeed(fixed_computation).computation_s > 0
