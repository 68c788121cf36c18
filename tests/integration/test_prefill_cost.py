"""A cost of prefill, live: tenants that hit the cache and that miss it get equal service."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import httpx
import pytest
import pytest_asyncio

from justitia_ray.cost import kv_token_time
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_PROMPT, _OUTPUT, _PRICE, _SEATS = 320, 8, 24, 2
_AT_ONCE = 4
"""Calls that each tenant keeps outstanding: both always wait."""
_CALLS = 60
"""Calls of the tenant that always misses."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with a cost of prefill, and equal shares of two tenants."""
    fake = {
        "kv_tokens": 4_096,
        "block_size": 16,
        "max_model_len": 2_048,
        "max_num_seqs": _SEATS,
        "iteration_s": 0.004,
        "prefill_s_per_token": 1e-4,
    }
    async with serving.deployed_service(
        "prefill",
        replicas=1,
        engine={"kind": "fake", "fake": fake, "prefill_cost": {"per_token": _PRICE}},
        scheduler={"cost": "with_prefill"},
        user_config={"policy_options": {"fairness": "tenant"}},
    ) as service:
        yield service


async def _served(http: httpx.AsyncClient, tenant: str) -> tuple[float, float]:
    """Return a tenant's KV token-time and prefill so far."""
    answer = await http.get("/v1/usage", params={"tenant": tenant})
    rows = answer.json()["data"]
    return (
        sum(row["kv_token_time"] for row in rows),
        sum(row["prefill_token_time"] for row in rows),
    )


async def test_tenant_that_never_hits_gets_the_service_of_one_that_always_does(
    service: Service,
) -> None:
    """Equal weights: fewer calls for the tenant whose prompts are computed, equal service."""
    numbers = count()

    async def call(http: httpx.AsyncClient, tenant: str) -> None:
        own = f"{next(numbers)} " if tenant == "miss" else ""
        body = completion(own + "word " * (_PROMPT - len(own.split())), max_tokens=_OUTPUT)
        answer = await http.post(COMPLETIONS, json=body, headers={"x-justitia-tenant": tenant})
        assert answer.status_code == 200, answer.text

    async with service.http() as http:
        await call(http, "hit")

        async def prompts_are_cached() -> bool:
            before = await _served(http, "hit")
            await call(http, "hit")
            after = await _served(http, "hit")
            return after[1] - before[1] < _PRICE * _PROMPT / 4

        await eventually(prompts_are_cached, "a repeated prompt is found", 60.0)
        begun = {tenant: await _served(http, tenant) for tenant in ("hit", "miss")}
        left, is_over = iter(range(_CALLS)), asyncio.Event()

        async def misses() -> None:
            for _ in left:
                await call(http, "miss")
            is_over.set()

        async def hits() -> None:
            while not is_over.is_set():
                await call(http, "hit")

        await asyncio.gather(*(work() for work in (misses, hits) for _ in range(_AT_ONCE)))
        ended = {tenant: await _served(http, tenant) for tenant in ("hit", "miss")}
    (hit, cheap), (miss, dear) = (
        [after - before for after, before in zip(ended[name], begun[name], strict=True)]
        for name in ("hit", "miss")
    )
    most = kv_token_time(_PROMPT, _OUTPUT) + _PRICE * _PROMPT

    assert dear == pytest.approx(_CALLS * _PRICE * _PROMPT, rel=0.05)
    assert cheap < dear / 4
    assert abs(hit + cheap - miss - dear) <= (_SEATS + 2 * _AT_ONCE) * most
    assert hit > 1.5 * miss  # more calls for the same service
