"""Worked examples of the shadow of VTC: whole inferences ahead of the level, gaps, changes."""

import pytest

from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.policies.guarded.shadow import VtcModel
from justitia_ray.core.stages import ExpectedStage

ONE = ExpectedStage(1, 100, 1000, 8, 0)
"""Stage of one call that holds 125 KV tokens for 4 s."""
FOUR = ExpectedStage(4, 100, 1000, 8, 0)
"""Stage of four calls that each hold 31.25 KV tokens for 4 s."""


def _shadow_clock(*stages: ExpectedStage, of: str = "1", kv_tokens: float = 0) -> VtcModel:
    """Return a simulated VTC on replicas that serve 100 KV token·iterations per second.

    It has one application of weight 1. Without memory X rises by the service, once all started work
    has been served.
    """
    pace = Pace()
    pace.kv_per_s, pace.iteration_s = 100, 0.5
    clock = VtcModel(pace)
    clock.kv_in_flight = kv_tokens
    clock.advance(0, 0.0)
    clock.add(of, 1, int(of), stages)
    return clock


def test_simulated_vtc_counter_excludes_the_service_of_first_inferences() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=31.25)
    clock.advance(100, 1.0)

    assert (100 - 62.5) / 10 == clock.level

    clock.add("2", 1, 2, [FOUR])
    clock.advance(100 + 150, 3.0)

    assert 3.75 == clock.level

    clock.advance(125 + 40, 4.0)

    assert 3.75 + 40 / 20 == clock.level

    clock.advance((62.5 + 20) / 2, 4.5)

    assert 5.75 + 10 / 20 == clock.level


def test_simulated_work_in_flight_is_limited_by_the_memory() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=31.25 * 2.5)
    clock.advance(0, 0.0)

    assert (25 * 1.5, 250 * 2.5) == (clock.level, clock.owed)

    clock.kv_in_flight = 125
    clock.advance(0, 0.0)

    assert (75, 1000) == (clock.level, clock.owed)
    assert 4 == clock.ends_at("1", 0.0)


def test_length_of_simulated_work_in_flight_is_the_mean_of_started_inferences() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=31.25 + 62.5 + 30)
    clock.add("2", 1, 2, [ExpectedStage(4, 400, 8000, 32, 0)])
    clock.advance(0, 0.0)

    length = (10 * 8 + 20 * 32) / 30
    assert 30 * length / 30 == clock.level
    assert 250 + 2000 + 30 * length == clock.owed


def test_simulated_cohort_runs_when_its_gathering_time_is_over() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=125)
    clock.advance(1000, 16.0)

    assert (750, 750) == (clock.flights.rest(16.0), clock.owed)

    clock.add("2", 1, 2, [FOUR])
    clock.advance(250 * 2 + 30, 18.0)

    assert 75 + 30 / 10 == clock.level
    assert 187.5 * 2 + 62.5 * 2 + 30 == clock.flights.rest(18.0)

    clock.advance(250 * 2, 20.0)

    assert 78 + 72 == clock.level
    assert clock.shadows["2"].is_through


def test_simulation_starts_no_work_while_running_work_exceeds_the_memory() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=31.25)
    clock.add("2", 1, 2, [FOUR._replace(output_tokens=4)])
    clock.advance(187.5 * 1.9, 1.9)

    assert 0 == clock.level

    clock.advance(187.5 * 0.1 + 10, 2.0)

    assert 10 / 20 == clock.level


def test_shorter_true_length_ends_a_simulated_inference_earlier() -> None:
    clock = _shadow_clock(FOUR, kv_tokens=31.25 + 100)
    clock.add("2", 1, 2, [ONE])
    clock.advance(62.5 + 250, 1.0)
    clock.change("2", [ExpectedStage(1, 40, 400, 4, 0)], 1)
    clock.advance((62.5 + 200) / 2, 1.5)

    assert 50 / 10 == clock.level

    clock.advance((62.5 + 200) / 2, 2.0)

    assert 75 == clock.level


def test_simulated_stage_waits_for_its_vtc_counter_after_the_tool_call() -> None:
    clock = _shadow_clock(ONE._replace(gap_s=5), ONE)
    clock.add("2", 1, 2, [FOUR])
    clock.advance(1000 + 250 + 540, 9.0)

    assert 54 == clock.level
    assert not clock.shadows["1"].is_through
    assert 9 + (100 - 63) * (10 + 10) / 100 + 4 == clock.ends_at("1", 9.0)

    clock.advance(210, 15.0)

    assert 15 == pytest.approx(clock.shadows["1"].last_started_at)
    assert 100 == clock.level


def test_simulated_counter_of_an_application_rises_slower_than_since_its_arrival() -> None:
    clock = _shadow_clock(FOUR)
    clock.advance(250, 5.0)
    clock.advance(100, 6.0)
    clock.add("2", 1, 2, [FOUR])
    clock.advance(250, 11.0)
    clock.advance(30 * (10 + 10), 12.0)

    assert 40 == clock.level
    assert 12 + 40 * (10 + 10) / 100 + 4 == clock.ends_at("2", 12.0)

    shadow = clock.shadows["2"]
    assert 45 == shadow.ahead(40)
    assert 40 == shadow.before(45)


def test_simulated_stage_lasts_as_long_as_its_longest_inference() -> None:
    clock = _shadow_clock(ONE, ONE)
    clock.advance(5000, 1.0)

    assert (100, 0) == (clock.level, clock.shadows["1"].at)

    clock.advance(0, 4.0)

    assert 1 == clock.shadows["1"].at
    assert 4 + 4 == clock.ends_at("1", 4.0)


def test_simulated_debt_changes_by_the_error_of_the_predicted_length() -> None:
    clock = _shadow_clock(ONE)
    clock.add("2", 1, 2, [FOUR])
    clock.change("1", [ExpectedStage(1, 40, 400, 16, 0)], 1)

    assert 400 + 250 == clock.owed

    clock.advance(650, 5.0)
    clock.change("1", [ExpectedStage(1, 30, 300, 12, 0)], 1)
    clock.advance(0, 6.0)

    assert 100 / 10 == clock.level


def test_stage_with_another_call_starts_its_last_call_later() -> None:
    clock = _shadow_clock(ONE)
    clock.add("2", 1, 2, [FOUR])

    was_through = clock.shadows["1"].is_through
    clock.change("1", [ExpectedStage(2, 200, 2000, 40, 0)], 1)

    assert (True, False) == (was_through, clock.shadows["1"].is_through)
    assert 10 + 10 == clock.density.total


def test_weight_change_keeps_the_simulated_served_tokens() -> None:
    clock = _shadow_clock(FOUR)
    clock.advance(250, 5.0)
    clock.advance(500, 6.0)
    clock.change("1", [FOUR], 2)

    assert 25 == clock.shadows["1"].entered
    assert 50 + 25 / 2 == clock.shadows["1"].level_of_last


def test_simulated_application_ends_when_its_later_stages_are_dropped() -> None:
    clock = _shadow_clock(ONE, FOUR)
    clock.advance(1000, 4.0)

    assert 1 == clock.shadows["1"].at

    clock.change("1", [ONE], 1)

    assert 4.0 + 4 == clock.ends_at("1", 4.0)
    assert 0 == clock.density.total

    clock.change("1", [ONE, FOUR], 1)

    assert (1, clock.level) == (clock.shadows["1"].at, clock.shadows["1"].entered)
    assert 10 == clock.density.total


def test_simulation_forgets_the_debt_of_a_forgotten_application() -> None:
    clock = _shadow_clock(FOUR)
    clock.add("2", 1, 2, [ONE])
    clock.remove("2")
    clock.remove("2")

    assert 250 == clock.owed


@pytest.mark.parametrize("stages", [[ONE], [FOUR], [ONE, FOUR]])
def test_simulation_of_an_ended_application_is_forgotten_once_served(
    stages: list[ExpectedStage],
) -> None:
    clock = _shadow_clock(*stages)
    clock.release("1")

    assert {"1"} == clock.shadows.keys()

    clock.advance(10_000, 100.0)

    assert {} == clock.shadows
    assert 0 == clock.density.total
