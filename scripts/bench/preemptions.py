"""Preemptions that engines have counted since their start: vLLM's own servers, and this service."""

import asyncio
import json
import time

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from scripts.bench.load import Target

_METRIC = "vllm:num_preemptions_total"
_PULLS_WITHIN_S: Seconds = 5.0
"""Seconds within which a running replica reports; replicas ended by an update never report."""
_POLL_S: Seconds = 0.1


async def read_server_preemptions(server: Target) -> int:
    """Return the preemptions of a vLLM server from its metrics.

    Raises:
        JustitiaError: If the server does not export them.
    """
    text = (await _get(server, "/metrics")).decode()
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(_METRIC)]
    if not values:
        raise JustitiaError(f"port {server.port}: /metrics has no {_METRIC}")
    return round(sum(map(float, values)))


async def read_service_preemptions(service: Target) -> int:
    """Return the preemptions of a service's engines once every replica has reported again.

    Raises:
        JustitiaError: If the service does not answer.
    """
    asked_at = time.monotonic()
    while True:
        status = json.loads(await _get(service, f"{service.route_prefix}/v1/status"))
        waited_s = time.monotonic() - asked_at
        silent_s = max((one["silent_s"] for one in status["replicas"].values()), default=0.0)
        if silent_s < waited_s or waited_s > _PULLS_WITHIN_S:
            return int(status["kv"]["preemptions"])
        await asyncio.sleep(_POLL_S)


async def _get(target: Target, path: str) -> bytes:
    async with target.open() as connection:
        reply = await connection.get(path)
    if reply.status != 200:
        raise JustitiaError(f"port {target.port}: {path} answered with status {reply.status}")
    return reply.body
