"""Many calls at once: under one parent request, and above Ray's default limits."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from ray import serve
from ray.serve.handle import DeploymentHandle

from tests.harness.bodies import COMPLETIONS, completion, encoded_json
from tests.harness.open_calls import occupy_all_seats, state_when_idle
from tests.harness.service import ENDLESS, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_CALLERS = 1_200
"""Number of concurrent calls, above the 1,000 at which an actor with Ray's defaults blocks."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agent(service: Service) -> AsyncIterator[DeploymentHandle]:
    application = {
        "name": "agent",
        "route_prefix": "/agent",
        "import_path": "tests.integration.agent_app:build",
        "args": {"service": service.name},
        "deployments": [{"name": "Agent", "ray_actor_options": {"num_cpus": 0.1}}],
    }
    async with service.serving.deployed_applications(application):
        yield serve.get_deployment_handle("Agent", "agent")


async def test_all_calls_with_one_parent_request_reach_a_replica(
    agent: DeploymentHandle, service: Service
) -> None:
    """Serve's own routers lose calls that share a request id, as all calls of a parent do."""
    before = await service.until_idle()
    texts = await agent.ask_all.remote(50)
    after = await service.until_idle()

    # A call that reached another replica than its lease's would be refused and leased again.
    assert 50 == len(set(texts))
    assert 50 == after["grants"] - before["grants"]


async def test_cancelling_a_call_keeps_other_calls_of_its_parent_request(
    agent: DeploymentHandle, service: Service
) -> None:
    finished = await agent.ask_and_cancel_one.remote(20, ENDLESS)

    assert [False] + [True] * 19 == finished
    await service.until_idle()


async def test_over_a_thousand_waiting_inferences_run_once_each(
    http: httpx.AsyncClient, service: Service
) -> None:
    """One lost long-poll, or one call above a limit, would block all waiting calls."""
    before = await service.until_idle()
    handle = service.handle()
    headers = {"x-justitia-application": "crowd"}
    async with occupy_all_seats(service, http):
        calls = [
            handle.call.remote(
                "POST", COMPLETIONS, headers, encoded_json(completion(f"caller {i}"))
            )
            for i in range(_CALLERS)
        ]
        await service.until(lambda s: s["waiting"] == _CALLERS, "all of them wait", 120.0)
    answers = await asyncio.gather(*calls)

    assert [200] * _CALLERS == [status for status, _, _ in answers]
    assert _CALLERS == len({json.loads(body)["choices"][0]["text"] for _, _, body in answers})
    assert _CALLERS == len({json.loads(body)["id"] for _, _, body in answers})
    assert _CALLERS == (await state_when_idle(http, "crowd"))["ended"]
    await http.post("/v1/applications/crowd/close")
    after = await service.until_idle()
    assert _CALLERS + 2 == after["grants"] - before["grants"]
