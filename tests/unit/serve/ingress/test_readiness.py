"""Readiness names each missing part and never fails itself."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from justitia_ray.errors import AdmissionError
from tests.unit.serve.ingress.http_client import client_of, served_model

_READY: dict[str, Any] = {"ready": True, "degraded": None, "replicas": {"r": {}}}
_AWAY = AdmissionError("the scheduler is being started again")


async def answer_of(path: str, status: dict[str, Any] | Exception, **config: Any) -> httpx.Response:
    async def scheduler_status(applications: int) -> dict[str, Any]:
        if isinstance(status, Exception):
            raise status
        return status

    scheduler = SimpleNamespace(status=scheduler_status)
    async with client_of(served_model(scheduler=scheduler, **config)) as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (_READY, None),
        (_READY | {"ready": False}, "scheduler: not in office"),
        (_READY | {"degraded": "Redis: away"}, "scheduler: Redis: away"),
        (_READY | {"replicas": {}}, "no replica pulls"),
        (_READY | {"replicas": {"r": {"state": "stalled"}, "s": {"state": "serving"}}}, None),
        (
            _READY | {"replicas": {"r": {"state": "stalled"}, "s": {"state": "stalled"}}},
            "all replicas are stalled: their engines have work and make no steps",
        ),
        (_AWAY, str(_AWAY)),
    ],
)
async def test_service_with_a_missing_part_is_not_ready(
    status: dict[str, Any] | Exception, reason: str | None
) -> None:
    """Traffic is routed elsewhere meanwhile, and the operator sees the reason."""
    ready = await answer_of("/readyz", status)

    state = (503, "degraded") if reason else (200, "ready")
    assert state == (ready.status_code, ready.json()["status"])
    assert reason == ready.json()["reason"]


async def test_unreachable_scheduler_is_a_503_with_a_retry_time() -> None:
    """The official client repeats a 503 but gives up at a 500."""
    status = await answer_of("/v1/status", _AWAY)

    assert 503 == status.status_code
    assert 900 <= int(status.headers["retry-after-ms"]) <= 1_100  # one second with jitter


@pytest.mark.parametrize(("least", "status"), [(0, 200), (1, 503)])
async def test_model_that_scales_to_zero_is_ready_without_a_replica(
    least: int, status: int
) -> None:
    """A failing readiness probe would keep out the call that starts the first replica."""
    scaling = {"min_replicas": least, "max_replicas": 2}
    ready = await answer_of("/readyz", _READY | {"replicas": {}}, autoscaling=scaling)

    assert status == ready.status_code


async def test_root_path_answers_probes_of_coding_harnesses() -> None:
    """Some agent programs request the root path before their first call."""
    async with client_of(served_model()) as client:
        asked, read = await client.head("/"), await client.get("/")

    assert (200, b"") == (asked.status_code, asked.content)
    assert 404 == read.status_code
