"""Rule 7: what is expected of an application at a later stage moves its tag, forwards only."""

import json

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.fair_share import ServedShare
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.core.virtual_clock import VirtualClock
from tests.core_driver import CoreDriver, granted
from tests.exact import exact


def _at_second_stage(core: CoreDriver, cost: float = 300) -> None:
    """Let an application finish its first inference: 155 attained, and b has a tag of 400."""
    core.open("b", 400)
    core.submit("y", "b")
    core.open("a", cost)
    core.submit("x")
    core.pull(seats=1)  # a: its tag is less
    core.handle(ev.PullAnswered("r0"))
    finished = ev.LeaseFinished("1", 0, 10, Outcome.FINISHED)
    core.handle(ev.ReplicaReported("r0", finished=(finished,)))


def test_expecting_more_charges_what_is_missing() -> None:
    """Charged 10 and served 4, 20 still to come: 14 more, F = 10 + 14/2 at weight 2."""
    share = ServedShare(VirtualClock(exact(0)))
    share.arrive("a", exact(10), exact(2), 1)
    share.deliver([("a", exact(4))])

    assert share.expect("a", exact(20)) is True
    assert (24, 12) == (share.accounts["a"].charged, share.tag("a"))
    assert 20 == share.clock.backlog()


def test_charge_may_differ_from_the_prediction(core: CoreDriver) -> None:
    """A predictor that may be wrong lets more be charged, and is judged by what it predicted."""
    core.handle(ev.ApplicationArrived("a", "class", "t", 2.0, 100, "i0", charge_kv_token_time=300))

    assert (300, 100) == (core.account("a").charged, core.application("a").predicted_kv_token_time)
    assert 150 == core.core.tag("a")


def test_expecting_less_changes_nothing() -> None:
    """F never falls by an estimate: what is charged too much is refunded when it ends."""
    share = ServedShare(VirtualClock(exact(0)))
    share.arrive("a", exact(10), exact(2), 1)

    assert [False, False] == [share.expect("a", exact(3)), share.expect("a", exact(10))]
    assert (10, 5) == (share.accounts["a"].charged, share.tag("a"))


def test_raised_application_takes_its_new_place(core: CoreDriver) -> None:
    """It had been before b, and at its second stage turns out to be the larger one."""
    _at_second_stage(core)
    core.submit("x2", remaining=1000)

    assert 1155 == core.account("a").charged
    assert ["y"] == granted(core.pull(seats=1))
    assert ["x2"] == granted(core.pull(finished={"2": 10}, seats=1))


def test_what_waits_already_moves_with_its_application(core: CoreDriver) -> None:
    """The queue must be told, or the next grant goes by the old tag."""
    core.open("b", 400)
    core.open("a", 300)
    core.submit("x1")
    core.submit("x2", remaining=900, stage=0)
    core.submit("y", "b")

    assert ["y"] == granted(core.pull(seats=1))


def test_ingress_that_has_seen_less_is_not_believed(core: CoreDriver) -> None:
    """It takes the application to be at its first stage, and expects all of it once more."""
    _at_second_stage(core)
    core.submit("x2", stage=0, remaining=1000)

    assert 300 == core.account("a").charged


def test_estimate_from_before_a_restart_is_not_used(core: CoreDriver) -> None:
    """Some of what remained then has been served since, and the charge was stored."""
    _at_second_stage(core)
    core.submit("x2", stage=1, remaining=1000, again=True)

    assert 300 == core.account("a").charged


def test_accounts_in_another_unit_are_not_raised() -> None:
    """What remains is told in KV token-time."""
    core = CoreDriver(SchedulerCore("justitia", {"cost": "compute"}))
    core.open("a", 300)
    before = core.account("a").charged
    core.submit("x", remaining=10_000)

    assert before == core.account("a").charged


@pytest.mark.parametrize("options", [{}, {"fairness": "tenant"}])
def test_raised_charge_outlives_the_scheduler(options: dict[str, object]) -> None:
    """A restart must not give a giant back the place of the mouse it was taken for."""
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    driver.open("a", 300)
    driver.core.take_changed()
    driver.submit("x", remaining=5000)

    assert "a" in driver.core.take_changed()

    record = json.loads(json.dumps(snapshot(driver.core)))
    successor = CoreDriver(SchedulerCore("justitia", options, lease_prefix="2-"), driver.now)
    successor.core.recover([], successor.now)
    restore(successor.core, record["clock"], record["applications"])

    assert (5000, driver.core.tag("a")) == (successor.account("a").charged, successor.core.tag("a"))


def test_unused_part_of_a_raised_charge_is_refunded(core: CoreDriver) -> None:
    """An estimate that was too high costs the application its place, not the others theirs."""
    core.open("b", 400)
    core.open("a", 100)
    core.submit("x", remaining=5000)
    core.submit("y", "b")
    core.submit("y2", "b")
    core.handle(ev.ApplicationClosed("a"))
    core.pull()
    clock = core.core.order.fair_share.clock

    assert 5400 == clock.backlog()

    core.pull(finished={"1": 10, "3": 10}, progress={"2": 0})

    assert 400 - 155 == clock.backlog()
