"""A real Prometheus that scrapes the test cluster, where the machine has one."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from justitia_ray.serve.local_cluster import free_port
from tests.eventually import eventually

BINARY = shutil.which("prometheus")
CONFIG = Path(__file__).parents[2] / "deployments/monitoring/prometheus.yml"
"""As users run it. A shorter interval would shorten the time that a scrape may take with it, and a
busy machine with a long page needs seconds."""


class Prometheus:
    """One that runs; asked over its HTTP API, as Grafana does."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def series(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression gives now: labels (`metric`) and `value` of each series.

        Raises:
            AssertionError: With Prometheus' words, if it cannot be evaluated.
        """
        answer = await self._http.post("/api/v1/query", data={"query": expression})
        told = answer.json()
        assert "success" == told["status"], f"{told.get('error')}: {expression}"
        result: list[dict[str, Any]] = told["data"]["result"]
        return result

    async def is_scraping(self) -> bool:
        """Return whether it has scraped all its targets."""
        targets = await self._targets()
        return bool(targets) and all(target["health"] == "up" for target in targets)

    async def scrapes(self) -> list[str]:
        """Return how the last scrape of each target went, for a failure."""
        return [
            f"{target['scrapeUrl']}: {target['health']} after"
            f" {target['lastScrapeDuration']:.2f} s {target['lastError']}".rstrip()
            for target in await self._targets()
        ]

    async def _targets(self) -> list[dict[str, Any]]:
        told = (await self._http.get("/api/v1/targets")).json()
        targets: list[dict[str, Any]] = told["data"]["activeTargets"]
        return targets


@asynccontextmanager
async def prometheus(targets: Sequence[str], directory: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus inside the block, as `deployments/monitoring` has it, on a file of targets.

    Args:
        targets: `host:port` of each node's metrics.
        directory: For its data; it is empty.
    """
    assert BINARY is not None
    discovery, config = directory / "targets.json", directory / "prometheus.yml"
    discovery.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": list(targets)}]))
    settings = yaml.safe_load(CONFIG.read_text())
    [job] = settings["scrape_configs"]
    [found_in] = job["file_sd_configs"]
    found_in["files"] = [str(discovery)]
    config.write_text(yaml.safe_dump(settings))
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            BINARY,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            running = Prometheus(http)
            await eventually(lambda: _is_up(process, http, directory), "Prometheus is up", 30.0)
            await eventually(running.is_scraping, "Prometheus scrapes", 60.0, every_s=0.5)
            yield running
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def _is_up(process: asyncio.subprocess.Process, http: httpx.AsyncClient, at: Path) -> bool:
    assert process.returncode is None, (at / "log").read_text()
    try:
        return (await http.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        return False
