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
_SCRAPE_S = 1
"""Ray's workers report more seldom; this only shortens the wait for what they have reported."""


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
        told = (await self._http.get("/api/v1/targets")).json()
        targets = told["data"]["activeTargets"]
        return bool(targets) and all(target["health"] == "up" for target in targets)


@asynccontextmanager
async def prometheus(targets: Sequence[str], directory: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus inside the block, on a file of targets such as Ray writes.

    Args:
        targets: `host:port` of each node's metrics.
        directory: For its data; it is empty.
    """
    assert BINARY is not None
    discovery, config = directory / "targets.json", directory / "prometheus.yml"
    discovery.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": list(targets)}]))
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": f"{_SCRAPE_S}s"},
                "scrape_configs": [
                    {"job_name": "ray", "file_sd_configs": [{"files": [str(discovery)]}]}
                ],
            }
        )
    )
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
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            running = Prometheus(http)
            await eventually(lambda: _is_up(process, http, directory), "Prometheus is up", 30.0)
            await eventually(running.is_scraping, "Prometheus scrapes", 30.0)
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
