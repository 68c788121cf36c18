"""Rules 1 to 6 of the served clock, each by hand, in exact arithmetic."""

from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.fair_share import NominalShare, ServedShare, UnsettledShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.entities import Outcome
from justitia_ray.core.lag.meter import LagMeter
from tests.core_driver import CoreDriver, granted
from tests.exact import exact


def _served_share(**applications: tuple[int, int]) -> ServedShare:
    share = ServedShare(VirtualClock(exact(0)))
    for sequence, (name, (cost, weight)) in enumerate(applications.items()):
        share.arrive(name, exact(cost), exact(weight), sequence)
    return share


def _backlog_and_charges(share: ServedShare) -> tuple[float, float]:
    """Return the backlog Σ w·(F − V), and charged minus attained service, which must equal it."""
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return share.clock.backlog(), sum(account.charged - account.attained for account in live)


def test_charge_of_an_application_doubles_when_its_service_exceeds_it() -> None:
    """When service exceeds a charge of 4, the charge becomes 8 and then 16 (rule 1)."""
    share = _served_share(a=(4, 1), b=(40, 1))
    recharged = share.deliver([("a", exact(9))])
    account = share.accounts["a"]

    assert recharged == ["a", "a"]
    assert (account.charged, account.attained, account.settlements) == (16, 9, 2)
    assert (16, exact(9, 2)) == (share.tag("a"), share.clock.virtual_time)
    assert _backlog_and_charges(share) == (47, 47)


def test_raised_charge_of_an_overdue_application_counts_from_virtual_time() -> None:
    """A raised charge counts from the present virtual time, not from the arrival."""
    share = _served_share(a=(2, 1), b=(100, 1))
    share.deliver([("b", exact(20))])  # after 4 units of service, virtual time V is 2
    share.deliver([("a", exact(3))])

    assert (20, exact(39, 2)) == (share.tag("a"), share.clock.virtual_time)
    assert _backlog_and_charges(share) == (81, 81)


def test_unused_charge_of_an_ended_application_goes_to_other_applications() -> None:
    """Otherwise virtual time would stand still for too high predictions (rule 3)."""
    share = _served_share(mouse=(20, 1), elephant=(100, 1))
    share.deliver([("mouse", exact(2)), ("elephant", exact(6))])  # V = 4
    final = share.settle("mouse")

    assert (final, share.clock.virtual_time, share.tag("elephant")) == (4, 6, 100)
    assert ("mouse" in share.accounts, "mouse" in share.clock) == (False, False)
    assert _backlog_and_charges(share) == (94, 94)


def test_ended_application_served_ahead_of_gps_leaves_a_debt() -> None:
    """An application that was served early keeps its place until the others have caught up."""
    share = _served_share(a=(10, 1), b=(10, 1))
    share.deliver([("a", exact(10))])  # V = 5, a attained all
    final = share.settle("a")

    assert (final, "a" in share.clock, share.clock.virtual_time) == (10, True, 5)
    assert _backlog_and_charges(share) == (10, 10)

    share.deliver([("b", exact(9))])  # V = 9.5

    assert ("a" in share.clock, exact(19, 2)) == (True, share.clock.virtual_time)

    share.deliver([("b", exact(1))])

    assert ("a" in share.clock, 10) == (False, share.clock.virtual_time)


def test_charge_of_an_application_is_withdrawn_during_its_tool_call() -> None:
    """An application that waits for its tools loses its unused charge (rules 4 and 5)."""
    share = _served_share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(4))])  # V = 4
    share.withdraw("a")

    assert (share.clock.virtual_time, share.clock.active_weight) == (4, 1)

    share.withdraw("a")
    share.deliver([("b", exact(6))])

    assert (share.clock.virtual_time, share.resume("a")) == (10, True)
    assert (share.tag("a"), share.resume("a")) == (16, False)
    assert _backlog_and_charges(share) == (26, 26)


def test_arriving_application_is_charged_at_least_two() -> None:
    """With a prediction of 0 an application would always be first (rule 6)."""
    share = _served_share(a=(0, 1), b=(1, 2), c=(3, 1))

    assert (share.tag("a"), share.tag("b"), share.tag("c")) == (2, 1, 3)
    assert _backlog_and_charges(share) == (7, 7)


def test_weight_change_rescales_the_remaining_charge_of_an_application() -> None:
    share = _served_share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(4))])
    share.reweigh("a", exact(3))

    assert (share.tag("a"), share.clock.virtual_time, share.clock.active_weight) == (4 + 2, 4, 4)
    assert _backlog_and_charges(share) == (32, 32)


def test_application_served_ahead_of_gps_keeps_its_debt_at_a_new_weight() -> None:
    """A caller must not lose its debt by changing its weight back and forth."""
    share = _served_share(a=(10, 1), b=(10, 1))
    share.deliver([("a", exact(8))])
    share.reweigh("a", exact(2))

    assert (share.tag("a"), share.clock.virtual_time) == (4 + 3, 4)

    share.reweigh("a", exact(1))

    assert (share.tag("a"), _backlog_and_charges(share)) == (10, (12, 12))


def test_only_service_moves_the_served_clock() -> None:
    share = _served_share(a=(10, 1))
    share.set_rate(1000, 1.0)
    share.advance(50.0)

    assert share.clock.virtual_time == 0


def test_finish_tag_of_a_withdrawn_application_includes_its_attained_service() -> None:
    share = _served_share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(6))])  # V = 5
    share.withdraw("a")
    told = share.tag("a")
    share.resume("a")

    assert 6 + 6 == told == share.tag("a")


def _nominal_share(kv_tokens: int = 100) -> NominalShare:
    """Return a clock of half-second iterations, which gives 200 token·iterations per second."""
    share = NominalShare(exact(1, 2), VirtualClock(exact(0)))
    share.set_rate(kv_tokens, exact(10))
    return share


def test_nominal_virtual_time_rises_by_the_kv_memory_per_iteration() -> None:
    share = _nominal_share()
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(11))

    assert share.clock.virtual_time == 200

    share.advance(exact(5))
    assert share.clock.virtual_time == 200


def test_nominal_clock_ignores_service_and_tool_calls() -> None:
    """The paper neither settles charges nor withdraws idle applications."""
    share = _nominal_share()
    share.arrive("a", exact(50), exact(1), 0)

    assert share.deliver([("a", exact(80))]) == []
    assert (
        share.accounts["a"].attained,
        share.accounts["a"].charged,
        share.clock.virtual_time,
        share.tag("a"),
    ) == (80, 50, 0, 50)

    share.withdraw("a")
    assert (share.resume("a"), share.tag("a"), share.clock.active_weight) == (False, 50, 1)


def test_virtual_time_stands_still_before_the_first_replica() -> None:
    share = NominalShare(exact(1, 2), VirtualClock(exact(7)))
    share.advance(exact(0))
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(10))

    assert (7, 1007) == (share.clock.virtual_time, share.tag("a"))


def _unsettled_share() -> UnsettledShare:
    """Return accounts that do not settle charges by service, in exact fractions."""
    return UnsettledShare(VirtualClock(exact(0)))


def test_unsettled_clock_keeps_the_tag_of_an_underpredicted_application() -> None:
    share = _unsettled_share()
    share.arrive("a", exact(10), exact(1), 0)
    share.arrive("b", exact(30), exact(1), 1)

    assert [] == share.deliver([("a", exact(40))])
    assert (10, 30) == (share.tag("a"), share.tag("b"))


def test_unsettled_clock_refunds_no_charge_of_an_overpredicted_application() -> None:
    share = _unsettled_share()
    share.arrive("a", exact(100), exact(1), 0)
    share.arrive("b", exact(20), exact(1), 1)
    share.deliver([("a", exact(10))])

    assert 100 == share.settle("a")
    share.deliver([("b", exact(20))])
    assert 15 == share.clock.virtual_time


def test_unsettled_clock_keeps_charges_during_tool_calls() -> None:
    share = _unsettled_share()
    share.arrive("a", exact(100), exact(1), 0)
    share.withdraw("a")

    assert not share.resume("a")
    assert 100 == share.tag("a")

    share.reweigh("a", exact(2))
    assert 50 == share.tag("a")


def test_lag_meter_of_an_unsettled_clock_has_a_separate_settled_clock() -> None:
    core = CoreDriver(SchedulerCore("justitia", {"clock": "unsettled"}, meter=LagMeter))
    core.open("a", 1)
    core.submit("x", "a", prompt=10, output=3)
    meter = core.core.lags

    assert isinstance(meter, LagMeter)
    assert core.core.ledger.fair_share.clock is not meter._accounts.share.clock


def _reach_second_stage(core: CoreDriver, cost: float = 300) -> None:
    """Finish the first inference of an application, while application b has a tag of 400."""
    core.open("b", 400)
    core.submit("y", "b")
    core.open("a", cost)
    core.submit("x")
    core.pull(seats=1)  # a has the smaller tag
    core.handle(ev.PullAnswered("r0"))
    finished = ev.LeaseFinished("1", 0, 10, Outcome.FINISHED)
    core.handle(ev.ReplicaReported("r0", finished=(finished,)))


def test_charge_of_an_application_may_differ_from_its_predicted_cost(core: CoreDriver) -> None:
    """Prediction errors are measured from the prediction, whatever the policy charges."""
    core.handle(ev.ApplicationArrived("a", "class", "t", 2.0, 100, "i0", charge_kv_token_time=300))

    assert (300, 100) == (core.account("a").charged, core.application("a").predicted_kv_token_time)
    assert 150 == core.core.tag("a")


def test_higher_cost_estimate_raises_the_charge_and_a_lower_one_does_not() -> None:
    share = ServedShare(VirtualClock(exact(0)))
    share.arrive("a", exact(10), exact(2), 1)

    assert [False, False] == [share.expect("a", exact(3)), share.expect("a", exact(10))]
    assert (10, 5) == (share.accounts["a"].charged, share.tag("a"))

    share.deliver([("a", exact(4))])
    assert share.expect("a", exact(20)) is True
    assert (24, 12) == (share.accounts["a"].charged, share.tag("a"))
    assert 20 == share.clock.backlog()


def test_raised_charge_moves_an_application_back_in_the_queue(core: CoreDriver) -> None:
    _reach_second_stage(core)
    core.submit("x2", remaining=1000)

    assert 1155 == core.account("a").charged
    assert ["y"] == granted(core.pull(seats=1))
    assert ["x2"] == granted(core.pull(finished={"2": 10}, seats=1))


def test_raised_charge_moves_all_waiting_inferences_of_an_application(core: CoreDriver) -> None:
    """Without a notification, the queue would grant by the old tag."""
    core.open("b", 400)
    core.open("a", 300)
    core.submit("x1")
    core.submit("x2", remaining=900, stage=0)
    core.submit("y", "b")

    assert ["y"] == granted(core.pull(seats=1))


@pytest.mark.parametrize("told", [{"stage": 0}, {"stage": 1, "resubmitted": True}])
def test_outdated_estimate_of_remaining_cost_is_ignored(
    core: CoreDriver, told: dict[str, Any]
) -> None:
    """An estimate made before the latest ends would count their cost twice."""
    _reach_second_stage(core)
    core.submit("x2", remaining=1000, **told)

    assert 300 == core.account("a").charged


def test_only_charges_in_kv_token_time_are_raised() -> None:
    """The estimate of the remaining cost is in KV token-time."""
    core = CoreDriver(SchedulerCore("justitia", {"cost": "compute"}))
    core.open("a", 300)
    before = core.account("a").charged
    core.submit("x", remaining=10_000)

    assert before == core.account("a").charged


@pytest.mark.parametrize("options", [{}, {"fairness": "tenant"}])
def test_raised_charge_survives_a_scheduler_restart(options: dict[str, object]) -> None:
    """A large application must not precede a small one again after a restart."""
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    driver.open("a", 300)
    driver.core.take_changed()
    driver.submit("x", remaining=5000)

    assert "a" in driver.core.take_changed()

    before = driver.hand_over(SchedulerCore("justitia", options, lease_prefix="2-"))

    assert (5000, before.tag("a")) == (driver.account("a").charged, driver.core.tag("a"))


def test_unused_part_of_a_raised_charge_is_refunded(core: CoreDriver) -> None:
    """A prediction that is too high delays the application, but takes no service from others."""
    core.open("b", 400)
    core.open("a", 100)
    core.submit("x", remaining=5000)
    core.submit("y", "b")
    core.submit("y2", "b")
    core.handle(ev.ApplicationClosed("a"))
    core.pull()
    clock = core.core.ledger.fair_share.clock

    assert 5400 == clock.backlog()

    core.pull(finished={"1": 10, "3": 10}, progress={"2": 0})

    assert 400 - 155 == clock.backlog()
