"""The figures of live and simulated runs, on runs of two applications worked out by hand."""

import pytest

from justitia_ray.bench.live_arms import ARMS, FCFS, JUSTITIA, Arm, rotated
from justitia_ray.bench.live_figures import (
    SeedFigures,
    class_table,
    cpu_line,
    live_results,
    order_of,
    over_seeds,
    printed,
    seed_figures,
)
from justitia_ray.bench.live_model import Prediction
from tests.unit.bench.live_made_up import application, inference, run

VTC = Arm("vtc", "vtc")


def figures(seed: int, jcts: dict[Arm, tuple[float, float]], simulated: float) -> SeedFigures:
    """Return the figures of a seed: a KBQAV and an MRS with these times, and their simulation."""
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
    scaled = [
        run(
            one.arm,
            [
                application(
                    p.planned.number,
                    0.0,
                    [inference(0.0, simulated * p.record.jct_s)],
                    p.record.application_class,
                )
                for p in one.played
            ],
        )
        for one in runs
    ]
    predictions = {
        arm: Prediction(live[arm], 1.25, result) for arm, result in live_results(scaled).items()
    }
    return seed_figures(seed, runs, live, predictions)


SEEDS = [
    figures(1, {FCFS: (8.0, 12.0), VTC: (4.0, 16.0), JUSTITIA: (2.0, 14.0)}, 1.1),
    figures(2, {FCFS: (10.0, 20.0), VTC: (8.0, 12.0), JUSTITIA: (4.0, 12.0)}, 0.8),
]


def test_ratios_are_paired_seed_by_seed() -> None:
    """Seeds differ more than arms do: a ratio of medians would compare different loads."""
    row = over_seeds(SEEDS)["justitia"]

    assert {"median": pytest.approx(0.8), "low": 0.8, "high": 0.8} == row["mean_jct_over_vtc"]
    assert 8 / 10 == pytest.approx(row["mean_jct_over_fcfs"]["high"])
    assert 8 / 15 == pytest.approx(row["mean_jct_over_fcfs"]["low"])


def test_error_is_of_the_simulated_mean_against_the_live_one() -> None:
    """Its sign says which of them is too fast."""
    assert 0.1 == pytest.approx(SEEDS[0].error("vtc"))
    assert -0.2 == pytest.approx(SEEDS[1].error("vtc"))


def test_share_no_later_and_worst_ratio_are_against_vtc_of_the_same_seed() -> None:
    """They are the papers' measures of fairness."""
    found = SEEDS[0].live["fcfs"]

    assert (0.5, 2.0) == (found["no_later_than_vtc"], found["worst_ratio_to_vtc"])


def test_classes_are_kept_apart() -> None:
    """A mean over all is ruled by the large ones."""
    assert (1, 2.0) == (
        SEEDS[0].classes["KBQAV"]["justitia"]["applications"],
        SEEDS[0].classes["KBQAV"]["justitia"]["mean_jct_s"],
    )
    assert 14.0 * 1.1 == pytest.approx(SEEDS[0].classes["MRS"]["justitia"]["simulated_mean_jct_s"])


def test_speed_of_the_machine_is_shown_beside_the_error() -> None:
    """The one error is the model's, the other also of what it was not told."""
    row = over_seeds(SEEDS)["fcfs"]

    assert 1.25 == row["slowness"]["median"]
    assert pytest.approx(0.0) == row["error_at_usual_speed"]["high"]
    assert pytest.approx(0.1) == row["error"]["high"]


def test_cpu_time_is_shown_by_role() -> None:
    """On two cores it says whether memory or computation is what lacks."""
    assert "CPU seconds of a run: engine 1.0; it takes 10.0 s." == cpu_line(SEEDS)


def test_order_of_arms_goes_by_the_median() -> None:
    """Whether live and simulated agree on it is what a user of the simulator asks first."""
    assert ["justitia", "vtc", "fcfs"] == order_of(over_seeds(SEEDS), "mean_jct_s")


def test_tables_name_every_arm_and_class() -> None:
    """They are what people read."""
    text = printed(over_seeds(SEEDS)) + class_table(SEEDS)

    for name in ("fcfs", "vtc", "justitia", "KBQAV", "MRS", "12.5 (10.0 to 15.0)"):
        assert name in text


def test_every_arm_takes_every_place_once_in_as_many_seeds_as_arms() -> None:
    """A machine that becomes slower must not do it to the same arm each time."""
    orders = [rotated(ARMS, index) for index in range(len(ARMS))]

    for place in range(len(ARMS)):
        assert set(ARMS) == {order[place] for order in orders}
