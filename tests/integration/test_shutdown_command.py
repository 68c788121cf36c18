"""`justitia shutdown` on a real cluster: all of one application, and nothing of another."""

import asyncio

import httpx
import pytest
import ray
from ray import serve

from justitia_ray.cli.main import main
from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.service import Service, Serving, redis_processes

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the command said; Ray's own warnings may stand between."""
    return [line for line in capsys.readouterr().out.splitlines() if "(raylet)" not in line]


async def test_command_ends_one_application_with_its_scheduler_and_redis(
    serving: Serving, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that would run for minutes is cut, the other application goes on."""
    doomed = serving.service("doomed", replicas=1, fake={"iteration_s": 1.0})
    await doomed.deploy()
    async with doomed.http() as http:
        call = asyncio.create_task(http.post(COMPLETIONS, json=completion(max_tokens=500)))
        await doomed.until(lambda s: s["in_flight"] == 1, "the call runs")
        status = await asyncio.to_thread(main, ["shutdown", "--name", "doomed", "--wait-s", "0.1"])
        (answer,) = await asyncio.gather(call, return_exceptions=True)
    del serving.deployed["doomed"]  # not there any more: nothing to deploy again
    said = lines_of(capsys)

    assert 0 == status
    assert said[0].startswith("ended application 'doomed'")
    assert (
        "ended scheduler doomed/fake-7b and its embedded Redis;"
        f" data stay in {doomed.config.data_dir}"
    ) == said[1]
    assert isinstance(answer, httpx.TransportError) or (
        isinstance(answer, httpx.Response) and answer.status_code >= 500
    )
    assert "doomed" not in serve.status().applications
    assert [service.config.scheduler_name] == [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"] in (doomed.config.scheduler_name, service.config.scheduler_name)
    ]
    await eventually(lambda: not redis_processes(doomed.config.data_dir), "its Redis has ended")
    assert (await service.status())["ready"]


async def test_scheduler_left_by_serve_delete_is_found_by_its_name(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve delete` knows nothing of it: without the command it would live on for ten minutes."""
    left = serving.service("left", replicas=1)
    await left.deploy()
    await left.delete()
    status = await asyncio.to_thread(main, ["shutdown", "--name", "left", "--model", "fake-7b"])

    assert (0, ["ended scheduler left/fake-7b, and its embedded Redis if it had one"]) == (
        status,
        lines_of(capsys),
    )
    assert not redis_processes(left.config.data_dir)
