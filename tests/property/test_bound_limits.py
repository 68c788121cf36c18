"""Policies and settings that break the fairness bound, and bounds that are too small.

Each example can be followed by hand. They also show that the tests of the bound can fail.
"""

from fractions import Fraction

import pytest

from justitia_ray.core.actions import EndApplication
from tests.property.engine import ITERATION_S, Arrival, Engine, Outcomes, Server, one_stage, work_of
from tests.property.test_bound import assert_bounds_of_the_core, elephant_and_mice

_WHOLE = (91, 9)
"""Inference that fills the server of 100 KV tokens for 9 iterations: 864 token·iterations."""
_NEXT_TO_NOTHING = Fraction(1, 10_000)


def _bound(outcomes: Outcomes) -> int:
    return outcomes.in_flight + outcomes.report


def _end_of(outcomes: Outcomes, name: str) -> EndApplication:
    ended = outcomes.ended[name]
    assert ended.lag is not None
    return ended


def test_srjf_starves_a_large_application_while_small_ones_arrive() -> None:
    """Under shortest-first, a large application waits for all small ones."""
    outcomes = Engine([Server(16, 2)], "srjf").run(elephant_and_mice())

    assert outcomes.jct["a0"] > 600
    assert outcomes.lag["a0"] > 50 * _bound(outcomes)


def test_lag_exceeds_the_bound_if_cost_is_counted_in_tokens() -> None:
    """VTC is fair in prompt + 2·output tokens, but a long output occupies KV memory for longer."""
    prompts, outputs = one_stage(0, ((30, 1),) * 100), one_stage(0, ((1, 30),) * 30)
    outcomes = Engine([Server(62, 2)], "vtc").run([prompts, outputs])

    assert outcomes.lag["a0"] > 5 * _bound(outcomes)
    assert _end_of(outcomes, "a0").lag.bound_kv_token_time is None  # type: ignore[union-attr]


def test_lag_under_the_nominal_clock_exceeds_the_bound_under_fragmentation() -> None:
    """If only 60 of 100 KV tokens are usable, the nominal virtual time runs too fast.

    The nominal GPS has finished the elephant when 60 % of its work is done. Mice that arrive then
    have later tags and wait for the remaining work.
    """
    elephant = one_stage(0, ((56, 4),) * 60)
    mice = [one_stage(150, ((4, 4),)) for _ in range(8)]
    nominal = {"clock": "nominal", "nominal_iteration_s": ITERATION_S}
    outcomes = Engine([Server(100)], options=nominal).run([elephant, *mice])
    served = Engine([Server(100)]).run([elephant, *mice])
    told = _end_of(outcomes, "a1").lag

    assert told is not None
    assert told.bound_kv_token_time is None
    assert told.kv_token_time > 5 * _bound(outcomes)
    assert served.worst <= _bound(served)


def test_lag_with_unlimited_backfill_and_short_predictions_exceeds_the_bound() -> None:
    """Each small call is predicted to end before the large one could start, and runs longer.

    The elephant needs the whole machine, which is never empty while mice arrive.
    """
    elephant = one_stage(1, ((8, 2),))
    mice = [Arrival(at, (((1, 4),),), predicted_output=1) for at in range(0, 400, 2)]
    applications = [mice[0], elephant, *mice[1:]]
    unlimited = Engine([Server(10, 2)], options={"backfill": "unlimited"}).run(applications)
    limited = Engine([Server(10, 2)], options={"backfill": 3}).run(applications)

    assert unlimited.lag["a1"] > 50 * _bound(unlimited)
    assert limited.lag["a1"] <= _bound(limited)
    assert_bounds_of_the_core(limited)


def test_bound_with_limited_backfill_sums_the_overtaking_work() -> None:
    """Each of 60 inferences is overtaken once, because it leaves 40 % of the memory free.

    The bound is therefore not n·c_max in all. The inferences that pass have nearly no weight, so
    that GPS serves them after the others.
    """
    first = one_stage(0, ((56, 4),) * 60)
    later = one_stage(0, ((36, 4),) * 200, _NEXT_TO_NOTHING)
    outcomes = Engine([Server(100)], options={"backfill": 1}).run([first, later])

    assert outcomes.lag["a0"] > 10 * (_bound(outcomes) + 1 * work_of(((56, 4),)))
    assert outcomes.lag["a0"] <= _bound(outcomes) + outcomes.passed
    assert_bounds_of_the_core(outcomes)


def test_bound_on_the_lag_includes_work_in_flight_before_the_arrival() -> None:
    """Work that was in flight before an application's arrival may delay it, too.

    The two arrive just after a giant has started, and GPS has finished them when the mouse arrives.
    When the giant ends, 58 later, both still have to run, one after the other.
    """
    before = [one_stage(1, ((19, 7),)) for _ in range(2)]
    mouse = one_stage(18, ((1, 1),))
    outcomes = Engine([Server(58, 1)]).run([one_stage(0, ((39, 19),)), *before, mouse])

    assert (58 + 2 * 161, 58) == (outcomes.lag["a3"], outcomes.report)
    assert outcomes.lag["a3"] > 161 + outcomes.report
    assert_bounds_of_the_core(outcomes)


def _run_with_five_after(one: Arrival) -> tuple[Engine, Outcomes]:
    """Run a large application, one that GPS has half served, and five small ones."""
    large = one_stage(0, (_WHOLE,) * 24)
    mice = [one_stage(24 * 9 + 2, (_WHOLE,)) for _ in range(5)]
    engine = Engine([Server(100)])
    return engine, engine.run([large, one, *mice])


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(Arrival(0, ((_WHOLE,), (_WHOLE,) * 25)), id="its first stage ends"),
        pytest.param(Arrival(0, ((_WHOLE,),), predicted=Fraction(26)), id="it was predicted large"),
    ],
)
def test_lag_can_exceed_the_work_in_flight_after_a_refund(one: Arrival) -> None:
    """With stages or too high predictions, the lag can exceed the work in flight.

    GPS has served a second application half of its tag while the first was really served. When its
    stage or the application ends, GPS gives the surplus to the others, and V passes the tags of
    five mice at once, which can only be served one by one. The last start is 4 inferences later,
    and V is far beyond F + o/w: no work in flight exceeded a charge.
    """
    engine, outcomes = _run_with_five_after(one)

    assert 4 * work_of((_WHOLE,)) + 100 == outcomes.lag["a6"]
    assert outcomes.lag["a6"] > _bound(outcomes)
    assert engine.late_by("a6", 1) > _bound(outcomes)
    assert_bounds_of_the_core(outcomes)


def test_lag_sums_the_mispredicted_work_of_several_applications() -> None:
    """Twenty small applications with tiny predictions run before five large ones.

    A mouse is charged only when it has run, and GPS gives the elephants their share meanwhile: the
    sum of the work in flight beyond a charge counts, not the largest. The largest in V is too small
    as well: waiting mice are still first when V is beyond the elephants' tags, and are charged from
    there.
    """
    small = Fraction(2, work_of((_WHOLE,)))
    mice = [Arrival(0, ((_WHOLE,),), predicted=small) for _ in range(20)]
    elephants = [one_stage(0, (_WHOLE,)) for _ in range(5)]
    engine = Engine([Server(100)])
    outcomes = engine.run([*mice, *elephants])
    most_beyond_a_charge = work_of((_WHOLE,))

    assert outcomes.worst > 10 * _bound(outcomes)
    assert engine.late_by("a24", most_beyond_a_charge) > 2 * _bound(outcomes)
    assert_bounds_of_the_core(outcomes)


def test_overlapping_stages_delay_a_later_application() -> None:
    """An application may start late although GPS has served most of its charge.

    GPS gives nine tenths of the machine to two long inferences that use an eighth of it.

    When their application submits its other inferences, these still precede a later application,
    though GPS has served most of the first. It was never idle, so that nothing was charged again.
    """
    size = (11, 9)
    slow = Arrival(0, (((1, 58), (1, 60)), (size,) * 340), Fraction(9), overlaps=True)
    others = one_stage(0, (size,) * 350)
    later = one_stage(57, (size,) * 10)
    outcomes = Engine([Server(1000)]).run([slow, others, later])

    assert outcomes.lag["a2"] > _bound(outcomes)
    assert_bounds_of_the_core(outcomes)


def _theorem_1_bound(applications: list[Arrival], kv_tokens: int) -> Fraction:
    """Return the paper's bound 2·c_max + C_max/M (v1, Eq. 4), in iterations."""
    largest = max(work_of((size,)) for a in applications for sizes in a.stages for size in sizes)
    return 2 * largest + Fraction(max(a.cost for a in applications), kv_tokens)


def test_theorem_1_fails_for_applications_with_tool_gaps() -> None:
    """The paper's Eq. 5 assumes that an application always has work to run."""
    alone = Arrival(0, (((1, 1),), ((1, 1),)), gap=20)
    outcomes = Engine([Server(10)], options={"clock": "nominal"}).run([alone])
    in_gps = Fraction(alone.cost, 10)

    assert outcomes.jct["a0"] - in_gps > _theorem_1_bound([alone], 10)


def test_theorem_1_fails_for_arrivals_after_tool_gaps_of_other_applications() -> None:
    """The paper's Eq. 8 fails: while the machine idles, GPS already serves future work.

    Twenty applications call a tool for 200 iterations after a first small inference; the nominal
    GPS has finished them when they return. They return together, just before the last application
    arrives: it has one inference and is behind 400 others. With the served clock and tool gaps
    withdrawn (rules 4 and 5) it is granted first.
    """
    waiting = [Arrival(0, (((1, 1),), ((1, 9),) * 20), gap=200) for _ in range(20)]
    applications = [*waiting, one_stage(206, ((1, 9),))]
    nominal = {"clock": "nominal", "nominal_iteration_s": ITERATION_S}
    outcomes = Engine([Server(100)], options=nominal).run(applications)
    in_gps = Fraction(work_of(((1, 9),)), 100)
    served = Engine([Server(100)]).run(applications)

    assert outcomes.jct["a20"] - in_gps > 3 * _theorem_1_bound(applications, 100)
    assert served.jct["a20"] - in_gps < 18
    assert served.worst <= _bound(served)
