"""The metrics of the table as Ray's; without a cluster they go nowhere."""

import pytest

from justitia_ray.observability.metrics import TABLE, Metric
from justitia_ray.serve.ray_metrics import RayMetrics


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_every_metric_of_the_table_can_be_made(metric: Metric) -> None:
    """Ray refuses descriptions that are not ASCII, and boundaries of 0: none would be exported."""
    backend, labels = RayMetrics(), dict.fromkeys(metric.labels, "x")

    if metric.kind == "counter":
        backend.add(metric, labels, 1)
    elif metric.kind == "gauge":
        backend.set(metric, labels, 1.0)
    else:
        backend.observe(metric, labels, 1.0)
