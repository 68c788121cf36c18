"""Fields of summary.json, computed by hand."""

import numpy
import pytest

from justitia_ray.sim.results import Lateness, RunResult, percentile, ratios_to_reference, summarise
from tests.unit.sim.result_rows import run_of

FIELDS = [
    "mean_jct_s",
    "p50_jct_s",
    "p90_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "makespan_s",
    "kv_utilization",
    "output_tokens_per_s",
    "no_later_than_vtc",
    "worst_ratio_to_vtc",
    "max_gps_lag_s",
    "delay_bound_s",
    "preemptions",
]


def test_summary_has_exactly_the_documented_fields() -> None:
    summary = summarise({"fcfs": run_of({"a": (0.0, 1.0)})})

    assert {"fcfs": FIELDS} == {policy: list(figures) for policy, figures in summary.items()}
    run = run_of({"a": (0.0, 2.0)})
    summary = summarise({"fcfs": run, "vtc-oracle": run})
    assert [None] * 4 == [
        figures[name]
        for figures in summary.values()
        for name in ("no_later_than_vtc", "worst_ratio_to_vtc")
    ]


def test_completion_times_include_only_finished_applications() -> None:
    run = run_of({"a": (0.0, 2.0), "b": (1.0, 5.0), "c": (0.0, 9.0), "d": (2.0, None)})
    figures = summarise({"fcfs": run})["fcfs"]

    assert 5.0 == figures["mean_jct_s"]
    assert 4.0 == figures["p50_jct_s"]
    assert 8.0 == pytest.approx(figures["p90_jct_s"])
    assert 8.9 == pytest.approx(figures["p99_jct_s"])
    assert 9.0 == figures["max_jct_s"]


@pytest.mark.parametrize("percent", [1, 50, 90, 99])
def test_percentiles_are_interpolated_linearly_as_by_numpy(percent: int) -> None:
    values = [3.0, 1.0, 8.0, 8.0, 2.5, 40.0, 7.25]

    assert numpy.percentile(values, percent) == pytest.approx(percentile(values, percent))


def test_throughput_counts_the_output_of_finished_inferences() -> None:
    run = run_of({"a": (0.0, 2.0), "b": (0.0, 4.0), "c": (0.0, None)}, makespan_s=4.0)

    assert 2.5 == summarise({"fcfs": run})["fcfs"]["output_tokens_per_s"]


def test_run_without_finished_applications_has_no_mean_times() -> None:
    """A mean over no applications is None, because zero would rank best."""
    figures = summarise({"fcfs": run_of({"a": (0.0, None)}, makespan_s=0.0)})["fcfs"]

    assert {"preemptions": 0} == {k: v for k, v in figures.items() if v is not None}


def test_comparison_with_vtc_counts_applications_without_a_later_end() -> None:
    vtc = run_of({"a": (0.0, 4.0), "b": (0.0, 0.3), "c": (2.0, 6.0), "d": (0.0, 9.0)})
    ours = run_of({"a": (0.0, 1.0), "b": (0.0, 0.1 + 0.2), "c": (2.0, 8.0), "d": (0.0, None)})
    summary = summarise({"justitia": ours, "vtc": vtc})

    assert 0.3 < 0.1 + 0.2
    assert 0.5 == summary["justitia"]["no_later_than_vtc"]
    assert 1.5 == summary["justitia"]["worst_ratio_to_vtc"]
    assert 1.0 == summary["vtc"]["no_later_than_vtc"]
    assert 1.0 == summary["vtc"]["worst_ratio_to_vtc"]


def test_slowdown_ratios_include_only_applications_finished_in_both_runs() -> None:
    """Each ratio is returned with the application's completion time in the reference run."""
    vtc = run_of({"a": (0.0, 4.0), "b": (0.0, None), "c": (2.0, 6.0)})
    ours = run_of({"c": (2.0, 8.0), "b": (0.0, 1.0), "a": (0.0, 1.0)})

    assert [("c", 1.5, 4.0), ("a", 0.25, 4.0)] == ratios_to_reference(ours, vtc)


def test_summary_has_the_greatest_known_lag_and_bound() -> None:
    """No application may be later than the greatest bound."""
    run = run_of({"a": (0.0, 2.0)})
    run.lateness = {
        "a": Lateness(-1.0, 3.0),
        "b": Lateness(2.0, 2.5),
        "c": Lateness(0.5, None),
    }
    unbounded = RunResult(lateness={"a": Lateness(4.0, None)})
    summary = summarise({"justitia": run, "fcfs": unbounded})

    assert (2.0, 3.0) == (
        summary["justitia"]["max_gps_lag_s"],
        summary["justitia"]["delay_bound_s"],
    )
    assert (4.0, None) == (summary["fcfs"]["max_gps_lag_s"], summary["fcfs"]["delay_bound_s"])
