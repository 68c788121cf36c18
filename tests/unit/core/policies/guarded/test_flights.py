"""Worked examples of running work in the shadow of VTC: first inferences, and cohorts."""

import json
import math

from justitia_ray.core.policies.guarded.flights import Flights


def test_gathering_cohort_of_inferences_holds_memory() -> None:
    """A cohort gathers the first inferences of applications that start in a period."""
    flights = Flights()
    flights.open(0.0, 0.5)
    flights.gather(400, 4.0)
    flights.open(9.0, 0.5)  # one cohort gathers
    flights.gather(200, 1.0)

    assert (0, 300, 600) == (flights.rate, flights.held_rate, flights.rest(15.0))
    assert 16 == flights.next_change
    assert flights.pass_next() is None
    assert (300, 300, 600, 300) == (
        flights.rate,
        flights.held_rate,
        flights.rest(16.0),
        flights.rest(17.0),
    )
    assert 18 == flights.next_change
    assert flights.pass_next() is None
    assert (0, 0, math.inf) == (flights.rate, flights.rest(18.0), flights.next_change)


def test_cohort_without_inferences_never_runs() -> None:
    flights = Flights()
    flights.open(0.0, 0.5)
    flights.gather(100, 0)

    assert (16, None) == (flights.next_change, flights.pass_next())
    assert (False, 0, math.inf) == (flights.gathers, flights.rest(16.0), flights.next_change)


def test_earliest_end_of_simulated_inferences_is_returned_first() -> None:
    flights = Flights()
    flights.open(0.0, 0.5)
    flights.gather(100, 4.0)
    flights.begin("a", 1, 100, 0.0, 17.0)
    flights.begin("b", 2, 100, 0.0, 30.0)

    assert [None, "a", None, "b"] == [flights.pass_next() for _ in range(4)]


def test_new_scheduler_restores_running_and_gathering_cohorts() -> None:
    before, after = Flights(), Flights()
    for since in (0.0, 20.0):
        before.open(since, 0.5)
        before.gather(100 + since, 40.0)
        before.pass_next()
    before.open(40.0, 0.5)
    before.gather(50, 4.0)
    after.restore(json.loads(json.dumps(before.state())))

    assert before.state() == after.state()
    assert (before.rest(45.0), before.held_rate) == (after.rest(45.0), after.held_rate)
    assert [56, 56] == [before.next_change, after.next_change]
