"""Loads: deterministic, Poisson, of a given mix."""

import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.workloads import WORKLOADS, LengthPlan, LoadPlan


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three inputs of each class."""
    (tmp_path / "apps").mkdir()
    for name in WORKLOADS:
        lines = [json.dumps({"id": f"{name}-{i}", "input": f"text {i}"}) for i in range(3)]
        (tmp_path / "apps" / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def _load(data_dir: Path, **options: Any) -> LoadPlan:
    defaults: dict[str, Any] = {"count": 300, "rate_per_s": 2.0, "data_dir": data_dir}
    return LoadPlan(LengthPlan(), **(defaults | options))


def test_the_same_seed_draws_the_same_load(data_dir: Path) -> None:
    """Policies are compared on it, and a result file names it by its seed."""
    load = _load(data_dir, seed=5).applications()

    assert load == _load(data_dir, seed=5).applications()
    assert load != _load(data_dir, seed=6).applications()


def test_arrivals_come_in_order_at_the_given_rate(data_dir: Path) -> None:
    """300 at 2 a second take 150 s, with a standard deviation of sqrt(300)/2 = 8.7 s."""
    load = _load(data_dir).applications()

    arrivals = [planned.arrived_at_s for planned in load]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert arrivals[-1] == pytest.approx(150, abs=3 * 8.7)
    assert [planned.number for planned in load] == list(range(300))


def test_the_mix_is_kept(data_dir: Path) -> None:
    """600 draws at 1/3: a standard deviation of 11.5. A share of zero means none."""
    load = _load(data_dir, count=600, mix={"SC": 2, "KBQAV": 1, "MRS": 0}).applications()

    classes = Counter(planned.application_class for planned in load)
    assert classes["KBQAV"] == pytest.approx(200, abs=3 * 11.5)
    assert set(classes) == {"SC", "KBQAV"}


def test_a_change_of_tenants_leaves_the_rest(data_dir: Path) -> None:
    """What is compared must be the only thing that differs."""
    one = _load(data_dir).applications()
    two = _load(data_dir, tenants=("a", "b")).applications()

    assert {planned.tenant for planned in two} == {"a", "b"}
    assert [(p.arrived_at_s, p.item_id, p.lengths) for p in one] == [
        (p.arrived_at_s, p.item_id, p.lengths) for p in two
    ]


def test_draws_do_not_decide_each_other(data_dir: Path) -> None:
    """One stream of numbers for all would make every large application follow a long pause."""
    load = _load(data_dir, tenants=("a", "b")).applications()

    pauses = [b.arrived_at_s - a.arrived_at_s for a, b in pairwise(load)]
    for name in WORKLOADS:
        of_class = [
            (pause, planned.tenant)
            for pause, planned in zip(pauses, load[1:], strict=True)
            if planned.application_class == name
        ]
        assert min(of_class)[0] < statistics.median(pauses) < max(of_class)[0]
        assert {tenant for _, tenant in of_class} == {"a", "b"}


def test_inputs_are_used_up_before_any_repeats(data_dir: Path) -> None:
    """Distinct inputs, as in the paper, as far as there are any."""
    load = _load(data_dir, count=6, mix={"SC": 1}).applications()

    items = [planned.item_id for planned in load]
    assert sorted(items[:3]) == ["SC-0", "SC-1", "SC-2"]
    assert items[:3] == items[3:]
    assert {planned.text for planned in load} == {"text 0", "text 1", "text 2"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "count must be >= 1, got 0"),
        ({"rate_per_s": 0.0}, "rate_per_s must be a number > 0, got 0.0"),
        ({"tenants": ()}, "tenants must name at least one"),
        ({"mix": {"PE": 1.0}}, "mix must name classes of SC, KBQAV, MRS, got 'PE'"),
        ({"mix": {"SC": -1.0}}, r"mix\[SC\] must be a number >= 0, got -1.0"),
        ({"mix": {"SC": 0.0}}, "mix must have a share > 0"),
    ],
)
def test_options_out_of_range_are_refused(
    data_dir: Path, options: dict[str, Any], said: str
) -> None:
    """By name, value and what is allowed."""
    with pytest.raises(ConfigError, match=said):
        _load(data_dir, **options)
