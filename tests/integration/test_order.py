"""Engines start inferences in the order that the core decides, under either policy."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.harness.bodies import COMPLETIONS, completion, encoded_json
from tests.harness.open_calls import occupy_all_seats, virtual_finish_times
from tests.harness.service import PROBED, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_APPLICATIONS = 40
_WAVES = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with two engines of one seat each, so that the order is visible."""
    async with serving.deployed_service(
        "order", import_path=PROBED, fake={"max_num_seqs": 1}
    ) as service:
        yield service


@dataclass(frozen=True)
class RunOfWaves:
    """Inferences of a load in waves, with their leases in the order of the grants."""

    applications: list[str]
    waves: list[int]
    leases: list[str]
    by_tag: list[str]
    """Applications by virtual finish time, while all inferences waited."""


async def run_waves(service: Service, http: httpx.AsyncClient, prefix: str) -> RunOfWaves:
    """Queue one inference of every application in each wave behind blocking calls; run them all."""
    weights = random.Random(1).sample(range(1, 1 + _APPLICATIONS), _APPLICATIONS)
    names = []
    for i, weight in enumerate(weights):
        body = {"application_class": prefix, "application_id": f"{prefix}-{i}", "weight": weight}
        names.append((await http.post("/v1/applications", json=body)).json()["application_id"])
    calls: dict[tuple[str, int], Any] = {}
    async with occupy_all_seats(service, http, seats=1):
        for wave in range(_WAVES):
            calls |= await submit_wave(service, names, wave)
        tags = await virtual_finish_times(http, names)
    answers = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
    for name in names:
        await http.post(f"/v1/applications/{name}/close")
    await service.until_idle()
    leases = {
        json.loads(body)["id"].removeprefix("cmpl-"): key for key, (_, _, body) in answers.items()
    }
    in_order = sorted(leases, key=grant_number)
    return RunOfWaves(
        applications=[leases[lease][0] for lease in in_order],
        waves=[leases[lease][1] for lease in in_order],
        leases=in_order,
        by_tag=sorted(names, key=tags.__getitem__),
    )


async def submit_wave(service: Service, names: list[str], wave: int) -> dict[tuple[str, int], Any]:
    """Submit one inference of each application, and wait until all are queued."""
    handle = service.handle()
    body = encoded_json(completion(max_tokens=1))
    calls = {
        (name, wave): handle.call.remote(
            "POST", COMPLETIONS, {"x-justitia-application": name}, body
        )
        for name in names
    }
    submitted = len(names) * (wave + 1)
    await service.until(lambda s: s["waiting"] == submitted, "the wave waits")
    return calls


def grant_number(lease_id: str) -> int:
    return int(lease_id.rpartition("-")[2])


async def started_leases(service: Service, leases: list[str]) -> list[list[str]]:
    """Return the given leases in the order in which each engine has started them."""
    ours = set(leases)
    return [
        [lease for lease in await service.probe(replica_id, "admitted") if lease in ours]
        for replica_id in await service.pulling_replicas()
    ]


async def test_engines_follow_a_change_of_policy_at_run_time(
    service: Service, http: httpx.AsyncClient
) -> None:
    before = await service.status()
    replicas = await service.pulling_replicas()
    justitia = await run_waves(service, http, "justitia")
    service.user_config = {"policy": "fcfs"}
    await service.deploy()
    await service.until(lambda s: s["policy"] == "fcfs", "the policy is another")
    fcfs = await run_waves(service, http, "fcfs")
    after = await service.status()

    assert [name for name in justitia.by_tag for _ in range(_WAVES)] == justitia.applications
    assert [wave for wave in range(_WAVES) for _ in range(_APPLICATIONS)] == fcfs.waves
    for run in (justitia, fcfs):
        by_engine = await started_leases(service, run.leases)
        assert [sorted(leases, key=grant_number) for leases in by_engine] == by_engine
        assert run.leases == sorted(chain(*by_engine), key=grant_number)
    assert replicas == await service.pulling_replicas()
    assert (before["epoch"], before["pid"]) == (after["epoch"], after["pid"])


async def test_invalid_setting_does_not_change_the_deployed_application(
    service: Service, http: httpx.AsyncClient
) -> None:
    """A typing mistake in a settings file must not stop a running service."""
    settings = (await service.status())["settings"]
    with pytest.raises(Exception, match="policy: 'random' is not one of"):
        await service.scheduler().configure.remote({"policy": "random"})

    assert settings == (await service.status())["settings"]
    assert 200 == (await http.post(COMPLETIONS, json=completion())).status_code
