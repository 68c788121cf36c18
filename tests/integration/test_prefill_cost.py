"""A cost of prefill, live: tenants that hit the cache and that miss it get equal service."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import httpx
import pytest
import pytest_asyncio
import ray

from justitia_ray import __version__
from justitia_ray.cost import kv_token_time
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_PROMPT, _OUTPUT, _PRICE, _SEATS = 320, 8, 24, 2
_MISSES, _HITS = 60, 240
"""Number of calls of each tenant, submitted together: enough for both tenants to wait all the time.
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with a configured cost of prefill, and equal shares of two tenants."""
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


async def _service_by_tenant(http: httpx.AsyncClient) -> dict[str, tuple[float, float]]:
    """Return (KV token-time, prefill) by tenant, at one instant."""
    rows = (await http.get("/v1/usage")).json()["data"]
    return {
        tenant: (
            sum(row["kv_token_time"] for row in rows if row["tenant"] == tenant),
            sum(row["prefill_token_time"] for row in rows if row["tenant"] == tenant),
        )
        for tenant in ("hit", "miss")
    }


async def test_cache_hits_give_a_tenant_no_more_service_than_cache_misses(
    service: Service,
) -> None:
    """A tenant that misses the prefix cache gets fewer calls, but equal service."""
    numbers = count()

    async def submit_call(http: httpx.AsyncClient, tenant: str) -> None:
        own = f"{next(numbers)} " if tenant == "miss" else ""
        body = completion(own + "word " * (_PROMPT - len(own.split())), max_tokens=_OUTPUT)
        answer = await http.post(COMPLETIONS, json=body, headers={"x-justitia-tenant": tenant})
        assert answer.status_code == 200, answer.text

    async with service.http() as http:
        await submit_call(http, "hit")

        async def prompts_are_cached() -> bool:
            before = await _service_by_tenant(http)
            await submit_call(http, "hit")
            after = await _service_by_tenant(http)
            return after["hit"][1] - before["hit"][1] < _PRICE * _PROMPT / 4

        await eventually(prompts_are_cached, "a repeated prompt is found", 60.0)
        begun = await _service_by_tenant(http)
        tenants = ("hit",) * _HITS + ("miss",) * _MISSES
        calls = [asyncio.create_task(submit_call(http, tenant)) for tenant in tenants]
        ended: dict[str, tuple[float, float]] = {}

        async def half_of_the_misses_have_ended() -> bool:
            ended.update(await _service_by_tenant(http))
            return ended["miss"][1] - begun["miss"][1] >= _MISSES / 2 * _PRICE * _PROMPT

        await eventually(half_of_the_misses_have_ended, "half of the misses have ended", 60.0)
        await asyncio.gather(*calls)
    (hit, cheap), (miss, dear) = (
        [after - before for after, before in zip(ended[name], begun[name], strict=True)]
        for name in ("hit", "miss")
    )
    most = kv_token_time(_PROMPT, _OUTPUT) + _PRICE * _PROMPT

    assert dear < 0.9 * _MISSES * _PRICE * _PROMPT  # both tenants still wait
    assert hit < 0.9 * _HITS * kv_token_time(_PROMPT, _OUTPUT)
    assert cheap < dear / 4
    assert abs(hit + cheap - miss - dear) <= (_SEATS + 8) * most
    assert hit > 1.5 * miss  # Equal service means more calls for the tenant with cache hits.


async def test_measured_prefill_cost_outlives_scheduler_and_replica(serving: Serving) -> None:
    """A restarted scheduler and later replicas use the cost that the first replica measured."""
    fake = {"kv_tokens": 4_096, "block_size": 16, "max_model_len": 1_024, "iteration_s": 0.004}
    fake |= {"prefill_s_per_token": 1e-4}
    async with serving.deployed_service(
        "measured-prefill",
        replicas=1,
        engine={"kind": "fake", "fake": fake},
        scheduler={"cost": "with_prefill"},
    ) as service:
        before = await service.status()
        cost = before["prefill_cost"]
        assert cost["source"] == "measured"
        assert cost["release"] == __version__
        assert cost["per_token"] > 0
        async with service.http() as http:
            answer = await http.post(COMPLETIONS, json=completion("word " * 320, max_tokens=4))
            assert answer.status_code == 200, answer.text
        await service.until(
            lambda status: (
                status["prefill_token_time"] > 0 and status["saves"] > before["saves"] + 1
            ),
            "the prompt is charged, and the cost is stored",
        )
        (replica,) = await service.pulling_replicas()
        ray.kill(service.scheduler(), no_restart=False)
        service.kill_replica(replica)

        after = await service.until(
            lambda status: (
                bool(set(status["replicas"]) - {replica}) and status["epoch"] > before["epoch"]
            ),
            "another replica pulls from another scheduler",
        )
        assert after["prefill_cost"] == cost
