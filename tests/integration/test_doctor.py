"""`justitia doctor` on a real service: no findings on a healthy one, right findings otherwise."""

import asyncio
import json
import os
import signal
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from redis.asyncio import Redis

from justitia_ray.cli.main import main
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.schema import Keys
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import PRODUCT, Service

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]


async def examine(
    service: Service, directory: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    """Run the doctor on the service and its Redis; return the exit status and the report.

    The expected finding that Serve's own proxy is in use is removed.
    """
    file = directory / "serve.yaml"
    application = {"name": service.name, "import_path": PRODUCT, "args": service.args}
    file.write_text(yaml.safe_dump({"applications": [application]}))
    words = ["doctor", "--url", service.url, "--config", str(file), "--json", "--interval-s", "1"]
    capsys.readouterr()
    status = await asyncio.to_thread(main, words)
    told = json.loads(capsys.readouterr().out)
    told["findings"] = [f for f in told["findings"] if f["rule"] != "front_that_could_be_cheaper"]
    return status, told


def findings_of(told: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the doctor's rules with findings, and the subjects of the findings."""
    return {(finding["rule"], finding["subject"]) for finding in told["findings"]}


async def test_doctor_finds_nothing_wrong_with_a_service_under_load(
    service: Service,
    http: httpx.AsyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Processes and counts change during the examination; transient states are no findings."""
    examined = asyncio.Event()

    async def keep_calling(number: int) -> list[int]:
        headers = {"x-justitia-application": f"load-{number % 8}"}
        statuses = []
        while not examined.is_set():
            answer = await http.post(COMPLETIONS, json=completion(max_tokens=80), headers=headers)
            statuses.append(answer.status_code)
        return statuses

    callers = [asyncio.create_task(keep_calling(number)) for number in range(40)]
    await service.until(lambda s: s["waiting"] > 0 and s["in_flight"] > 4, "it is busy")
    status, told = await examine(service, tmp_path, capsys)
    examined.set()
    served = await asyncio.gather(*callers)
    for number in range(8):
        await http.post(f"/v1/applications/load-{number}/close")
    first = told["examinations"][0]

    assert (0, []) == (status, told["findings"])
    assert {200} == set(chain(*served))
    assert told["redis_looked_at"]
    assert {"shared"} == {first["name"]}
    assert first["scheduler"]["leases"]
    assert sorted(first["scheduler"]["replicas"]) == sorted(first["replicas"])
    assert [] == first["scheduler"]["broken_rules"]
    assert {} == first["silent"]


async def test_doctor_names_a_suspended_replica_and_its_process(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator gets the process id before Serve's health checks notice the failure."""
    _, healthy = await examine(service, tmp_path, capsys)
    replica_id, seen = next(iter(healthy["examinations"][0]["serve"]["replicas"].items()))
    os.kill(seen["pid"], signal.SIGSTOP)  # The process pauses as if its node were swapping.
    try:
        status, told = await examine(service, tmp_path, capsys)
    finally:
        os.kill(seen["pid"], signal.SIGCONT)
    await service.until(
        lambda s: s["replicas"].get(replica_id, {}).get("silent_s", 99) < 3, "it pulls again"
    )
    wrong = [finding for finding in told["findings"] if finding["subject"] == replica_id]

    assert 1 == status
    assert ("replica_that_gives_no_answer", replica_id) in findings_of(told)
    assert f"process {seen['pid']} on node" in wrong[0]["what"]
    assert {replica_id} == {finding["subject"] for finding in told["findings"]}
    assert 0 == (await examine(service, tmp_path, capsys))[0]


async def test_doctor_names_applications_changed_in_redis(
    service: Service,
    http: httpx.AsyncClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A changed virtual finish time would change the order after a restart unnoticed."""
    keys = Keys(service.config.store_name)
    tampered, removed = "default|tampered", "default|removed"
    for name in ("tampered", "removed"):
        body = {"application_class": "c", "application_id": name}
        assert 200 == (await http.post("/v1/applications", json=body)).status_code

    async def both_are_idle() -> bool:
        seen = (await http.get("/v1/examination")).json()["scheduler"]["applications"]
        return all(key in seen and seen[key]["withdrawn"] for key in (tampered, removed))

    await eventually(both_are_idle, "the first report of a replica has withdrawn them")
    saves = (await service.status())["saves"]
    await service.until(lambda s: s["saves"] > saves + 2, "they are saved so")
    async with Redis.from_url(EmbeddedRedis(service.config.data_dir).url) as redis:
        record = json.loads(await redis.hget(keys.applications, tampered) or "")
        forged = json.dumps(record | {"finish": record["finish"] + 5_000})
        await redis.hset(keys.applications, mapping={tampered: forged, "default|ghost": forged})
        await redis.hdel(keys.applications, removed)
        status, told = await examine(service, tmp_path, capsys)
        await redis.hdel(keys.applications, "default|ghost")
    for name in ("tampered", "removed"):
        await http.post(f"/v1/applications/{name}/close")
    await service.until_idle()

    assert 1 == status
    assert {
        ("tag_that_differs_in_redis", f"{tampered} finish"),
        ("application_only_in_redis", "default|ghost"),
        ("application_missing_in_redis", removed),
    } == findings_of(told)
