"""The scheduler's clock: its own stalls are nobody's silence."""

import pytest

from justitia_ray.serve.steady_clock import SteadyClock


class Monotonic:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_clock_runs_with_the_process() -> None:
    """Deadlines come when they are due as long as the loop turns."""
    monotonic = Monotonic()
    clock = SteadyClock(monotonic)
    before = clock.now()
    for _ in range(50):
        monotonic.at += 0.2
        clock.beat()

    assert clock.now() - before == pytest.approx(10.0)
    assert clock.stalled_s == 0


def test_time_of_a_stall_is_left_out() -> None:
    """After 30 s of standing still no replica may be taken for silent for 30 s."""
    monotonic = Monotonic()
    clock = SteadyClock(monotonic)
    before = clock.now()
    monotonic.at += 30.0

    assert clock.now() - before == pytest.approx(0.2)
    monotonic.at += 0.5
    assert clock.now() - before == pytest.approx(0.7)
    assert clock.stalled_s == pytest.approx(29.8)


def test_clock_never_falls() -> None:
    """The core takes an earlier instant for the last one, but deadlines would come late."""
    monotonic = Monotonic()
    clock = SteadyClock(monotonic)
    readings = []
    for gap in (0.1, 1.19, 1.3, 0.0, 5.0, 0.2):
        monotonic.at += gap
        readings.append(clock.now())

    assert readings == sorted(readings)
