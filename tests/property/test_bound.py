"""Property tests of the fairness bound of the served clock: S(e) − S(f̄) ≤ I plus allowances.

e is an application's last start, f̄ the time at which V reaches its final tag, S served work, I the
largest remaining work in flight. All are as reported, with f̄ at the start of its report, hence one
report more. A report may contain only ends: then it carries their service and counts as one report.
`core` derives the bound. The core's own `delay_bound` is sharper: it uses I at one instant.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.cost import PrefillCost
from tests.property.engine import (
    ITERATION_S,
    Arrival,
    Engine,
    Outcomes,
    Server,
    one_stage,
    work_of,
)
from tests.property.profiles import examples
from tests.property.workloads import arrivals, servers


def assert_bounds_of_the_core(outcomes: Outcomes) -> None:
    """Fail if an application started later than the core's bound on its lag allows."""
    for name, ended in outcomes.ended.items():
        lag = ended.lag
        assert lag is not None
        assert lag.bound_kv_token_time is not None
        assert lag.kv_token_time <= lag.bound_kv_token_time, name
        assert lag.bound_s is not None
        assert lag.seconds <= lag.bound_s, name


def _assert_lags_of_the_engine(outcomes: Outcomes) -> None:
    """Check the lag that the core measures against that of the simulated engine."""
    for name, ended in outcomes.ended.items():
        assert ended.lag is not None
        seen = outcomes.lag[name]
        if ended.lag.kv_token_time >= 0 or seen >= 0:
            assert seen == ended.lag.kv_token_time, name


_PASSING: dict[str, object] = {"order": "sgps"}
"""Options that let urgent applications overtake others; the bounds stay valid."""


@pytest.mark.parametrize("options", [{}, _PASSING])
@examples(30)
@given(arrivals(weighted=True), servers())
def test_lag_of_a_single_stage_application_is_at_most_the_work_in_flight(
    options: dict[str, object], applications: list[Arrival], replicas: list[Server]
) -> None:
    """An application waits at most as long as under GPS, plus the work in flight."""
    outcomes = Engine(replicas, options=options).run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report
    assert options or outcomes.passed == 0
    _assert_lags_of_the_engine(outcomes)
    assert_bounds_of_the_core(outcomes)


_CACHED = [Fraction(0), Fraction(1, 2), Fraction(9, 10)]
_PRICES = [PrefillCost(1), PrefillCost(40), PrefillCost(3, 2)]


@pytest.mark.parametrize("options", [{}, {"fairness": "tenant"}])
@examples(20)
@given(arrivals(weighted=True), servers(2, lagging=True), st.sampled_from(_PRICES))
def test_bound_on_the_lag_includes_prefill_in_flight(
    options: dict[str, object],
    applications: list[Arrival],
    replicas: list[Server],
    price: PrefillCost,
) -> None:
    """Service rises by a prompt's cost at the first token; until then the cost is in flight."""
    engine = Engine(replicas, options=options, prefill_cost=price)
    outcomes = engine.run(applications)

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    if not options:
        assert_bounds_of_the_core(outcomes)


@examples(40)
@given(
    arrivals(stages=3, weighted=True, cached=_CACHED),
    servers(2, lagging=True),
    st.sampled_from(_PRICES),
)
def test_lag_with_mispredicted_prompt_costs_is_within_the_cores_bound(
    applications: list[Arrival], replicas: list[Server], price: PrefillCost
) -> None:
    """Charges for prompts are corrected when they are computed, some with cache misses."""
    outcomes = Engine(replicas, prefill_cost=price).run(applications)
    assert_bounds_of_the_core(outcomes)


def test_lag_exceeds_a_bound_that_ignores_prefill_in_flight() -> None:
    """The example: a short prompt arrives just after a long one has started."""
    first = one_stage(0, ((30, 1),))
    engine = Engine([Server(40, 1, report_every=5)], prefill_cost=PrefillCost(40))
    outcomes = engine.run([first, one_stage(1, ((1, 1),)), one_stage(1, ((1, 1),))])
    memory = max(work_of(sizes) for sizes in first.stages)

    assert outcomes.worst > memory + 2
    assert outcomes.worst <= outcomes.in_flight + outcomes.report


_ERRORS = [Fraction(1), Fraction(1, 10), Fraction(1, 3), Fraction(3), Fraction(10)]
_FACTORS = [Fraction(1, 10), Fraction(1), Fraction(5)]


@pytest.mark.parametrize(
    ("applications", "replicas", "options"),
    [
        # A larger weight brings a larger share; other applications keep their bound.
        pytest.param(arrivals(weighted=True), servers(), {}, id="weights"),
        # The work in flight counts on all replicas, since some may be too small for those that
        # wait.
        # is work out of order
        pytest.param(arrivals(weighted=True), servers(3), {}, id="replicas"),
        # Unreported service is still in flight for the core, so nothing is added.
        pytest.param(arrivals(weighted=True), servers(3, lagging=True), {}, id="late reports"),
        # Backfilled inferences are work out of order, each counted as often as it may overtake.
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
def test_bound_on_the_lag_includes_work_served_out_of_order(
    applications: st.SearchStrategy[list[Arrival]],
    replicas: st.SearchStrategy[list[Server]],
    options: dict[str, object],
    data: st.DataObject,
) -> None:
    """Each application has one stage of known cost, so the bound has no other part."""
    engine = Engine(data.draw(replicas), options=options)
    outcomes = engine.run(data.draw(applications))
    may_pass = bool(options) or len(engine.core.state.replicas) > 1

    assert outcomes.worst <= outcomes.in_flight + outcomes.report + outcomes.passed
    assert may_pass or outcomes.passed == 0
    assert_bounds_of_the_core(outcomes)


@pytest.mark.parametrize(
    ("applications", "replicas"),
    [
        # Each stage is charged anew, so only the surplus that GPS gives to others is added.
        # when a stage ends
        pytest.param(
            arrivals(stages=4, weighted=True), servers(2, lagging=True), id="stages and tool gaps"
        ),
        # Applications with overlapping stages are never idle; their longest inference is added.
        # chain of inferences
        pytest.param(arrivals(stages=4, weighted=True, overlaps=True), servers(2), id="overlaps"),
        # Rule 1 doubles a charge only when it is used up, so the work in flight had started before.
        # early
        pytest.param(
            arrivals(stages=2, weighted=True, predicted=_ERRORS), servers(2), id="wrong predictions"
        ),
        # Rule 7 raises a charge while inferences run, so GPS serves their work later.
        # started
        pytest.param(
            arrivals(stages=3, predicted=_FACTORS, expected=_FACTORS), servers(2), id="raised"
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, _PASSING])
@examples(30)
@given(data=st.data())
def test_lag_with_stages_and_mispredictions_is_within_the_cores_bound(
    options: dict[str, object],
    applications: st.SearchStrategy[list[Arrival]],
    replicas: st.SearchStrategy[list[Server]],
    data: st.DataObject,
) -> None:
    """The lag may exceed the work in flight (`test_bound_limits`), but not the core's bound."""
    outcomes = Engine(data.draw(replicas), options=options).run(data.draw(applications))
    assert_bounds_of_the_core(outcomes)


_ORDERS: list[dict[str, object]] = [
    {},
    {"clock": "nominal", "nominal_iteration_s": ITERATION_S},
    {"fairness": "tenant"},
]


@pytest.mark.parametrize("accounts", _ORDERS)
@examples(10)
@given(arrivals(stages=2, weighted=True, predicted=_ERRORS), servers(2))
def test_measured_lag_depends_on_true_costs_and_not_on_predictions(
    accounts: dict[str, object], applications: list[Arrival], replicas: list[Server]
) -> None:
    right = [replace(application, predicted=Fraction(1)) for application in applications]
    expected = Engine(replicas, "fcfs").run(right).ended
    told = Engine(replicas, "fcfs", accounts, tell_truth=True).run(applications).ended

    assert {name: ended.lag for name, ended in expected.items()} == {
        name: ended.lag for name, ended in told.items()
    }


def test_worst_case_lag_nearly_reaches_its_bound() -> None:
    """The example: a small application arrives just after a very large inference has started.

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
    """Return a large application, and enough small ones to keep two inferences running."""
    elephant = one_stage(0, ((4, 4),) * 30)
    return [elephant, *(one_stage(iteration, ((4, 4),) * 10) for iteration in range(0, 600, 20))]


def test_lag_of_a_large_application_among_endless_small_ones_is_bounded() -> None:
    """The large application ends once its share is served, whatever arrives later."""
    outcomes = Engine([Server(16, 2)]).run(elephant_and_mice())

    assert outcomes.lag["a0"] <= outcomes.in_flight + outcomes.report
    assert outcomes.jct["a0"] < 300
    assert_bounds_of_the_core(outcomes)
