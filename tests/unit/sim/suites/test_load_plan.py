"""Tests of load plans: repeatable, Poisson, of a given mix."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.sim.suites.load_plan import LengthPlan, PlannedApplication, plan_load
from tests.unit.sim.data_directory import write_lines


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a data directory with three inputs per class."""
    for name in WORKLOADS:
        lines = ({"id": f"{name}-{i}", "input": f"text {i}"} for i in range(3))
        write_lines(tmp_path / "apps" / f"{name}.jsonl", *lines)
    return tmp_path


def _plan_load(data_dir: Path, **options: Any) -> list[PlannedApplication]:
    lengths = LengthPlan(data_dir=data_dir)
    mix = {"KBQAV": 0.6, "SC": 0.3, "MRS": 0.1}
    given: dict[str, Any] = {"count": 300, "rate_per_s": 2.0, "mix": mix} | options
    return plan_load(lengths, **given)


def test_seed_determines_the_planned_load(data_dir: Path) -> None:
    load = _plan_load(data_dir, seed=5)

    assert load == _plan_load(data_dir, seed=5)
    assert load != _plan_load(data_dir, seed=6)


def test_arrivals_are_ordered_and_have_the_given_rate(data_dir: Path) -> None:
    load = _plan_load(data_dir)

    arrivals = [planned.arrived_at_s for planned in load]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert arrivals[-1] == pytest.approx(150, abs=3 * 8.7)
    assert [planned.number for planned in load] == list(range(300))


def test_classes_are_drawn_with_the_shares_of_the_mix(data_dir: Path) -> None:
    load = _plan_load(data_dir, count=600, mix={"SC": 2, "KBQAV": 1, "MRS": 0})

    classes = Counter(planned.application_class for planned in load)
    assert classes["KBQAV"] == pytest.approx(200, abs=3 * 11.5)
    assert set(classes) == {"SC", "KBQAV"}


def test_given_arrivals_and_tenants_change_no_other_random_draw(data_dir: Path) -> None:
    """In a comparison only the arrivals or the tenants may differ."""
    drawn = _plan_load(data_dir, count=3)
    given = _plan_load(data_dir, count=3, arrivals=[0.0, 0.5, 9.0])

    assert [0.0, 0.5, 9.0] == [planned.arrived_at_s for planned in given]
    assert [p.item_id for p in drawn] == [p.item_id for p in given]
    one = _plan_load(data_dir)
    two = _plan_load(data_dir, tenants=("a", "b"))
    assert {planned.tenant for planned in two} == {"a", "b"}
    assert [(p.arrived_at_s, p.item_id, p.lengths) for p in one] == [
        (p.arrived_at_s, p.item_id, p.lengths) for p in two
    ]


def test_every_input_is_used_once_before_any_is_repeated(data_dir: Path) -> None:
    load = _plan_load(data_dir, count=6, mix={"SC": 1})

    items = [planned.item_id for planned in load]
    assert sorted(items[:3]) == ["SC-0", "SC-1", "SC-2"]
    assert items[:3] == items[3:]
    assert {planned.text for planned in load} == {"text 0", "text 1", "text 2"}
