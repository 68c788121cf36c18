"""The figures of live and simulated runs, on runs of two applications computed by hand."""

from typing import Any

import pytest

from scripts.bench.live_model import Prediction
from scripts.bench.live_report import (
    SeedFigures,
    control_arm_line,
    figures_of_seed,
    live_results,
    off_beyond_limit,
    order_of,
    over_seeds,
    seeds_table,
)
from scripts.bench.live_session import CONTROL, FCFS, JUSTITIA, VTC, Arm
from tests.unit.bench.live_fakes import live_run, played_application, recorded_inference


def seed_with_two_applications(seed: int, jcts: dict[Arm, tuple[float, float]]) -> SeedFigures:
    """Return figures of a KBQAV and an MRS application with the given completion times."""
    runs = [
        live_run(
            arm,
            [
                played_application(0, 0.0, [recorded_inference(0.0, first)]),
                played_application(1, 0.0, [recorded_inference(0.0, second)], "MRS"),
            ],
        )
        for arm, (first, second) in jcts.items()
    ]
    live = live_results(runs)
    predictions = {arm: Prediction(result, 1.25, result) for arm, result in live.items()}
    return figures_of_seed(seed, runs, live, predictions)


SEEDS = [
    seed_with_two_applications(1, {FCFS: (8.0, 12.0), VTC: (4.0, 16.0), JUSTITIA: (2.0, 14.0)}),
    seed_with_two_applications(2, {FCFS: (10.0, 20.0), VTC: (8.0, 12.0), JUSTITIA: (4.0, 12.0)}),
]


def test_ratios_between_arms_are_paired_by_seed() -> None:
    """Seeds differ more than arms, so a ratio of medians would compare different loads."""
    row = over_seeds(SEEDS)["justitia"]

    assert {"median": pytest.approx(0.8), "low": 0.8, "high": 0.8} == row["mean_jct_over_vtc"]
    assert 8 / 10 == pytest.approx(row["mean_jct_over_fcfs"]["high"])
    assert 8 / 15 == pytest.approx(row["mean_jct_over_fcfs"]["low"])


def test_mean_completion_time_of_each_arm_is_divided_by_that_under_justitia() -> None:
    table = over_seeds(SEEDS)

    over = {"median": 25 / 16, "low": 10 / 8, "high": 15 / 8}
    assert pytest.approx(over) == table["fcfs"]["mean_jct_over_justitia"]
    assert pytest.approx(over) == table["fcfs"]["simulated_mean_jct_over_justitia"]
    head, fcfs, *_ = seeds_table(table).splitlines()
    assert "  over vtc  " in head
    assert "  over fcfs  " in head
    assert "  over justitia  " in head
    assert "  1.56 (1.25 to 1.88)  " in fcfs


def test_single_arm_has_no_ratios() -> None:
    seeds = [seed_with_two_applications(1, {VTC: (4.0, 16.0), JUSTITIA: (2.0, 14.0)})]
    row = over_seeds(seeds)["justitia"]

    assert row["mean_jct_over_fcfs"] is None
    assert 0.8 == pytest.approx(row["mean_jct_over_vtc"]["median"])
    assert "–" in seeds_table(over_seeds(seeds))
    assert (
        over_seeds([seed_with_two_applications(1, {VTC: (4.0, 16.0)})])["vtc"][
            "mean_jct_over_justitia"
        ]
        is None
    )


CONTROLLED = [
    seed_with_two_applications(1, {VTC: (4.0, 16.0), CONTROL: (6.0, 15.0), JUSTITIA: (3.0, 24.0)})
]
"""Seed with a control arm whose completion times are 6/4 and 15/16 of those under `vtc`."""


def test_control_arm_is_compared_with_vtc() -> None:
    """The control arm shows the noise of all figures relative to `vtc`."""
    row = over_seeds(CONTROLLED)["vtc-again"]

    assert 1.5 == pytest.approx(row["worst_ratio_to_vtc"]["median"])
    assert 0.5 == pytest.approx(row["no_later_than_vtc"]["median"])
    assert 21 / 20 == pytest.approx(row["mean_jct_over_vtc"]["median"])
    assert 21 / 27 == pytest.approx(row["mean_jct_over_justitia"]["median"])


def test_control_arm_is_not_ranked() -> None:
    table = over_seeds(CONTROLLED)

    assert ["vtc", "justitia"] == order_of(table, "mean_jct_s")
    assert ["vtc", "justitia"] == order_of(table, "simulated_mean_jct_s")


@pytest.mark.parametrize(
    ("arms", "is_told"),
    [((VTC, CONTROL, FCFS), True), ((VTC, FCFS), False), ((CONTROL, FCFS), False)],
)
def test_report_explains_the_control_arm(arms: tuple[Arm, ...], is_told: bool) -> None:
    line = control_arm_line(
        over_seeds([seed_with_two_applications(1, dict.fromkeys(arms, (4.0, 16.0)))])
    )

    assert is_told == bool(line)
    assert is_told == line.startswith("vtc-again is vtc played once more")


def test_each_policy_beyond_the_error_limit_is_named_once() -> None:
    errors = {"fcfs": -0.16, "vtc": 0.2, "vtc-again": 0.3, "srjf": 0.15}
    table: dict[str, dict[str, Any]] = {
        arm: {"error": {"median": error}} for arm, error in errors.items()
    }
    table["app-fcfs"] = {"error": None}
    elephants: dict[str, dict[str, Any]] = {"justitia": {"error": -0.4}, "srjf": {"error": None}}

    expected = ["fcfs -16%", "vtc +20%", "elephant, justitia -40%"]
    assert expected == off_beyond_limit(table, elephants)
    del table["vtc"]
    expected[1] = "vtc-again +30%"
    assert expected == off_beyond_limit(table, elephants)
