"""Loads: deterministic, Poisson, of a given mix."""

import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.workloads import DEFAULT_MIX, WORKLOADS, LengthPlan, LoadPlan


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


def test_dealt_classes_have_exactly_the_mix(data_dir: Path) -> None:
    """Drawn one by one, of a hundred applications none to five would be of a class of 1 %."""
    mix = {"SC": 7, "KBQAV": 2, "DM": 1}
    load = _load(data_dir, count=40, mix=mix, dealt=True).applications()

    classes = [planned.application_class for planned in load]
    for start in range(0, 40, 10):
        assert Counter(mix) == Counter(classes[start : start + 10])
    assert classes[:10] != classes[10:20]


def test_given_arrivals_are_kept(data_dir: Path) -> None:
    """A recorded trace comes in place of a Poisson process, and moves nothing else."""
    drawn = _load(data_dir, count=3).applications()
    given = _load(data_dir, count=3, arrivals=[0.0, 0.5, 9.0]).applications()

    assert [0.0, 0.5, 9.0] == [planned.arrived_at_s for planned in given]
    assert [p.item_id for p in drawn] == [p.item_id for p in given]


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
    for name in DEFAULT_MIX:
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
        ({"mix": {"XY": 1.0}}, "mix must name classes of SC, KBQAV, MRS, .*, got 'XY'"),
        ({"mix": {"SC": -1.0}}, r"mix\[SC\] must be a number >= 0, got -1.0"),
        ({"mix": {"SC": 0.0}}, "mix must have a share > 0"),
        ({"mix": {"SC": 0.5}, "dealt": True}, r"mix\[SC\] must be a whole number to be dealt, got"),
        ({"count": 2, "arrivals": [1.0]}, "arrivals must be 2 instants >= 0 in order, got 1"),
        ({"count": 2, "arrivals": [2.0, 1.0]}, "arrivals must be 2 instants >= 0 in order"),
        ({"count": 1, "arrivals": [-1.0]}, "arrivals must be 1 instants >= 0"),
    ],
)
def test_options_out_of_range_are_refused(
    data_dir: Path, options: dict[str, Any], said: str
) -> None:
    """By name, value and what is allowed."""
    with pytest.raises(ConfigError, match=said):
        _load(data_dir, **options)
