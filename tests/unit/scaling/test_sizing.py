"""The number of replicas for a demand, with the initial guesses of the service rates."""

from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.served_rate import USUAL_ITERATION_S
from justitia_ray.scaling.demand import Demand
from justitia_ray.scaling.sizing import (
    WHY_SO_MANY,
    Fleet,
    SizeDecision,
    Sizer,
    SizeReason,
    SizingRules,
)

KV = 10_000
SEATS = 100
RATE = 0.7 * KV / USUAL_ITERATION_S
"""KV token-time per second that an unmeasured replica is assumed to serve."""
RULES = SizingRules(minimum=0, maximum=10, target_drain_s=60.0, load_s=0.0)


def expected_demand(replicas: int = 1, **more: Any) -> Demand:
    """Return a demand with enough inferences to fill any number of replicas."""
    usual: dict[str, Any] = {
        "at": 0.0,
        "applications": 1,
        "waiting": 1_000,
        "usable_kv_tokens": 100 * KV,
        "sequences": 1_000,
        "replicas": replicas,
        "kv_tokens": replicas * KV,
        "seats": replicas * SEATS,
    }
    return Demand(**usual | more)


def decide_size(
    wanted: Demand, rules: SizingRules = RULES, fleet: Fleet | None = None
) -> SizeDecision:
    return Sizer().size(wanted, rules, fleet or Fleet())


def test_every_reason_of_a_scaling_decision_has_a_sentence() -> None:
    """The list of reasons is closed, and operators read the sentences."""
    assert {*WHY_SO_MANY} == {*SizeReason}


def test_empty_queue_wants_the_minimum_of_replicas() -> None:
    nothing = expected_demand(applications=0, waiting=0)

    assert (0, SizeReason.NOTHING) == (decide_size(nothing).wanted, decide_size(nothing).reason)
    assert 2 == decide_size(nothing, replace(RULES, minimum=2)).wanted


@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"applications": 1, "waiting": 0}, id="an application between two calls"),
        pytest.param({"applications": 0, "waiting": 1}, id="a call of none that counts"),
        pytest.param({"applications": 0, "waiting": 0, "running": 1}, id="a call that runs"),
    ],
)
def test_any_open_application_wants_one_replica(there: dict[str, int]) -> None:
    """Serve counts no requests in this state, because the queue holds the calls."""
    assert (1, SizeReason.OPEN) == (
        decide_size(expected_demand(0, **there)).wanted,
        decide_size(expected_demand(0, **there)).reason,
    )


def test_first_scale_up_from_zero_starts_one_replica() -> None:
    """The service rate of a replica is unknown before the first one has run."""
    decision = decide_size(expected_demand(0, queued=1e12))

    assert (1, None) == (decision.wanted, decision.replica_kv_per_s)


def test_later_scale_up_from_zero_matches_the_measured_work() -> None:
    sizer = Sizer()
    sizer.size(expected_demand(1), RULES, Fleet())
    decision = sizer.size(expected_demand(0, at=1.0, queued=RATE * 60 * 3), RULES, Fleet())

    assert (3, SizeReason.DRAIN) == (decision.wanted, decision.reason)


def test_wanted_replicas_are_work_divided_by_rate_and_drain_target() -> None:
    """240 replica-seconds within 60 s need four replicas."""
    part = RATE * 60 * 4 / 3
    decision = decide_size(expected_demand(1, queued=part, in_flight=part, expected_more=part))

    assert (4, SizeReason.DRAIN) == (decision.wanted, decision.reason)
    assert 240.0 == pytest.approx(decision.drain_s)


def test_drain_time_without_a_replica_includes_the_loading_time() -> None:
    """A queue without a replica first waits until one has loaded."""
    work, rules = RATE * 100, replace(RULES, load_s=30.0)
    sizer = Sizer()
    with_two = sizer.size(expected_demand(2, queued=work), rules, Fleet())
    with_none = sizer.size(expected_demand(0, at=1.0, queued=work), rules, Fleet())

    assert 50.0 == pytest.approx(with_two.drain_s)
    assert 130.0 == pytest.approx(with_none.drain_s)
    assert 0.0 == decide_size(expected_demand(0)).drain_s


def test_only_the_requested_replica_count_obeys_the_limits() -> None:
    """The difference shows an operator how many replicas the limit withholds."""
    decision = decide_size(expected_demand(1, queued=RATE * 60 * 40))

    assert (10, 40) == (decision.wanted, decision.asked)
    assert (
        40
        == decide_size(
            expected_demand(1, queued=RATE * 60 * 40), replace(RULES, maximum=None)
        ).wanted
    )


def test_work_that_ends_within_the_loading_time_starts_no_replica() -> None:
    """Two replicas serve 200 replica-seconds in 100 s, before a third one has loaded."""
    rules = replace(RULES, load_s=100.0)
    soon_gone = expected_demand(2, queued=RATE * 200)

    assert 2 == decide_size(soon_gone, rules).wanted
    assert 4 == decide_size(soon_gone, RULES).wanted


def test_measured_loading_time_replaces_the_configured_one() -> None:
    soon_gone = expected_demand(2, queued=RATE * 200)

    assert 2 == decide_size(soon_gone, RULES, Fleet(load_s=100.0)).wanted
    assert 100.0 == decide_size(soon_gone, RULES, Fleet(load_s=100.0)).load_s


def test_longer_loading_time_requests_fewer_replicas() -> None:
    """A start must be worth its loading time."""
    backlog = expected_demand(1, queued=RATE * 700)
    quick = decide_size(backlog, replace(RULES, load_s=10.0))
    slow = decide_size(backlog, replace(RULES, load_s=200.0))

    assert 10 == quick.wanted
    assert 3 == slow.wanted  # 700 − 200 replica-seconds remain for 200 s


def test_replicas_that_are_loading_are_not_requested_twice() -> None:
    """The same replicas would otherwise be requested again every second."""
    rules = replace(RULES, load_s=60.0)
    backlog = expected_demand(1, queued=RATE * 60 * 4)
    first = decide_size(backlog, rules)
    again = decide_size(backlog, rules, Fleet(starting=first.wanted - 1))

    assert 3 == first.wanted  # 60 of 240 replica-seconds are served while the new replicas load
    assert first.wanted == again.wanted


def test_queue_that_outlasts_a_loading_time_is_drained_within_the_target() -> None:
    """Callers that wait for each answer keep a short queue forever."""
    sizer, rules = Sizer(), replace(RULES, load_s=100.0, target_drain_s=10.0)
    wanted = [
        sizer.size(expected_demand(1, at=float(at), queued=RATE * 40), rules, Fleet()).wanted
        for at in (0, 50, 99, 100, 150)
    ]
    served = sizer.size(expected_demand(4, at=160.0, queued=RATE * 40), rules, Fleet())
    burst = sizer.size(expected_demand(4, at=170.0, queued=RATE * 200), rules, Fleet())

    assert [1, 1, 1, 4, 4] == wanted
    assert [4, 4] == [served.wanted, burst.wanted]


def test_autoscaler_requests_at_most_one_replica_per_inference() -> None:
    """Ten replicas serve a single long inference no sooner than one."""
    one = expected_demand(1, queued=RATE * 600, waiting=1, sequences=1, usable_kv_tokens=KV)
    decision = decide_size(one)

    assert (2, SizeReason.USABLE) == (decision.wanted, decision.reason)


def test_autoscaler_counts_seats_of_a_replica_like_kv_memory() -> None:
    short = expected_demand(1, queued=RATE * 600, sequences=250, usable_kv_tokens=100)

    assert (3, SizeReason.USABLE) == (decide_size(short).wanted, decide_size(short).reason)


def test_inflow_of_work_above_the_service_rate_adds_replicas() -> None:
    """A short queue that grows every second needs more replicas."""
    sizer, served = Sizer(), 0.0
    for second in range(3_000):
        served = RATE * 2 * second
        decision = sizer.size(expected_demand(2, at=float(second), served=served), RULES, Fleet())

    assert SizeReason.INFLOW == decision.reason
    assert RATE * 2 == pytest.approx(decision.inflow_kv_per_s, rel=0.01)
    assert 3 == decision.wanted


def test_past_inflow_of_work_keeps_no_replica_without_inferences() -> None:
    """The inflow is averaged over minutes, while a single remaining caller needs one replica."""
    sizer = Sizer()
    for second in range(1_000):
        busy = expected_demand(4, at=float(second), served=RATE * 4 * second)
        sizer.size(busy, RULES, Fleet())
    one = expected_demand(
        4, at=1_001.0, served=RATE * 4_000, waiting=0, usable_kv_tokens=10, sequences=1
    )

    assert 1 == sizer.size(one, RULES, Fleet()).wanted


def test_two_simultaneous_readings_give_no_service_rate() -> None:
    sizer = Sizer()
    sizer.size(expected_demand(1), RULES, Fleet())
    decision = sizer.size(expected_demand(1, at=5e-324, served=2.0, held_tokens=2), RULES, Fleet())

    assert RATE == pytest.approx(decision.replica_kv_per_s)
    assert 0.0 == decision.inflow_kv_per_s


def test_service_rate_of_full_replicas_is_measured() -> None:
    sizer = Sizer()
    for second in range(2_000):
        full = expected_demand(
            2, at=float(second), served=1_000.0 * second, running=100, held_tokens=2 * KV
        )
        decision = sizer.size(full, RULES, Fleet())

    assert 500.0 == pytest.approx(decision.replica_kv_per_s, rel=0.05)


def test_idle_replicas_do_not_lower_the_measured_service_rate() -> None:
    """The service of idle replicas does not show how much they could serve."""
    sizer = Sizer()
    for second in range(2_000):
        quiet = expected_demand(
            2, at=float(second), served=10.0 * second, waiting=0, held_tokens=10
        )
        decision = sizer.size(quiet, RULES, Fleet())

    assert decision.replica_kv_per_s is not None
    assert decision.replica_kv_per_s > 1_000.0


def test_restarted_counter_is_not_measured_as_inflow() -> None:
    sizer = Sizer()
    sizer.size(expected_demand(1, served=1e9), RULES, Fleet())
    decision = sizer.size(expected_demand(1, at=1.0, served=0.0), RULES, Fleet())

    assert 0.0 == decision.inflow_kv_per_s


# --- promises


def demand_with_promise(at: float, replicas: int, replica_s: float, **more: Any) -> Demand:
    """Return a demand without present work, with this many promised replica-seconds."""
    return expected_demand(replicas, at=at, promises={"a": RATE * replica_s}, **more)


def test_promised_start_beyond_the_drain_target_keeps_its_replicas() -> None:
    sizer = Sizer()
    first = sizer.size(demand_with_promise(0.0, 4, 400.0), RULES, Fleet())
    later = sizer.size(demand_with_promise(50.0, 4, 200.0), RULES, Fleet())
    kept = sizer.size(demand_with_promise(75.0, 4, 25.0), RULES, Fleet())

    assert (4, SizeReason.PROMISE) == (first.wanted, first.reason)
    assert 4 == later.wanted
    assert 1 == kept.wanted


def test_promised_start_within_the_drain_target_releases_replicas() -> None:
    decision = decide_size(demand_with_promise(0.0, 4, 80.0))

    assert (2, SizeReason.PROMISE) == (decision.wanted, decision.reason)


def test_impossible_promised_start_requests_no_more_replicas() -> None:
    """Only the work determines how many replicas start."""
    sizer = Sizer()
    sizer.size(demand_with_promise(0.0, 2, 200.0), RULES, Fleet())
    late = sizer.size(demand_with_promise(500.0, 2, 200.0), RULES, Fleet())

    assert 2 == late.wanted


def test_promised_start_is_renewed_when_a_started_application_waits_again() -> None:
    sizer = Sizer()
    sizer.size(demand_with_promise(0.0, 4, 400.0), RULES, Fleet())
    sizer.size(expected_demand(4, at=90.0), RULES, Fleet())
    again = sizer.size(demand_with_promise(200.0, 4, 80.0), RULES, Fleet())

    assert 2 == again.wanted
