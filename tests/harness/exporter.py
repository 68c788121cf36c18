"""Metrics of Ray's exporter, read as Prometheus reads them."""

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


async def scrape_samples() -> list[Sample]:
    """Return the current metrics of all nodes' exporters."""
    samples: list[Sample] = []
    async with httpx.AsyncClient(timeout=60) as http:
        for node in ray.nodes():
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for family in text_string_to_metric_families((await http.get(url)).text):
                samples += family.samples
    return samples
