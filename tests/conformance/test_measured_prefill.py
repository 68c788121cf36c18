"""The cost of prefill of a real engine, from the service's own measurement to the scheduler."""

from math import isfinite

import pytest

from justitia_ray import __version__
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.protocol.engine import Engine, EngineCapacity
from justitia_ray.serve.replica.prefill_plan import measure_prefill
from tests.conformance.conftest import VLLM_ONLY
from tests.core_driver import PATIENT, CoreDriver

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("started", VLLM_ONLY, indirect=True),
]

_ATTEMPTS = 4
"""Number of measurements of which one must succeed: on busy cores the times may be inconsistent."""


async def _measure(engine: Engine, capacity: EngineCapacity) -> MeasuredPrefill:
    for _ in range(_ATTEMPTS):
        measured = await measure_prefill(engine, capacity, "tiny")
        if measured is not None:
            return measured
    pytest.skip("the cores are too busy to measure times")


def _new_core(prefix: str) -> SchedulerCore:
    return SchedulerCore(timeouts=PATIENT, lease_prefix=prefix, measures_prefill=True)


async def test_first_measured_prefill_cost_applies_to_later_replicas(
    engine: Engine, capacity: EngineCapacity
) -> None:
    """Later replicas and restarts must not change the cost by which tenants are charged."""
    first = await _measure(engine, capacity)
    assert first.release == __version__
    assert isfinite(first.cost.per_token)
    assert first.cost.per_token > 0
    assert isfinite(first.cost.per_pair)
    assert first.cost.per_pair >= 0

    driver = CoreDriver(_new_core("1-"))
    driver.handle(ev.PrefillMeasured(*first))
    second = await _measure(engine, capacity)
    driver.handle(ev.PrefillMeasured(*second))
    assert driver.core.state.prefill_cost == first.cost

    driver.hand_over(_new_core("2-"))
    driver.handle(ev.PrefillMeasured(*second))
    assert driver.core.state.prefill_cost == first.cost
