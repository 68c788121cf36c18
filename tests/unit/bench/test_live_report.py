"""The figures of live and simulated runs, on runs of two applications worked out by hand."""

import pytest

from scripts.bench.live_model import Prediction
from scripts.bench.live_report import (
    SeedFigures,
    live_results,
    over_seeds,
    printed,
    seed_figures,
)
from scripts.bench.live_session import FCFS, JUSTITIA, Arm
from tests.unit.bench.live_fakes import application, inference, run

VTC = Arm("vtc", "vtc")


def figures(seed: int, jcts: dict[Arm, tuple[float, float]]) -> SeedFigures:
    """Return the figures of a seed: a KBQAV and an MRS with these times, as simulated."""
    runs = [
        run(
            arm,
            [
                application(0, 0.0, [inference(0.0, first)]),
                application(1, 0.0, [inference(0.0, second)], "MRS"),
            ],
        )
        for arm, (first, second) in jcts.items()
    ]
    live = live_results(runs)
    predictions = {arm: Prediction(result, 1.25, result) for arm, result in live.items()}
    return seed_figures(seed, runs, live, predictions)


SEEDS = [
    figures(1, {FCFS: (8.0, 12.0), VTC: (4.0, 16.0), JUSTITIA: (2.0, 14.0)}),
    figures(2, {FCFS: (10.0, 20.0), VTC: (8.0, 12.0), JUSTITIA: (4.0, 12.0)}),
]


def test_ratios_are_paired_seed_by_seed() -> None:
    """Seeds differ more than arms do: a ratio of medians would compare different loads."""
    row = over_seeds(SEEDS)["justitia"]

    assert {"median": pytest.approx(0.8), "low": 0.8, "high": 0.8} == row["mean_jct_over_vtc"]
    assert 8 / 10 == pytest.approx(row["mean_jct_over_fcfs"]["high"])
    assert 8 / 15 == pytest.approx(row["mean_jct_over_fcfs"]["low"])


def test_arms_played_alone_have_no_ratio_to_others() -> None:
    """With `--arms` there may be no `fcfs`: that costs its column, not what took half an hour."""
    seeds = [figures(1, {VTC: (4.0, 16.0), JUSTITIA: (2.0, 14.0)})]
    row = over_seeds(seeds)["justitia"]

    assert row["mean_jct_over_fcfs"] is None
    assert 0.8 == pytest.approx(row["mean_jct_over_vtc"]["median"])
    assert "–" in printed(over_seeds(seeds))
