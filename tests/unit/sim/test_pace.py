"""End times of the iterations in a run of equal ones: closed forms against sums."""

import random

from justitia_ray.sim.iterations import Pace
from tests.unit.sim.small_run import engine


def pace_of(**costs: float) -> Pace:
    """Return the iteration clock of an engine with iterations of one second."""
    return Pace(engine(1000, **costs))


def test_iteration_number_follows_from_its_boundary() -> None:
    """A jump in time must not stop a moment before its iteration boundary."""
    rng = random.Random("pace")
    for costs in ({}, {"per_sequence_s": 0.013}, {"per_context_token_s": 0.00017}):
        pace = pace_of(**costs)
        pace.start(rng.uniform(0, 1e5), 3, 5, 321, rng.choice([0.0, 0.37]))
        for iteration in (3, 4, 5, 1000, 123_456):
            at = pace.at(iteration)

            assert iteration == pace.iterations_ended_by(at, 3) == pace.first_iteration_from(at, 3)
            assert iteration == pace.iterations_ended_by((at + pace.at(iteration + 1)) / 2, 3)
            assert iteration + 1 == pace.first_iteration_from((at + pace.at(iteration + 1)) / 2, 3)
