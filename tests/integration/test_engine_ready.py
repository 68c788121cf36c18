"""The readiness probe `k8s/image/engine-ready` on Ray's own exporter and Serve's own proxy."""

import asyncio

import httpx
import pytest
import ray

from tests.eventually import eventually
from tests.harness.service import Service
from tests.pages import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

PROBE = ROOT / "k8s" / "image" / "engine-ready"
EXPORTED_WITHIN_S = 60.0
"""Seconds until metrics appear: Ray's workers report them every few seconds."""


async def probe_error(serve_port: int, metrics_port: int) -> str | None:
    """Run the readiness probe; return its error output, or None if it succeeds."""
    probe = await asyncio.create_subprocess_exec(
        PROBE, str(serve_port), str(metrics_port), stderr=asyncio.subprocess.PIPE
    )
    _, said = await probe.communicate()
    return said.decode() if probe.returncode else None


async def test_ray_node_with_an_engine_reports_ready(
    service: Service, http: httpx.AsyncClient
) -> None:
    """If Ray exported the metric under another name, no engine pod would ever become ready."""
    assert http.base_url.port is not None
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    ports = http.base_url.port, int(node["MetricsExportPort"])

    async def probe_succeeds() -> bool:
        return await probe_error(*ports) is None

    await eventually(probe_succeeds, "an engine is seen to be loaded", EXPORTED_WITHIN_S)

    # The port answers HTTP but exports no metrics.
    assert "engine-ready: no engine has loaded\n" == await probe_error(ports[0], ports[0])
