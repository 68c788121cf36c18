"""The fairness bound of the served clock, line by line: S(e) − S(f̄) ≤ I, and what is added to it.

e is an application's last start, f̄ when V reaches its final tag, S served work, I the largest
remaining work in flight; all as reported, f̄ at the start of its report, hence one report more. A
report may tell of ends alone: then it has their service, and is one report all the same.
`core` derives it. What the core tells of itself is sharper: I at one instant (`delay_bound`).
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.engine import ITERATION_S, Arrival, Engine, Outcomes, Server, one_stage
from tests.property.profiles import examples
from tests.property.workloads import arrivals, servers


def is_within_what_the_core_says(outcomes: Outcomes) -> None:
    """Fail if an application started later than its own bound allows."""
    for name, ended in outcomes.ended.items():
        lag = ended.lag
        assert lag is not None
        assert lag.bound_kv_token_time is not None
        assert lag.kv_token_time <= lag.bound_kv_token_time, name
        assert lag.bound_s is not None
        assert lag.seconds <= lag.bound_s, name


def _is_what_the_engine_saw(outcomes: Outcomes) -> None:
    """If V reached its tag before it ended; else the core can tell less."""
    for name, ended in outcomes.ended.items():
        assert ended.lag is not None
        seen = outcomes.lag[name]
        if ended.lag.kv_token_time >= 0 or seen >= 0:
            assert seen == ended.lag.kv_token_time, name


_PASSING: dict[str, object] = {"order": "sgps"}
"""Shorter ones may pass whoever has slack: the bounds are the same."""


@pytest.mark.parametrize("options", [{}, _PASSING])
@examples(30)
@given(arrivals(weighted=True), servers())
def test_one_stage_is_within_the_work_in_flight(
    options: dict[str, object], applications: list[Arrival], replicas: list[Server]
) -> None:
    """The promise of the order: nobody waits longer than GPS and what runs already make him."""
    outcomes = Engine(replicas, options=options).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report
    assert options or outcomes.passed == 0
    _is_what_the_engine_saw(outcomes)
    is_within_what_the_core_says(outcomes)


_ERRORS = [Fraction(1), Fraction(1, 10), Fraction(1, 3), Fraction(3), Fraction(10)]
_FACTORS = [Fraction(1, 10), Fraction(1), Fraction(5)]


@pytest.mark.parametrize(
    ("applications", "replicas", "options"),
    [
        # Who pays for more gets more, at nobody's further expense.
        pytest.param(arrivals(weighted=True), servers(), {}, id="weights"),
        # I is that of all replicas; what starts on one too small for all who wait is out of order.
        pytest.param(arrivals(weighted=True), servers(3), {}, id="replicas"),
        # Service that is not reported yet, whoever else's end is, is still in flight to the core:
        # nothing else is added.
        pytest.param(arrivals(weighted=True), servers(3, lagging=True), {}, id="late reports"),
        # The others' share is work out of order. C_max + (1 − κ)/κ·C_j is too little.
        pytest.param(arrivals(weighted=True), servers(), {"kv_share_cap": 0.5}, id="half"),
        pytest.param(arrivals(weighted=True), servers(), {"kv_share_cap": 0.8}, id="cap"),
        # The limit is on passes of each inference that was first in line, not of each application.
        pytest.param(arrivals(weighted=True), servers(2), {"backfill": 1}, id="backfill"),
        pytest.param(arrivals(weighted=True), servers(2), {"backfill": 4}, id="backfill of 4"),
        pytest.param(arrivals(weighted=True), servers(3), _PASSING, id="shortest, replicas"),
        pytest.param(
            arrivals(weighted=True), servers(3, lagging=True), _PASSING, id="shortest, late reports"
        ),
        pytest.param(
            arrivals(weighted=True),
            servers(2),
            _PASSING | {"backfill": 1},
            id="shortest, backfill",
        ),
    ],
)
@examples(25)
@given(data=st.data())
def test_what_passes_is_added_to_the_work_in_flight(
    applications: st.SearchStrategy[list[Arrival]],
    replicas: st.SearchStrategy[list[Server]],
    options: dict[str, object],
    data: st.DataObject,
) -> None:
    """And nothing else, while each application is one stage whose cost is known."""
    engine = Engine(data.draw(replicas), options=options)
    outcomes = engine.run(data.draw(applications))
    may_pass = bool(options) or len(engine.core.state.replicas) > 1

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    assert may_pass or outcomes.passed == 0
    is_within_what_the_core_says(outcomes)


@pytest.mark.parametrize(
    ("applications", "replicas"),
    [
        # Each stage is charged anew from V: only what others lost of their credit is added.
        pytest.param(
            arrivals(stages=4, weighted=True), servers(2, lagging=True), id="stages and tool gaps"
        ),
        # An application that is never idle pays for its own chain of inferences: nobody else does.
        pytest.param(arrivals(stages=4, weighted=True, overlaps=True), servers(2), id="overlaps"),
        # Rule 1 doubles a charge only once it is used up: what runs by then jumped the queue.
        pytest.param(
            arrivals(stages=2, weighted=True, predicted=_ERRORS), servers(2), id="wrong predictions"
        ),
        # What runs of an application that rule 7 raises is owed later by GPS: no more is added.
        pytest.param(
            arrivals(stages=3, predicted=_FACTORS, expected=_FACTORS), servers(2), id="raised"
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, _PASSING])
@examples(30)
@given(data=st.data())
def test_stages_and_wrong_predictions_stay_within_what_the_core_says(
    options: dict[str, object],
    applications: st.SearchStrategy[list[Arrival]],
    replicas: st.SearchStrategy[list[Server]],
    data: st.DataObject,
) -> None:
    """A lag of one I is exceeded by such applications (`test_bound_limits`); the core says more."""
    outcomes = Engine(data.draw(replicas), options=options).run(data.draw(applications))
    is_within_what_the_core_says(outcomes)


_ORDERS: list[dict[str, object]] = [
    {},
    {"clock": "nominal", "nominal_iteration_s": ITERATION_S},
    {"fairness": "tenant"},
]


@pytest.mark.parametrize("accounts", _ORDERS)
@examples(10)
@given(arrivals(stages=2, weighted=True, predicted=_ERRORS), servers(2))
def test_lag_is_measured_with_the_truth_whatever_the_accounts(
    accounts: dict[str, object], applications: list[Arrival], replicas: list[Server]
) -> None:
    """The yardstick is one for all policies: true costs, served clock, applications.

    The same order twice, once with true predictions, once with wrong ones or other accounts.
    """
    right = [replace(application, predicted=Fraction(1)) for application in applications]
    expected = Engine(replicas, "fcfs").run(right).ended
    told = Engine(replicas, "fcfs", accounts, tell_truth=True).run(applications).ended

    assert {name: ended.lag for name, ended in expected.items()} == {
        name: ended.lag for name, ended in told.items()
    }


def test_bound_is_nearly_reached() -> None:
    """A mouse that comes just after a giant inference has started: I is not too much to allow.

    The giant costs 931. After an iteration S = V = 40, and the mouse's tag is 42: V reaches it in
    the next report. It starts at S = 931.
    """
    giant, mouse = one_stage(0, ((39, 19),)), one_stage(1, ((1, 1),))
    outcomes = Engine([Server(58, 1)]).run([giant, mouse])
    lag = outcomes.ended["a1"].lag

    assert (931, 58) == (outcomes.in_flight, outcomes.report)
    assert lag is not None
    assert (891, 931 + 41) == (lag.kv_token_time, lag.bound_kv_token_time)


def elephant_and_mice() -> list[Arrival]:
    """Return a large application, and smaller ones that alone would fill two seats (Fig. 9)."""
    elephant = one_stage(0, ((4, 4),) * 30)
    return [elephant, *(one_stage(iteration, ((4, 4),) * 10) for iteration in range(0, 600, 20))]


def test_elephant_among_endless_mice_is_within_the_bound() -> None:
    """It finishes when its share of the machine has been served, whatever comes after it."""
    outcomes = Engine([Server(16, 2)]).run(elephant_and_mice())

    assert outcomes.lag["a0"] <= outcomes.in_flight + outcomes.report
    assert outcomes.jct["a0"] < 300
    is_within_what_the_core_says(outcomes)
