"""The report of scripts/bench_core: figures, growth, verdicts, tables, JSON."""

from collections.abc import Sequence

import pytest

from justitia_ray.lab.core_load import KINDS
from scripts.bench.core import Cell, Figures, Memory
from scripts.bench.core_report import JUDGED_KINDS, verdicts


def benchmark_cell(
    applications: int, p50: float, p99: Sequence[float], policy: str = "justitia"
) -> Cell:
    """Return benchmark timings with one window for each given p99."""
    windows = [Figures(100, 200, p50, p50, tail, 2 * tail) for tail in p99]
    return Cell(policy, applications, {kind: list(windows) for kind in KINDS})


def memory_figures(inference: float, churned: float, policy: str = "justitia") -> Memory:
    return Memory(policy, 1000, inference, 900.0, churned)


@pytest.mark.parametrize(("p99", "met"), [([90.0, 100.0, 900.0], True), ([90.0, 101, 102], False)])
def test_reported_p99_is_the_median_of_the_repeats(p99: list[float], met: bool) -> None:
    """One disturbed window must not decide whether the target of 0.1 ms a decision is met."""
    judged = verdicts([benchmark_cell(10_000, 5.0, p99)], [])

    assert [met] * len(JUDGED_KINDS) == [verdict.met for verdict in judged]
    assert str(judged[0]).startswith("MET" if met else "MISSED")


@pytest.mark.parametrize(("most", "met"), [(1.99, True), (2.1, False)])
def test_growth_of_the_decision_time_is_compared_with_log_n(most: float, met: bool) -> None:
    judged = verdicts([benchmark_cell(100, 1.0, [1.0]), benchmark_cell(10_000, most, [9.0])], [])
    growth = [verdict.met for verdict in judged if "grows" in verdict.target]

    assert [met] * len(JUDGED_KINDS) == growth


@pytest.mark.parametrize(
    ("inference", "churned", "met"),
    [(2048.0, 2048.0, True), (2049.0, 10.0, False), (10.0, 2049.0, False)],
)
def test_core_memory_is_measured_at_full_load_and_after_a_window(
    inference: float, churned: float, met: bool
) -> None:
    (judged,) = verdicts([], [memory_figures(inference, churned), memory_figures(9e9, 9e9, "vtc")])

    assert met is judged.met
