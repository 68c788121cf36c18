"""The benchmark of the console's cost, with a plan of a second."""

import pytest

from scripts.bench.console import Reading, measure
from scripts.bench_console import report


@pytest.mark.slow
async def test_cost_of_the_console_is_computed_from_pairs_of_windows() -> None:
    [reading] = await measure(applications=20, replicas=2, tenants=1, window_s=0.3, repeats=1)

    assert reading.applications == 20
    assert reading.frames_per_s > 0
    assert reading.whole_bytes > 1_000


def test_report_compares_the_cost_of_the_console_with_the_target() -> None:
    reading = Reading(1_000, 700, 0, 128.0, 0.10, 0.16, 0.05, 1.0, 90_000, 150_000)
    dear = Reading(1_000, 700, 0, 128.0, 0.10, 0.25, 0.15, 1.0, 90_000, 150_000)

    assert "Console: 5.0% of a core [5.0%, 5.0%]; at most 10%: met." in report([reading])
    assert "15.0% of a core [15.0%, 15.0%]; at most 10%: MISSED." in report([dear])
