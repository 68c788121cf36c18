"""A workload is played to one queue of a service that has several."""

import json
from typing import Any

import httpx

from justitia_ray.replay.service import LiveService
from justitia_ray.sim.workload import WorkloadApplication

_STATUS: dict[str, Any] = {"policy": "fcfs", "replicas": {"r": {"kv_tokens": 100}}}
_OPENED = {"application_id": "a", "predicted_kv_token_time": 1.0, "virtual_finish_time": None}


async def test_queue_of_the_model_is_asked_and_opened_in() -> None:
    """Policy and memory are those of its queue; that of another would be compared for nothing."""
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        target = request.url.raw_path.decode()
        asked.append((target, json.loads(request.content) if request.content else None))
        if target == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}, {"id": "org/n"}]})
        return httpx.Response(200, json=_OPENED if request.method == "POST" else _STATUS)

    planned = WorkloadApplication("a", "rag", 0.0, inferences=())
    async with LiveService("http://service", network=httpx.MockTransport(answer)) as service:
        facts = await service.facts("org/n")
        async with service.application(planned):
            pass
        await service.status()

    assert ("org/n", "fcfs", 100) == (facts.model, facts.policy, facts.kv_tokens)
    targets = [target for target, _ in asked]
    assert 2 == targets.count("/v1/status?model=org%2Fn")
    assert "org/n" == dict(asked)["/v1/applications"]["model"]
