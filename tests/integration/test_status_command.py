"""`justitia status` on a real service over HTTP."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from justitia_ray.cli.main import main
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import ENDLESS, MODEL, SEATS, Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def run_status(
    service: Service, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, str]:
    capsys.readouterr()
    words = ["status", "--url", service.url, *options]
    status = await asyncio.to_thread(main, words)
    return status, capsys.readouterr().out


async def test_status_shows_the_queue_in_order(
    http: httpx.AsyncClient, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two applications occupy all seats; of two that wait, the cheaper is shown first.

    Costs and tags come from the predictor; the command must show the F that the opening returned.
    """

    async def applications_are_open(name: str, input_text: str) -> float:
        body = {"application_id": name, "application_class": "status", "input": input_text}
        answer = (await http.post("/v1/applications", json=body)).json()
        return float(answer["virtual_finish_time"])

    async def submit_call(name: str, seats: int) -> Any:
        headers = {"x-justitia-application": name}
        body = completion(max_tokens=ENDLESS, n=seats)
        return await http.post(COMPLETIONS, json=body, headers=headers)

    names = ("status-run-0", "status-run-1", "status-wait")
    tags = {name: await applications_are_open(name, "x") for name in names}
    running = [asyncio.create_task(submit_call(name, SEATS)) for name in names[:2]]
    waiting = None
    try:
        await service.until(
            lambda s: all(r["running"] and r["used_kv_tokens"] for r in s["replicas"].values()),
            "both run, and their memory has been reported",
        )
        waiting = asyncio.create_task(submit_call(names[2], SEATS))
        await service.until(lambda s: 1 == s["waiting"], "one waits")
        status, printed = await run_status(service, capsys, "--json", "--applications", "5")
        readable_status, text = await run_status(service, capsys)
    finally:
        for name in names:
            await http.delete(f"/v1/applications/{name}")
        await asyncio.gather(*running, *([waiting] if waiting else []), return_exceptions=True)
        await service.until_idle()
    seen = json.loads(printed)
    model = seen["models"][MODEL]
    first = {a["application_id"]: a for a in model["first_applications"]}

    assert (0, 0, True) == (status, readable_status, seen["ready"])
    assert ("default|status-wait", "room") == (
        model["head"]["application_id"],
        model["head"]["waits_for"],
    )
    assert "default|status-wait" == model["first_applications"][0]["application_id"]
    assert {f"default|{name}" for name in names} == set(first)
    assert all(first[f"default|{name}"]["virtual_finish_time"] >= tags[name] for name in names)
    assert first["default|status-wait"]["gps_lag"] is not None
    assert [(1, SEATS, SEATS)] * 2 == [
        (r["running"], r["sequences"], r["max_num_seqs"]) for r in model["replicas"].values()
    ]
    assert all(0 < r["used_kv_tokens"] <= r["kv_tokens"] for r in model["replicas"].values())
    assert ("embedded", "batched", True) == (
        model["store"]["kind"],
        model["store"]["durability"],
        model["store"]["connected"],
    )
    assert "classes" in model["predictor"]
    assert f"model         {MODEL}" in text
    assert "status-wait of tenant default: F " in text
    assert 120 > max(map(len, text.splitlines()))


async def test_invalid_number_of_applications_is_refused(http: httpx.AsyncClient) -> None:
    """A large number would make the scheduler go through all its applications."""
    for asked in ("1001", "-1", "many", ""):
        answer = await http.get("/v1/status", params={"applications": asked})

        assert 400 == answer.status_code
        assert "an integer from 0 to 1,000 is allowed" in answer.json()["error"]["message"]
