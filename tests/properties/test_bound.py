"""The fairness bound of the served clock, line by line: S(e) − S(f̄) ≤ I, and what is added to it.

e is an application's last start, f̄ when V reaches its final tag, S served work, I the largest
remaining work in flight; all as reported, f̄ at the start of its report, hence one report more.
`core` derives it. What the core tells of itself is sharper: I at one instant (`delay_bound`).
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from tests.properties.engine import ITERATION_S, Arrival, Engine, Outcomes, Server, one_stage
from tests.properties.workloads import arrivals, servers


def _is_within_what_the_core_says(outcomes: Outcomes) -> None:
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


@settings(max_examples=30)
@given(arrivals(), servers())
def test_one_stage_is_within_the_work_in_flight(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """The promise of the order: nobody waits longer than GPS and what runs already make him."""
    outcomes = Engine(replicas).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report
    assert outcomes.passed == 0
    _is_what_the_engine_saw(outcomes)
    _is_within_what_the_core_says(outcomes)


@settings(max_examples=30)
@given(arrivals(weighted=True), servers())
def test_weights_add_nothing(applications: list[Arrival], replicas: list[Server]) -> None:
    """Who pays for more gets more, at nobody's further expense."""
    outcomes = Engine(replicas).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report
    _is_within_what_the_core_says(outcomes)


@settings(max_examples=30)
@given(arrivals(weighted=True), servers(3))
def test_replicas_add_up_their_work_in_flight(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """I is that of all replicas; what starts on one too small for all who wait is out of order."""
    outcomes = Engine(replicas).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    _is_within_what_the_core_says(outcomes)


@settings(max_examples=30)
@given(arrivals(weighted=True), servers(3, lagging=True))
def test_late_reports_count_as_work_in_flight(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """Service that is not reported yet is still in flight to the core: nothing else is added."""
    outcomes = Engine(replicas).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    _is_within_what_the_core_says(outcomes)


@settings(max_examples=30)
@given(arrivals(stages=4, weighted=True), servers(2, lagging=True))
def test_stages_and_tool_gaps_add_credit(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """Each stage is charged anew from V, so that only what others lost of their credit is added."""
    _is_within_what_the_core_says(Engine(replicas).run(applications))


@settings(max_examples=30)
@given(arrivals(stages=4, weighted=True, overlaps=True), servers(2))
def test_overlapping_stages_add_their_path(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """An application that is never idle pays for its own chain of inferences: nobody else does."""
    _is_within_what_the_core_says(Engine(replicas).run(applications))


_ERRORS = [Fraction(1), Fraction(1, 10), Fraction(1, 3), Fraction(3), Fraction(10)]


@settings(max_examples=30)
@given(arrivals(stages=2, weighted=True, predicted=_ERRORS), servers(2))
def test_wrong_predictions_add_what_was_in_flight_beyond_charges(
    applications: list[Arrival], replicas: list[Server]
) -> None:
    """Rule 1 doubles a charge only once it is used up: what runs by then has jumped the queue."""
    _is_within_what_the_core_says(Engine(replicas).run(applications))


@pytest.mark.parametrize("share", [0.5, 0.8])
@settings(max_examples=20)
@given(arrivals(weighted=True), servers())
def test_share_cap_adds_what_it_lets_pass(
    share: float, applications: list[Arrival], replicas: list[Server]
) -> None:
    """The others' share is work out of order. The sum C_max + (1 − κ)/κ·C_j is too little."""
    outcomes = Engine(replicas, options={"kv_share_cap": share}).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    _is_within_what_the_core_says(outcomes)


@pytest.mark.parametrize("passes", [1, 4])
@settings(max_examples=20)
@given(arrivals(weighted=True), servers(2))
def test_backfill_adds_what_it_lets_pass(
    passes: int, applications: list[Arrival], replicas: list[Server]
) -> None:
    """The limit is on passes of each inference that was first in line, not of each application."""
    outcomes = Engine(replicas, options={"backfill": passes}).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    _is_within_what_the_core_says(outcomes)


_ORDERS: list[dict[str, object]] = [
    {},
    {"clock": "nominal", "nominal_iteration_s": ITERATION_S},
    {"fairness": "tenant"},
]


@pytest.mark.parametrize("accounts", _ORDERS)
@settings(max_examples=10)
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
    _is_within_what_the_core_says(outcomes)
