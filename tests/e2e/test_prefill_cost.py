"""The cost of prefill as measured on a real engine by the service's own plan."""

from math import isfinite
from typing import Any

import pytest

from justitia_ray import __version__
from tests.e2e.conftest import REPLACED_WITHIN_S
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import Service

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="session"),
]

_MOST_STARTS = 3
"""Number of replicas that may try to measure the prefill cost: on busy cores a measurement may
fail.
"""


async def _replace_replica(service: Service) -> dict[str, Any]:
    """Kill the replica, and return the status once its successor has measured and pulls."""
    (replica,) = await service.pulling_replicas()
    service.kill_replica(replica)
    return await service.until(
        lambda status: bool(set(status["replicas"]) - {replica}),
        "another replica pulls",
        REPLACED_WITHIN_S,
    )


async def test_measured_prefill_cost_of_a_real_engine_outlives_its_replica(
    measured: Service,
) -> None:
    """The first measured cost stays in force; later replicas do not change it."""
    status = await measured.status()
    for _ in range(_MOST_STARTS - 1):
        if status["prefill_cost"]["per_token"] is not None:
            break
        status = await _replace_replica(measured)
    cost = status["prefill_cost"]

    assert ("measured", __version__) == (cost["source"], cost["release"])
    assert all(isfinite(cost[name]) for name in ("per_token", "per_pair"))
    assert cost["per_token"] > 0
    assert cost["per_pair"] >= 0

    status = await _replace_replica(measured)
    assert cost == status["prefill_cost"]

    async with measured.http() as http:
        answer = await http.post(COMPLETIONS, json=completion("word " * 300, max_tokens=2))
    assert 200 == answer.status_code, answer.text
    charged = await measured.until(
        lambda status: status["prefill_token_time"] > 0, "the prompt is charged"
    )
    assert cost == charged["prefill_cost"]
