"""Metrics of Ray's exporter, read as Prometheus does."""

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


async def scraped() -> list[Sample]:
    """Return the current samples of every node's exporter."""
    samples: list[Sample] = []
    async with httpx.AsyncClient(timeout=60) as http:
        for node in ray.nodes():
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for family in text_string_to_metric_families((await http.get(url)).text):
                samples += family.samples
    return samples
