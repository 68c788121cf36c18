"""The fairness bound of the served clock: S(e) − S(f̄) ≤ I, plus a report for reports that lag.

e is an application's last start, f̄ when V reaches its final tag, S served work, I the largest
remaining work in flight. One stage, true costs, one replica, no overflow (`core` derives it).
"""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies import POLICIES
from justitia_ray.core.policies.base import Key, PolicyBase
from tests.properties.one_replica import Arrival, OneReplica

_SIZES = st.tuples(st.integers(1, 30), st.integers(1, 12))
_ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 80),
        st.lists(_SIZES, min_size=1, max_size=8).map(tuple),
        st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)]),
    ),
    min_size=2,
    max_size=10,
)


@settings(max_examples=50)
@given(_ARRIVALS, st.integers(42, 160), st.integers(1, 6))
def test_last_start_is_within_the_bound_under_peak_admission(
    arrivals: list[Arrival], kv_tokens: int, seats: int
) -> None:
    """The promise of the order: nobody waits longer than GPS and the work in flight make him."""
    lags = OneReplica(kv_tokens, seats).run(arrivals)

    assert lags.worst <= lags.in_flight + lags.report


@settings(max_examples=25)
@given(_ARRIVALS, st.integers(1, 6))
def test_last_start_is_within_the_bound_under_prompt_admission(
    arrivals: list[Arrival], seats: int
) -> None:
    """With memory for every seat's longest context nothing overflows."""
    lags = OneReplica(42 * seats, seats, admission="prompt").run(arrivals)

    assert lags.worst <= lags.in_flight + lags.report


class _SmallestFirst(PolicyBase):
    """Shortest application first: the best mean, and unbounded delay for the largest."""

    def key(self, application: Application, head: Inference) -> Key:
        return (application.predicted_kv_token_time, application.sequence)

    def engine_priority(self, application: Application, grant_sequence: int) -> int:
        return grant_sequence


class _LastFirst(PolicyBase):
    """Last come, first served."""

    def key(self, application: Application, head: Inference) -> Key:
        return (-application.sequence,)

    def engine_priority(self, application: Application, grant_sequence: int) -> int:
        return grant_sequence


def _elephant_among_mice() -> list[Arrival]:
    """Return a large application, and smaller ones that alone would fill the two seats."""
    elephant = Arrival(0, ((4, 4),) * 30)
    mice = [Arrival(iteration, ((4, 4),) * 10) for iteration in range(0, 600, 20)]
    return [elephant, *mice]


def test_elephant_among_endless_mice_is_within_the_bound() -> None:
    """The workload on which the unfair orders fail."""
    lags = OneReplica(16, 2).run(_elephant_among_mice())

    assert lags.worst <= lags.in_flight + lags.report


@pytest.mark.parametrize("policy", [_SmallestFirst, _LastFirst])
def test_unfair_order_breaks_the_bound(
    monkeypatch: pytest.MonkeyPatch, policy: type[PolicyBase]
) -> None:
    """The test above is able to fail: the elephant waits for all mice that come after it."""
    monkeypatch.setitem(POLICIES, "unfair", policy)
    lags = OneReplica(16, 2, policy="unfair").run(_elephant_among_mice())

    assert lags.worst > 10 * (lags.in_flight + lags.report)
