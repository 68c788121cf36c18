"""Worked examples of the shadow of VTC: whole inferences ahead of the level, gaps, changes."""

import pytest

from justitia_ray.core.clock.pace import Pace
from justitia_ray.core.clock.shadow import ShadowClock
from justitia_ray.core.stages import ExpectedStage

ONE = ExpectedStage(1, 100, 1000, 40, 0)
FOUR = ExpectedStage(4, 100, 1000, 40, 0)


def _clock(*stages: ExpectedStage, of: str = "1") -> ShadowClock:
    """Return a clock of replicas that serve 100 a second, an iteration a tenth of one, at 0.

    It has one application of weight 1, and nothing is known of the memory.
    """
    pace = Pace()
    pace.kv_per_s, pace.iteration_s = 100, 0.1
    clock = ShadowClock(pace)
    clock.advance(0, 0.0)
    clock.add(of, 1, int(of), stages)
    return clock


def test_level_rises_by_what_first_inferences_leave() -> None:
    """A first call takes 62.5 a second for 4 s, two more than is served; then 20 raise X by 1."""
    clock = _clock(FOUR)
    clock.advance(100, 1.0)

    assert (100 - 62.5) / 10 == clock.level

    clock.add("2", 1, 2, [FOUR])
    clock.advance(100, 2.0)
    clock.advance(150, 3.0)

    assert 3.75 == clock.level  # they were served 25 late

    clock.advance(125 + 40, 4.0)

    assert 3.75 + 40 / 20 == clock.level

    clock.advance(62.5 + 20, 5.0)  # the one of "1" is over

    assert 5.75 + 20 / 20 == clock.level


def test_as_much_runs_ahead_as_the_memory_holds_half_served() -> None:
    """Besides a first inference, each of 43.75 tokens is held for 20 iterations more, half of 40.

    875 let the level rise by 75: all start. A newcomer's first inference takes 6.25 tokens more.
    """
    clock = _clock(FOUR)
    clock.kv_tokens = 50
    clock.advance(0, 1.0)

    assert (75, 1000) == (clock.level, clock.owed)
    assert 4 == clock.ends_at("1", 1.0)

    clock.add("2", 1, 2, [FOUR])
    clock.advance(125 + 62.5, 2.0)

    assert 75 == clock.level  # 750 are in flight of 37.5 tokens now

    clock.advance(125 + 10, 3.0)

    assert 76 == clock.level


def test_what_is_in_flight_is_as_long_as_what_vtc_serves() -> None:
    """VTC serves 30 at each level: 10 of inferences of 40 tokens, and 20 of ones of 100."""
    clock = _clock(FOUR)
    clock.add("2", 1, 2, [ExpectedStage(4, 100, 2000, 100, 0)])
    clock.kv_tokens = 16
    clock.advance(250 + 500, 1.0)

    half_a_length = (10 * 40 + 20 * 100) / 30 / 2
    first_ones = 250 * 3 / 4 + 500 * 9 / 10
    assert first_ones + (16 - 250 / 40 - 500 / 100) * half_a_length == clock.owed
    assert clock.owed / 30 == clock.level


def test_true_length_ends_a_first_inference_sooner() -> None:
    """A call has run 10 of 40 iterations: with 16 in all it has 0.6 s to go, with 8 none."""
    clock = _clock(FOUR)
    clock.add("2", 1, 2, [ONE])
    clock.advance(62.5 + 250, 1.0)
    clock.change("2", [ExpectedStage(1, 40, 400, 16, 0)], 1)
    clock.advance(62.5 * 0.6 + 250 * 0.6, 1.6)

    assert 0 == clock.level  # it took as much as was served

    clock.advance(62.5 + 10, 2.6)

    assert 1 == clock.level
    clock.change("2", [ExpectedStage(1, 20, 200, 8, 0)], 1)
    clock.advance(62.5 + 10, 3.6)

    assert 1 + (200 + 10) / 10 == clock.level  # 200 of its 400 were given to nobody


def test_next_stage_waits_for_its_counter_while_its_gap_passes() -> None:
    """The first call is over after 4 s, its tool after 9; the level of 100 tokens comes later."""
    clock = _clock(ONE._replace(gap_s=5), ONE)
    clock.add("2", 1, 2, [FOUR])
    clock.advance(1000 + 250 + 540, 9.0)

    assert 54 == clock.level
    assert not clock.shadows["1"].is_through
    assert 9 + (100 - 63) * (10 + 10) / 100 + 4 == clock.ends_at("1", 9.0)

    clock.advance(210, 15.0)  # three quarters of its tokens: the other starts its last

    assert 15 == clock.shadows["1"].last_started_at
    assert 100 == clock.level


def test_own_end_is_foretold_a_sixth_ahead_of_what_the_level_has_risen_since_it_came() -> None:
    """It came at 10, and X is at 40: for it at 45, so that 40 of its 75 are left."""
    clock = _clock(FOUR)
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


def test_stage_lasts_as_long_as_its_longest_inference() -> None:
    """Plenty of service brings the level to the next stage, and not its caller."""
    clock = _clock(ONE, ONE)
    clock.advance(5000, 1.0)

    assert (100, 0) == (clock.level, clock.shadows["1"].at)

    clock.advance(0, 4.0)

    assert 1 == clock.shadows["1"].at
    assert 4 + 4 == clock.ends_at("1", 4.0)


def test_true_length_changes_what_is_owed_by_the_difference() -> None:
    """A call that took 400 instead of 1,000 has let the others wait for 600 that nobody took."""
    clock = _clock(ONE)
    clock.add("2", 1, 2, [FOUR])
    clock.change("1", [ExpectedStage(1, 40, 400, 16, 0)], 1)

    assert 400 + 250 == clock.owed

    clock.advance(650, 5.0)
    clock.change("1", [ExpectedStage(1, 30, 300, 12, 0)], 1)
    clock.advance(0, 6.0)

    assert 100 / 10 == clock.level


def test_stage_that_grows_starts_its_last_later() -> None:
    """It was through with one call; with a second as long, half of its tokens come first."""
    clock = _clock(ONE)
    clock.add("2", 1, 2, [FOUR])

    was_through = clock.shadows["1"].is_through
    clock.change("1", [ExpectedStage(2, 200, 2000, 40, 0)], 1)

    assert (True, False) == (was_through, clock.shadows["1"].is_through)
    assert 10 + 10 == clock.density.total


def test_more_weight_keeps_the_tokens_that_were_served() -> None:
    """50 of 100 tokens are 50 levels at weight 1, and 25 at weight 2; so are the 25 to come."""
    clock = _clock(FOUR)
    clock.advance(250, 5.0)
    clock.advance(500, 6.0)
    clock.change("1", [FOUR], 2)

    assert 25 == clock.shadows["1"].entered
    assert 50 + 25 / 2 == clock.shadows["1"].level_of_last


def test_fewer_stages_than_it_has_entered_end_it_and_more_go_on() -> None:
    """It is through when that is told, and enters what is told later where the level is then."""
    clock = _clock(ONE, FOUR)
    clock.advance(1000, 4.0)

    assert 1 == clock.shadows["1"].at

    clock.change("1", [ONE], 1)

    assert 4.0 + 4 == clock.ends_at("1", 4.0)
    assert 0 == clock.density.total

    clock.change("1", [ONE, FOUR], 1)

    assert (1, clock.level) == (clock.shadows["1"].at, clock.shadows["1"].entered)
    assert 10 == clock.density.total


def test_forgotten_application_owes_nothing() -> None:
    """A caller gave up before anything ran: the others need not wait for that first call."""
    clock = _clock(FOUR)
    clock.add("2", 1, 2, [ONE])
    clock.remove("2")
    clock.remove("2")

    assert 250 == clock.owed


@pytest.mark.parametrize("stages", [[ONE], [FOUR], [ONE, FOUR]])
def test_released_shadow_is_forgotten_when_it_is_through(stages: list[ExpectedStage]) -> None:
    """Until then, and while its first inference runs, it takes its part."""
    clock = _clock(*stages)
    clock.release("1")

    assert {"1"} == clock.shadows.keys()

    clock.advance(10_000, 100.0)

    assert {} == clock.shadows
    assert 0 == clock.density.total
