"""Quotas over two models: hundreds of calls, and deaths of processes during them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import MODEL, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_OTHER = "org/other"
_LIMIT = 10
_CALLS = 300
_AT_ONCE = 64
"""Number of concurrently open calls, as many as two cores can serve; the quota counts all calls."""


def _application_quota(unit: str, limit: float, **more: Any) -> dict[str, Any]:
    return {"quotas": [{"unit": unit, "limit": limit, "per": "day", **more}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with two models, in which each tenant may open ten applications a day."""
    async with serving.deployed_service(
        "limited-tenants",
        replicas=1,
        models=(MODEL, _OTHER),
        scheduler={"quota_timeout_s": 120.0},
        user_config={
            "tenants": {
                "crowd/*": _application_quota("applications", _LIMIT),
                "counted": {"quotas": [{"unit": "inferences", "limit": 3, "per": "day"}]},
                "capped": {"caps": {"inferences": 2}},
                "shadow": _application_quota("applications", 1, on_exhausted="shadow"),
            }
        },
    ) as service:
        yield service


async def _call_model(http: httpx.AsyncClient, tenant: str, number: int = 0, **headers: str) -> Any:
    body = completion(max_tokens=2, model=(MODEL, _OTHER)[number % 2])
    return await http.post(COMPLETIONS, json=body, headers={"x-justitia-tenant": tenant, **headers})


async def _call_concurrently(
    http: httpx.AsyncClient, tenant: str, calls: int
) -> Counter[tuple[int, str]]:
    """Make calls, each an application, and count the status and code of the answers."""
    free, told = asyncio.Semaphore(_AT_ONCE), Counter[tuple[int, str]]()

    async def limited_call(number: int) -> None:
        async with free:
            answer = await _call_model(http, tenant, number)
        code = "" if answer.status_code == 200 else answer.json()["error"]["code"]
        told[answer.status_code, code] += 1

    await asyncio.gather(*(limited_call(number) for number in range(calls)))
    return told


_EXACTLY = {(200, ""): _LIMIT, (429, "insufficient_quota"): _CALLS - _LIMIT}


async def test_concurrent_calls_get_exactly_the_quota(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The schedulers of both models share one quota service."""
    assert _EXACTLY == await _call_concurrently(http, "crowd/calm", _CALLS)
    told = await service.status()
    (standing,) = told["quotas"]["crowd/calm"]
    assert ("applications", "day", _LIMIT, 0) == (
        standing["unit"],
        standing["per"],
        standing["limit"],
        standing["remaining"],
    )


@pytest.mark.parametrize("victim", ["scheduler", "accounts"])
async def test_quota_stays_exact_when_a_process_is_killed(
    service: Service, http: httpx.AsyncClient, victim: str
) -> None:
    """A restarted process recognises a quota reservation by its name and grants it once."""
    crowd = asyncio.create_task(_call_concurrently(http, f"crowd/{victim}", _CALLS))
    await asyncio.sleep(0.3)
    names = {
        "scheduler": service.config.scheduler_name,
        "accounts": f"accounts/{service.name}",
    }
    actor = ray.get_actor(names[victim], namespace=service.serving.namespace)
    ray.kill(actor, no_restart=False)

    assert _EXACTLY == await crowd


async def test_quota_limits_the_tenant_and_cap_limits_each_application(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A tenant's applications share a quota; a cap applies to each of them."""
    mine = {"x-justitia-application": "one"}
    counted = [(await _call_model(http, "counted", k, **mine)).status_code for k in range(5)]
    capped = [await _call_model(http, "capped", 0, **mine) for _ in range(4)]
    for tenant in ("counted", "capped"):
        await http.post(f"/v1/applications/{tenant}|one/close")
    shadow = [(await _call_model(http, "shadow", k)).status_code for k in range(3)]

    usage = (await http.get("/v1/usage", params={"tenant": "counted"})).json()["data"]

    assert [2, 1] == sorted((row["inferences"] for row in usage), reverse=True)
    assert [200, 200, 200, 429, 429] == counted
    assert [200, 200, 429, 429] == [answer.status_code for answer in capped]
    assert "application_budget_exhausted" == capped[-1].json()["error"]["code"]
    assert [200, 200, 200] == shadow


async def test_answer_to_an_opened_application_contains_its_limits(http: httpx.AsyncClient) -> None:
    """An agent can pace itself by the remaining quota before a call is refused."""
    body = {"application_class": "c", "tenant": "crowd/paced", "application_id": "one"}
    body["model"] = MODEL

    async def limits_after_opening() -> dict[str, str] | None:
        answer = await http.post("/v1/applications", json=body)
        answer.raise_for_status()
        return dict(answer.headers) if "ratelimit" in answer.headers else None

    headers = await eventually(limits_after_opening, "the limits are known")
    await http.post("/v1/applications/crowd%2Fpaced|one/close")

    assert f'"crowd/paced:applications/86400";q={_LIMIT}' in headers["ratelimit-policy"]
    assert "crowd/paced:applications/86400" in headers["ratelimit"]
