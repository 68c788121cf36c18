"""Readings of the machine's speed."""

import itertools

from justitia_ray.bench.speedometer import Speedometer


def test_readings_are_taken_while_it_is_entered() -> None:
    """One at once: also a short play has one. Instants are those of the caller's clock."""
    ticks = itertools.count(5)
    with Speedometer(lambda: float(next(ticks)), interval_s=60.0) as speedometer:
        pass

    [(at, cpu_s)] = speedometer.readings
    assert 5.0 == at
    assert cpu_s > 0
