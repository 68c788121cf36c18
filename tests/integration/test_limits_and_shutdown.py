"""The end of an application, and how much it takes before that."""

import asyncio

import pytest
import pytest_asyncio
import ray

from justitia_ray.serve.scheduler_actor import end_scheduler
from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.load import leave
from tests.integration.service import ENDLESS, Service, Serving, redis_processes

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(serving: Serving) -> Service:
    """An application that takes four inferences."""
    service = serving.service("small", replicas=1, ingress={"max_outstanding": 4})
    await service.deploy()
    return service


async def test_full_queue_asks_to_come_back_later(small: Service) -> None:
    """An ingress without a bound would take what its memory cannot hold."""
    async with small.http() as http:
        calls = [
            asyncio.create_task(http.post(COMPLETIONS, json=completion(max_tokens=ENDLESS)))
            for _ in range(4)
        ]
        await small.until(lambda s: s["in_flight"] + s["waiting"] == 4, "four are outstanding")
        refused = await http.post(COMPLETIONS, json=completion())
        await leave(calls)
        await small.until_idle()
        taken = await http.post(COMPLETIONS, json=completion())

    assert (429, "5") == (refused.status_code, refused.headers["retry-after"])
    assert ("RateLimitError", "queue_full") == (
        refused.json()["error"]["type"],
        refused.json()["error"]["code"],
    )
    assert 200 == taken.status_code


async def test_ended_scheduler_leaves_no_actor_and_no_redis_and_keeps_its_state(
    small: Service,
) -> None:
    """`justitia shutdown` must leave nothing that holds memory, and nothing that loses history."""
    name, namespace = small.config.scheduler_name, small.serving.namespace
    epoch = (await small.until_idle())["epoch"]
    await small.delete()
    assert redis_processes(small.config.data_dir)
    assert await asyncio.to_thread(end_scheduler, small.config)

    assert not await asyncio.to_thread(end_scheduler, small.config)
    with pytest.raises(ValueError, match=r".*"):
        ray.get_actor(name, namespace=namespace)
    await eventually(lambda: not redis_processes(small.config.data_dir), "its Redis has ended")
    assert (small.config.data_dir / "appendonlydir").exists() or list(
        small.config.data_dir.glob("*.aof")
    )
    assert epoch > 0
