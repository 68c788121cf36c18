"""Bounds on starts while started applications keep places before their tags (`working_set`).

Such an application may receive more before a waiting one than the order by tags gives it. The bound
contains this amount, K. Low predictions bring it about: with each doubled charge a started
application falls behind others by its tag, and keeps its place.
"""

from collections.abc import Sequence
from fractions import Fraction
from unittest.mock import patch

from hypothesis import assume, given
from hypothesis import strategies as st

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.working_set import WorkingSet
from tests.property.engine import Arrival, Engine, Server, one_stage
from tests.property.profiles import examples


class _PlaceEngine(Engine):
    """Engine that compares each start with the bounds that were read before it.

    A bound holds while no tag changes and no application ends: a doubled charge and a refunded
    credit are exceptions, which are added when they happen.
    """

    def __init__(self, replicas: Sequence[Server]) -> None:
        super().__init__(replicas, meter=None, caches=True)
        self.with_places = 0
        """Number of bounds read while another application kept its position between calls."""
        self._least: dict[str, Fraction] = {}
        """Smallest bound that was read for each application and still holds."""
        self._tags: dict[str, tuple[float, bool]] = {}
        self._starts: list[tuple[Fraction, int, float]] = []
        """(bound, service before the start, finish tag) of each start with a bound."""

    def greatest_excess(self, applications: Sequence[Arrival]) -> Fraction:
        """Return by how much a start exceeded its bound."""
        outcomes = self.run(applications)
        # Virtual time is updated at reports, and another replica may report last.
        reports = len(self._servers) * outcomes.report
        excess = Fraction(-1)
        for bound, started, tag in self._starts:
            reached = next((served for served, v in self._levels if v >= tag), self._served)
            excess = max(excess, started - reached - bound - reports)
        return excess

    def _handle(self, event: ev.Event) -> None:
        super()._handle(event)
        self._drop_old_bounds()
        for name, application in self.core.state.applications.items():
            lag = self.core.lag(name)
            if application.waiting and lag is not None and lag.bound_kv_token_time is not None:
                bound = Fraction(lag.bound_kv_token_time)
                self._least[name] = min(bound, self._least.get(name, bound))
                self.with_places += self._passes(name)

    def _start(self, grant: Grant) -> None:
        name = grant.request_id.split("/")[0]
        self._drop_old_bounds()
        if name in self._least:
            tag = self.core.ledger.fair_share.tag(name)
            self._starts.append((self._least[name], self._served, tag))
        super()._start(grant)

    def _drop_old_bounds(self) -> None:
        share = self.core.ledger.fair_share
        tags = {
            name: (share.tag(name), share.accounts[name].withdrawn)
            for name in self.core.state.applications
        }
        if any(tags.get(name) != before for name, before in self._tags.items()):
            self._least.clear()
        self._tags = tags

    def _passes(self, name: str) -> bool:
        """Return whether an application with a later finish tag keeps an earlier position."""
        share, gate = self.core.ledger.fair_share, self.core.ledger.gate
        assert gate is not None
        own = share.tag(name), self.core.state.applications[name].sequence
        return any(
            (start.place[0][1], start.place[1]) < own < (share.tag(other), start.place[1])
            and gate._keeps_queue_position(self.core.state.applications[other])
            for other, start in gate._starts.items()
        )


_LONG = st.builds(
    Arrival,
    iteration=st.integers(0, 3),
    stages=st.lists(
        st.tuples(st.integers(5, 30), st.integers(2, 12)), min_size=10, max_size=16
    ).map(lambda sizes: (tuple(sizes),)),
    weight=st.sampled_from([Fraction(1), Fraction(2)]),
    predicted=st.sampled_from([Fraction(1, 6), Fraction(1, 5), Fraction(1, 4), Fraction(1, 3)]),
)
"""Application with a low predicted cost and many calls, between which its context is idle."""
_SHORT = st.builds(
    one_stage,
    st.integers(2, 30),
    st.lists(st.tuples(st.integers(20, 40), st.integers(1, 3)), min_size=1, max_size=2).map(tuple),
    st.sampled_from([Fraction(1), Fraction(2)]),
)
"""Application that seldom fits into memory beside the contexts of others."""
_SERVER = st.builds(Server, st.integers(80, 120), st.integers(3, 5))


@examples(120)
@given(
    st.lists(_LONG, min_size=1, max_size=2),
    st.lists(_SHORT, min_size=1, max_size=2),
    st.lists(_SERVER, min_size=1, max_size=2),
)
def test_lag_is_within_a_bound_that_includes_kept_queue_positions(
    long: list[Arrival], short: list[Arrival], replicas: list[Server]
) -> None:
    engine = _PlaceEngine(replicas)
    excess = engine.greatest_excess([*long, *short])

    assume(engine.with_places)
    assert excess <= 0


_LONG_ONE = Arrival(
    0,
    (
        (
            *((26, 8), (12, 3), (9, 7), (21, 9), (20, 10), (26, 7)),
            *((18, 5), (19, 6), (17, 7), (17, 5), (10, 7), (7, 2)),
        ),
    ),
    predicted=Fraction(1, 6),
)


def test_lag_exceeds_a_bound_that_ignores_kept_queue_positions() -> None:
    """Between calls the long application keeps its position, and the short one waits.

    With `CI` set, the random test above finds such a world, too.
    """

    def greatest_excess() -> Fraction:
        return _PlaceEngine([Server(105, 4)]).greatest_excess([_LONG_ONE, one_stage(5, ((30, 2),))])

    assert greatest_excess() <= 0
    with patch.object(WorkingSet, "kept_queue_positions", lambda gate: iter(())):
        assert greatest_excess() > 0
