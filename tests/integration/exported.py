"""What Ray's own exporter serves of our metrics: read from where Prometheus would read it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
import ray
from prometheus_client.parser import text_string_to_metric_families

from justitia_ray.observability.metrics import Metric


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the exporter."""

    name: str
    labels: Mapping[str, str]
    value: float


async def scraped(application: str) -> list[Sample]:
    """Return what every node's exporter says of one Serve application now."""
    samples: list[Sample] = []
    async with httpx.AsyncClient() as http:
        for node in ray.nodes():
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            samples += _parsed((await http.get(url)).text)
    return [sample for sample in samples if sample.labels.get("application") == application]


def values(samples: list[Sample], metric: Metric, **labels: str) -> list[float]:
    """Return the values of a metric's series with these labels; of a histogram, its counts."""
    name = metric.exported[-1]
    return [
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def _parsed(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("ray_justitia_"):
                yield Sample(sample.name, sample.labels, sample.value)
