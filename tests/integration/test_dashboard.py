"""The dashboard's queries, asked of a real Prometheus that scrapes a service under load."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from tests.dashboard_queries import Asked, queries
from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.prometheus import BINARY, Prometheus, prometheus
from tests.integration.service import Service

pytestmark = [
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(
        BINARY is None, reason="no prometheus on the PATH; Debian's package `prometheus` has it"
    ),
]

KINDS = (("vote", "team-a", 60), ("report", "team-b", 150))
"""Class, tenant and output tokens of the applications that run meanwhile."""
HAS_DATA_WITHIN_S = 240.0
"""A quantile needs values of two scrapes, and Ray's workers report every 10 s."""


def exporters() -> list[str]:
    """Return where each node of the cluster serves its metrics, as Ray's discovery file does."""
    return [
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in ray.nodes()
        if node["Alive"]
    ]


async def _one_after_another(
    http: httpx.AsyncClient, kind: str, tenant: str, tokens: int, over: asyncio.Event
) -> None:
    """Open applications, serve three inferences of each and close it, until it is over."""
    number = 0
    while not over.is_set():
        name = f"seen-{kind}-{number}"
        headers = {
            "x-justitia-application": name,
            "x-justitia-class": kind,
            "x-justitia-tenant": tenant,
        }
        calls = (
            http.post(COMPLETIONS, json=completion(max_tokens=tokens), headers=headers)
            for _ in range(3)
        )
        for answer in await asyncio.gather(*calls):
            assert 200 == answer.status_code, answer.text
        await http.post(f"/v1/applications/{name}/close")
        number += 1


@asynccontextmanager
async def load(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Applications of two classes and tenants come and finish inside the block."""
    over = asyncio.Event()
    callers = [asyncio.create_task(_one_after_another(http, *kind, over)) for kind in KINDS]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*callers)


def has_data(series: list[dict[str, Any]]) -> bool:
    """Return whether there is a number; a quantile of nothing is none."""
    return any(math.isfinite(float(one["value"][1])) for one in series)


def asked_for_data(asked: Asked) -> str:
    """Return the expression, of an annotation that of what it marks: nothing may be to mark."""
    return asked.expression().removesuffix(" > 0")


async def test_every_query_of_the_dashboard_returns_data(
    service: Service, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """A panel that is empty on a healthy service is trusted by nobody when it matters."""
    async with prometheus(exporters(), tmp_path) as running, load(http):
        empty = {asked.expression(): asked for asked in queries()}

        async def all_have_data() -> bool:
            for asked in list(empty.values()):
                if has_data(await running.series(asked_for_data(asked))):
                    del empty[asked.expression()]
            return not empty

        try:
            await eventually(
                all_have_data, "every query returns data", HAS_DATA_WITHIN_S, every_s=1.0
            )
        except AssertionError as late:
            nothing = [f"{a.panel}: {asked_for_data(a)}" for a in empty.values()]
            told = "\n".join([str(late), *await running.scrapes(), *nothing])
            raise AssertionError(told) from None
        assert await _tenants(running) >= {tenant for _, tenant, _ in KINDS}
    await service.until_idle()


async def _tenants(running: Prometheus) -> set[str]:
    """Return the tenants of the panel that shows who received how much."""
    (asked,) = [asked for asked in queries() if asked.panel == "Service by tenant"]
    return {one["metric"]["tenant"] for one in await running.series(asked.expression())}
