"""The measures and the report of scripts/bench_core: figures, growth, verdicts, tables, JSON."""

import json
from array import array
from collections.abc import Sequence

import pytest

from justitia_ray.bench.core_load import KINDS, Timings
from justitia_ray.bench.core_measures import (
    CLOCKS,
    LINEAR,
    Cell,
    Figures,
    Memory,
    Plan,
    default_plan,
    figures,
    measure_core,
    measure_linear,
    measure_memory,
)
from justitia_ray.bench.core_report import (
    JUDGED_KINDS,
    WHAT,
    comparison,
    document,
    logarithmic_slope,
    memory_table,
    slope,
    table,
    verdicts,
)

SMALL = Plan((20, 40), 2, steps=3, completions=8, warm_up_steps=1, memory_applications=50)


def cell(applications: int, p50: float, p99: Sequence[float], policy: str = "justitia") -> Cell:
    """Every kind of event at the same times, one window for each p99."""
    windows = [Figures(100, 200, p50, p50, tail, 2 * tail) for tail in p99]
    return Cell(policy, applications, {kind: list(windows) for kind in KINDS})


def memory(inference: float, churned: float, policy: str = "justitia") -> Memory:
    return Memory(policy, 1000, inference, 900.0, churned)


def test_mean_is_over_decisions_and_percentiles_are_over_events() -> None:
    """Events of 2, 4 and 60 µs with 1, 1 and 10 decisions: 66 µs / 12, and 2, 4, 6 a decision."""
    timed = Timings(array("q", [2000, 4000, 60000]), array("q", [1, 1, 10]))

    assert Figures(3, 12, 5.5, 4.0, 6.0, 6.0) == figures(timed)


def test_kind_that_did_not_happen_has_no_figures() -> None:
    """A zero would be read as fast."""
    found = Cell("justitia", 100)
    found.add({"arrival": Timings()})

    assert {} == found.windows
    assert "-" in table([cell(100, 1.0, [1.0]), Cell("justitia", 1000)]).splitlines()[2]


@pytest.mark.parametrize(("power", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_slope_is_the_power_of_n(power: float, expected: float) -> None:
    """Times 3·N^power at 100, 1,000 and 10,000."""
    found = slope([(n, 3.0 * n**power) for n in (100, 1_000, 10_000)])

    assert expected == pytest.approx(found)


def test_slope_of_one_size_is_not_known() -> None:
    """A run of one size says nothing of growth, and must not be judged by it."""
    assert (None, None) == (slope([(100, 1.0)]), logarithmic_slope([100]))
    assert not any("grows" in v.target for v in verdicts([cell(100, 1.0, [1.0])], []))


@pytest.mark.parametrize(("p99", "met"), [([90.0, 100.0, 900.0], True), ([90.0, 101, 102], False)])
def test_tail_is_judged_by_the_middle_repeat(p99: list[float], met: bool) -> None:
    """0.1 ms a decision at 10,000 live applications; one disturbed window decides nothing."""
    judged = verdicts([cell(10_000, 5.0, p99)], [])

    assert [met] * len(JUDGED_KINDS) == [verdict.met for verdict in judged]
    assert str(judged[0]).startswith("MET" if met else "MISSED")


@pytest.mark.parametrize(("most", "met"), [(1.99, True), (2.1, False)])
def test_growth_is_judged_against_log_n(most: float, met: bool) -> None:
    """From 100 to 10,000 applications log N doubles: a slope of log 2 / log 100."""
    judged = verdicts([cell(100, 1.0, [1.0]), cell(10_000, most, [9.0])], [])
    growth = [verdict.met for verdict in judged if "grows" in verdict.target]

    assert [met] * len(JUDGED_KINDS) == growth


@pytest.mark.parametrize(
    ("inference", "churned", "met"),
    [(2048.0, 2048.0, True), (2049.0, 10.0, False), (10.0, 2049.0, False)],
)
def test_memory_is_judged_full_and_after_a_window(
    inference: float, churned: float, met: bool
) -> None:
    """Entries that a window leaves behind count too."""
    (judged,) = verdicts([], [memory(inference, churned), memory(9e9, 9e9, "vtc")])

    assert met is judged.met


def test_report_names_everything_and_survives_json() -> None:
    """What is measured and not shown would be lost."""
    cells = [
        cell(size, 12.3, [123.4, 150.0, 99.9], policy)
        for policy in ("justitia", "vtc", LINEAR)
        for size in (100, 10_000)
    ]
    used = [memory(700, 1000), memory(800, 1100, "vtc")]
    text = table(cells)
    written = json.loads(json.dumps(document(cells, used, verdicts(cells, used))))

    assert "123    (99.9-150)" in text
    assert all(name in text for name in (*KINDS, "justitia", "vtc", LINEAR, "10,000"))
    assert set(KINDS) == set(WHAT)
    assert 1 + 2 * 2 == len(comparison(cells).splitlines())
    assert "vtc" in memory_table(used)
    assert [123.4, 150.0, 99.9] == [w["p99"] for w in written["cells"][0]["windows"]["pull"]]
    assert "bytes_after_churn" in written["memory"][1]


def test_core_is_timed_under_every_policy_at_every_size() -> None:
    """A window for each repeat, of every kind of event but those that ask for luck."""
    said: list[str] = []
    cells, pauses = measure_core(SMALL, ["fcfs", "justitia"], {}, 1, said.append)

    expected = [("fcfs", 20), ("justitia", 20), ("fcfs", 40), ("justitia", 40)]
    assert expected == [(c.policy, c.applications) for c in cells]
    assert all(len(c.windows[kind]) == 2 for c in cells for kind in JUDGED_KINDS)
    assert {20, 40} == set(pauses)
    assert "generation 2" in str(pauses[40])
    assert ["20 live applications, 200 waiting inferences"] == said[:1]


def test_scan_is_timed_at_every_size() -> None:
    """Beside the core's own times."""
    found = [(c.policy, c.applications, len(c.windows["grant"])) for c in measure_linear(SMALL, 1)]

    assert [(LINEAR, 20, 2), (LINEAR, 40, 2)] == found


def test_memory_counts_what_waits() -> None:
    """An inference is an object, its ids and its places in the queue: some hundred bytes."""
    used = measure_memory(SMALL, "justitia", {}, 50, 1)

    assert 300 < used.bytes_per_inference < 2048
    assert 500 < used.bytes_per_application < 10_000
    assert used.bytes_after_churn > used.bytes_per_inference


def test_plan_takes_sizes_once_and_in_order() -> None:
    """The slope needs them apart, and the table in order."""
    assert (5, 10) == default_plan([10, 5, 10], None, quick=False).sizes
    assert (100, 1_000, 10_000, 100_000) == default_plan(None, None, quick=False).sizes
    assert (3, 1) == tuple(default_plan(None, None, quick=q).repeats for q in (False, True))
    assert 7 == default_plan(None, 7, quick=True).repeats
    assert ["wall", "cpu"] == list(CLOCKS)
