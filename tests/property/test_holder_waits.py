"""Inferences that wait for the replica with their context break no bound of an application.

The tests let inferences wait at random, for any replica and for any time: what is promised must not
depend on which of them wait, or why.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.holder_waits import Choice, HolderWaits
from justitia_ray.core.placement import Placement
from tests.property.engine import ITERATION_S, Arrival, Engine, Outcomes, Server, one_stage
from tests.property.profiles import examples
from tests.property.workloads import arrivals, servers


class _WaitingEngine(Engine):
    """Engine that reads every bound after every event, while inferences wait at random."""

    def __init__(self, replicas: Sequence[Server], draws: Sequence[int]) -> None:
        options = {"working_set": False}  # Otherwise contexts decide which inference may start.
        super().__init__(replicas, options=options, meter=None, caches=True)
        self.least: dict[str, Fraction] = {}
        """Smallest bound that was read for each application."""
        self.waits = 0
        self._draws = draws

    def choose(
        self, application: Application, inference: Inference, alternative: KnownReplica
    ) -> Choice | None:
        """Return a random other replica, and a random wait of up to twelve iterations or none."""
        iterations = self._draws[inference.sequence % len(self._draws)]
        others = [one for one in self.core.state.replicas.values() if one is not alternative]
        if not others or not iterations:
            return None
        self.waits += 1
        return Choice(others[inference.sequence % len(others)], iterations * ITERATION_S, 0.0)

    def run_waiting(self, applications: Sequence[Arrival]) -> Outcomes:
        with patch.object(HolderWaits, "_choose_holder", lambda _, *asked: self.choose(*asked)):
            return self.run(applications)

    def _handle(self, event: ev.Event) -> None:
        super()._handle(event)
        for name, application in self.core.state.applications.items():
            lag = self.core.lag(name)
            if application.waiting and lag is not None and lag.bound_kv_token_time is not None:
                bound = Fraction(lag.bound_kv_token_time)
                self.least[name] = min(bound, self.least.get(name, bound))


_SMALL = ((15, 2), (16, 6), (5, 7), (5, 1))
_DRAWS = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def _greatest_excess(
    applications: Sequence[Arrival], replicas: Sequence[Server], draws: Sequence[int]
) -> tuple[Fraction, int]:
    """Return by how much a start exceeded its bound, and the number of waits."""
    engine = _WaitingEngine(replicas, draws)
    outcomes = engine.run_waiting(applications)
    # Virtual time is updated at reports, and the other replica may report last.
    reports = len(replicas) * outcomes.report
    beyond = [outcomes.lag[name] - bound - reports for name, bound in engine.least.items()]
    return max(beyond, default=Fraction(0)), engine.waits


@examples(80)
@given(arrivals(weighted=True, stages=2), servers(3), _DRAWS)
def test_lag_is_within_the_bound_when_inferences_wait_for_their_context(
    applications: list[Arrival], replicas: list[Server], draws: list[int]
) -> None:
    assume(len(replicas) > 1)
    beyond, waits = _greatest_excess(applications, replicas, draws)

    assume(waits)
    assert beyond <= 0


@contextmanager
def _without_rule(rule: str) -> Iterator[None]:
    owner = HolderWaits if rule == "_breaks_no_guarantee" else Placement
    with patch.object(owner, rule, lambda *_: True):
        yield


@pytest.mark.parametrize(
    ("rule", "applications", "replicas", "draws"),
    [
        (
            "_breaks_no_guarantee",
            [one_stage(0, ((9, 8), (9, 6), (21, 12), (28, 8))), one_stage(10, _SMALL)],
            [Server(53, 3), Server(65, 2)],
            [30, 12, 12],
        ),
        (
            "_leaves_reserved_room",
            [
                one_stage(3, ((30, 8), (8, 9), (11, 2), (22, 5))),
                one_stage(4, ((21, 7), (9, 2), (1, 1))),
                one_stage(11, ((2, 6), (6, 1))),
            ],
            [Server(44, 1), Server(58, 2)],
            [12],
        ),
    ],
)
def test_lag_exceeds_the_bound_if_waiting_for_a_context_is_unlimited(
    rule: str, applications: list[Arrival], replicas: list[Server], draws: list[int]
) -> None:
    """Without limits, late applications wait for contexts, or lose the memory to others."""
    assert _greatest_excess(applications, replicas, draws)[0] <= 0
    with _without_rule(rule):
        assert _greatest_excess(applications, replicas, draws)[0] > 0
