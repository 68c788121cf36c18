"""The table of metrics: its format, and its agreement with the documentation."""

import re
from typing import get_args

import pytest

from justitia_ray.observability.metrics import (
    BOUNDED_LABELS,
    LABEL_VALUES,
    OPEN_LABELS,
    TABLE,
    Metric,
    SetBy,
)


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_metric_name_follows_the_prometheus_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"justitia_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert sorted({b for b in metric.buckets if b > 0}) == list(metric.buckets)
    assert metric.set_by in get_args(SetBy)
    assert metric.description.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)


def test_metric_names_are_unique() -> None:
    """Ray merges two metrics of the same name and drops the labels of the second."""
    assert len(TABLE) == len({metric.name for metric in TABLE})


def test_every_metric_label_has_a_bounded_number_of_values() -> None:
    """Unbounded label values would fill Prometheus' memory."""
    known = {*BOUNDED_LABELS, *OPEN_LABELS, *LABEL_VALUES, "replica"}

    assert known == {label for metric in TABLE for label in metric.own_labels}
