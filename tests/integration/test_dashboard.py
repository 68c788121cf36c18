"""The dashboard's queries on a real Prometheus that scrapes a service under load."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import ray
import yaml

from deployments.monitoring.prometheus_rule import ALERTS
from tests.dashboard_queries import DashboardQuery, queries
from tests.debian_programs import debian_program
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.local_front import free_port
from tests.harness.service import SEATS, Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

CONFIG = Path(__file__).parents[2] / "deployments/monitoring/prometheus.yml"
"""Prometheus configuration that users get; its intervals are long enough for busy machines."""
KINDS = (("vote", "team-a", 60), ("report", "team-b", 150))
"""(class, tenant, output tokens) of the applications in the load."""
HAS_DATA_WITHIN_S = 240.0
"""Longest wait for data in seconds: a quantile needs two scrapes, and busy cores delay each."""


class Prometheus:
    """Running Prometheus, which tests query over its HTTP API as Grafana does."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def query_series(self, expression: str) -> list[dict[str, Any]]:
        """Return an expression's current series, each with labels (`metric`) and `value`.

        Raises:
            AssertionError: With Prometheus' words, if it cannot be evaluated.
        """
        answer = await self._http.post("/api/v1/query", data={"query": expression})
        told = answer.json()
        assert "success" == told["status"], f"{told.get('error')}: {expression}"
        result: list[dict[str, Any]] = told["data"]["result"]
        return result

    async def alert_rules(self) -> dict[str, dict[str, Any]]:
        """Return the evaluated alerts by name: `health`, `lastError`, `state`."""
        told = (await self._http.get("/api/v1/rules")).json()
        return {rule["name"]: rule for group in told["data"]["groups"] for rule in group["rules"]}

    async def is_scraping(self) -> bool:
        """Return whether Prometheus is ready and has scraped all its targets."""
        try:
            if not (await self._http.get("/-/ready")).is_success:
                return False
            targets = await self._targets()
        except httpx.TransportError:
            return False
        return bool(targets) and all(target["health"] == "up" for target in targets)

    async def scrape_outcomes(self) -> list[str]:
        """Return the outcome of each target's last scrape, for failure messages."""
        return [
            f"{target['scrapeUrl']}: {target['health']} after"
            f" {target['lastScrapeDuration']:.2f} s {target['lastError']}".rstrip()
            for target in await self._targets()
        ]

    async def _targets(self) -> list[dict[str, Any]]:
        told = (await self._http.get("/api/v1/targets")).json()
        targets: list[dict[str, Any]] = told["data"]["activeTargets"]
        return targets


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with a queue, a tenant with a quota, and an autoscaler that keeps one replica."""
    one_replica = {"min_replicas": 1, "max_replicas": 1, "target_drain_s": 600.0}
    quota = {"unit": "tokens", "limit": 1_000_000_000, "per": "day"}
    async with serving.deployed_service(
        "shown",
        replicas=1,
        user_config={"tenants": {"team-a": {"quotas": [quota]}}},
        autoscaling=one_replica,
    ) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def prometheus(service: Service, tmp_path: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with the settings in `deployments/monitoring` and Ray's file of targets."""
    binary = debian_program("prometheus", "prometheus")
    targets = [
        f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
        for node in ray.nodes()
        if node["Alive"]
    ]
    discovery, config = tmp_path / "targets.json", tmp_path / "prometheus.yml"
    discovery.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": targets}]))
    settings = yaml.safe_load(CONFIG.read_text())
    [job] = settings["scrape_configs"]
    [found_in] = job["file_sd_configs"]
    found_in["files"] = [str(discovery)]
    settings["rule_files"] = [str(CONFIG.parent / name) for name in settings["rule_files"]]
    config.write_text(yaml.safe_dump(settings))
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            running = Prometheus(http)

            async def is_scraping() -> bool:
                assert process.returncode is None, (tmp_path / "log").read_text()
                return await running.is_scraping()

            await eventually(is_scraping, "Prometheus scrapes", 90.0, every_s=0.5)
            yield running
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def _keep_opening_applications(
    http: httpx.AsyncClient, kind: str, tenant: str, tokens: int, over: asyncio.Event
) -> None:
    """Open applications one after the other, each with as many inferences as seats.

    Some therefore wait, and the scheduler predicts their starts.
    """
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
            for _ in range(SEATS)
        )
        for answer in await asyncio.gather(*calls):
            assert 200 == answer.status_code, answer.text
        await http.post(f"/v1/applications/{tenant}|{name}/close")
        number += 1


@asynccontextmanager
async def load(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Open and finish applications of two classes and tenants during a `with` block."""
    over = asyncio.Event()
    callers = [asyncio.create_task(_keep_opening_applications(http, *kind, over)) for kind in KINDS]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*callers)


def has_data(series: list[dict[str, Any]]) -> bool:
    """Return whether a series has a number; a quantile of no data has none."""
    return any(math.isfinite(float(one["value"][1])) for one in series)


def query_for_data(asked: DashboardQuery) -> str:
    """Return a panel's expression, or an annotation's condition, which may have no events."""
    return asked.expression().removesuffix(" > 0")


async def test_every_query_of_the_dashboard_returns_data(
    http: httpx.AsyncClient, prometheus: Prometheus
) -> None:
    """A panel that is empty on a healthy service is not trusted in an incident."""
    async with load(http):
        empty = {asked.expression(): asked for asked in queries()}

        async def all_have_data() -> bool:
            for asked in list(empty.values()):
                if has_data(await prometheus.query_series(query_for_data(asked))):
                    del empty[asked.expression()]
            return not empty

        try:
            await eventually(
                all_have_data, "every query returns data", HAS_DATA_WITHIN_S, every_s=1.0
            )
        except AssertionError as late:
            nothing = [f"{a.panel}: {query_for_data(a)}" for a in empty.values()]
            told = "\n".join([str(late), *await prometheus.scrape_outcomes(), *nothing])
            raise AssertionError(told) from None
        assert await _shown_tenants(prometheus) >= {tenant for _, tenant, _ in KINDS}


async def _shown_tenants(prometheus: Prometheus) -> set[str]:
    """Return the tenants in the dashboard's panel of service by tenant."""
    (asked,) = [asked for asked in queries() if asked.panel == "Service by tenant"]
    return {one["metric"]["tenant"] for one in await prometheus.query_series(asked.expression())}


async def test_no_alert_fires_on_a_healthy_service(
    prometheus: Prometheus, service: Service
) -> None:
    """Alerts must select existing series and raise no false alarm.

    Services of other tests on the cluster may have used up their quotas.
    """
    wanted = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}

    async def alerts_are_evaluated() -> bool:
        rules = await prometheus.alert_rules()
        return wanted == rules.keys() and all(r["health"] == "ok" for r in rules.values())

    await eventually(alerts_are_evaluated, "every alert is evaluated", 60.0, every_s=0.5)
    alerts = [
        one["labels"] for r in (await prometheus.alert_rules()).values() for one in r["alerts"]
    ]

    assert [] == [one for one in alerts if one.get("application") == service.name]
