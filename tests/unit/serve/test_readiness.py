"""Readiness says what is missing, and never fails itself."""

from typing import Any, cast

import httpx
import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.scheduler_calls import SchedulerCalls

_READY: dict[str, Any] = {"ready": True, "degraded": None, "replicas": {"r": {}}}


async def answer(path: str, status: dict[str, Any] | Exception) -> httpx.Response:
    """Ask an application whose scheduler says that."""

    async def scheduler_status(applications: int) -> dict[str, Any]:
        if isinstance(status, Exception):
            raise status
        return status

    async def unused(name: str) -> Any:
        raise AssertionError(name)

    model = ServedModel(
        parse_app_config({"model": {"name": "m", "path": "none"}}),
        cast(Gateway, None),
        SchedulerCalls(unused, unused, unused, scheduler_status),
    )
    app = build_http_app(ServedModels([model]))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        return await client.get(path)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (_READY | {"ready": False}, "scheduler: not in office"),
        (_READY | {"degraded": "Redis: away"}, "scheduler: Redis: away"),
        (_READY | {"replicas": {}}, "no replica pulls"),
        (AdmissionError("the scheduler is being started again"), "the scheduler is being"),
    ],
)
async def test_what_is_missing_makes_it_not_ready(
    status: dict[str, Any] | Exception, reason: str
) -> None:
    """Traffic is to go elsewhere meanwhile, and an operator is to see why."""
    ready = await answer("/readyz", status)

    assert (503, "degraded") == (ready.status_code, ready.json()["status"])
    assert ready.json()["reason"].startswith(reason)


async def test_nothing_missing_is_ready() -> None:
    """The other half of the fact."""
    assert 200 == (await answer("/readyz", _READY)).status_code


async def test_scheduler_that_is_away_asks_to_come_back() -> None:
    """A client of ours repeats a 503, and would give up at a 500."""
    status = await answer("/v1/status", AdmissionError("the scheduler is being started again"))

    assert (503, "1") == (status.status_code, status.headers["retry-after"])
