"""The one table of metrics: its form, and that the documentation says the same."""

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
def test_metric_has_the_form_that_others_rely_on(metric: Metric) -> None:
    """Prometheus' conventions: who reads a name knows its kind; buckets are what Ray takes."""
    assert re.fullmatch(r"justitia_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert sorted({b for b in metric.buckets if b > 0}) == list(metric.buckets)
    assert metric.set_by in get_args(SetBy)
    assert metric.description.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)


def test_names_differ() -> None:
    """Ray takes two metrics of one name for one, and drops the labels of the second."""
    assert len(TABLE) == len({metric.name for metric in TABLE})


def test_every_label_is_bounded() -> None:
    """A label whose values callers make without end takes the memory of whoever scrapes it."""
    known = {*BOUNDED_LABELS, *OPEN_LABELS, *LABEL_VALUES, "replica"}

    assert known == {label for metric in TABLE for label in metric.own_labels}
