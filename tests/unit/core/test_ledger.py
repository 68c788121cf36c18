"""Changes of policy in a running scheduler, which keeps its queue and accounts."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.fair_share import NominalShare, ServedShare
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver, aborted, ended, granted

NOMINAL = (("clock", "nominal"), ("nominal_iteration_s", 0.5))


@pytest.fixture
def queued_core(core: CoreDriver) -> CoreDriver:
    """Return a core where a large application submitted before a small one, twice each."""
    core.open("a", 1000)
    core.open("b", 10)
    for name in ("a1", "b1", "a2", "b2"):
        core.submit(name, name[0])
    return core


def test_fcfs_grants_inferences_in_order_of_submission(queued_core: CoreDriver) -> None:
    assert queued_core.handle(ev.PolicyChanged("fcfs")) == []
    assert granted(queued_core.pull()) == ["a1", "b1", "a2", "b2"]
    assert queued_core.core.ledger.policy_name == "fcfs"


def test_policy_change_and_return_restores_the_queue_order(queued_core: CoreDriver) -> None:
    """Every policy keeps the virtual-time accounts, so that no tag is lost."""
    queued_core.handle(ev.PolicyChanged("fcfs"))
    queued_core.handle(ev.PolicyChanged("justitia"))

    assert granted(queued_core.pull()) == ["b1", "b2", "a1", "a2"]


def test_policy_change_starts_inferences_at_once(queued_core: CoreDriver) -> None:
    """Under another admission rule waiting inferences may fit without any other event."""
    queued_core.pull(seats=1)
    queued_core.handle(ev.PolicyChanged("fcfs"))

    assert granted(queued_core.pull(finished={"1": 10}, seats=1)) == ["a1"]


def test_policy_change_may_also_change_the_admission_rule(core: CoreDriver) -> None:
    core.open()
    core.submit("x", prompt=20, output=60)
    core.submit("y", prompt=20, output=60)
    core.pull(kv=100)

    assert granted(core.handle(ev.PolicyChanged("justitia", (), "prompt"))) == ["y"]
    assert core.core.admission_name == "prompt"


@pytest.mark.parametrize(
    "event",
    [
        ev.PolicyChanged("lifo"),
        ev.PolicyChanged("fcfs", (("clock", "wall"),)),
        ev.PolicyChanged("fcfs", NOMINAL, "first"),
    ],
)
def test_refused_policy_change_has_no_effect(
    queued_core: CoreDriver, event: ev.PolicyChanged
) -> None:
    """A partial change would leave the queue sorted by an old key."""
    with pytest.raises(ConfigError, match="is not one of"):
        queued_core.handle(event)

    core = queued_core.core

    assert (
        core.ledger.policy_name,
        core.ledger.options.clock,
        core.admission_name,
    ) == ("justitia", "served", "peak")
    assert granted(queued_core.pull()) == ["b1", "b2", "a1", "a2"]


def test_lease_expiry_before_a_refused_policy_change_is_reported(queued_core: CoreDriver) -> None:
    """The replica must still abort the lease that expired."""
    queued_core.pull(seats=1)
    queued_core.handle(ev.PullAnswered("r0"))
    queued_core.now += 3.0
    queued_core.pull(progress=[ev.LeaseProgress("1", 0, 0, False)], seats=1)
    queued_core.now += 2.0
    with pytest.raises(ConfigError):
        queued_core.handle(ev.PolicyChanged("lifo"))

    assert aborted(queued_core.wait(0.0)) == ["1"]
    assert aborted(queued_core.wait(0.0)) == []


def test_change_to_the_nominal_clock_charges_the_remaining_cost(
    queued_core: CoreDriver,
) -> None:
    """Attained service is not charged again, and virtual time V keeps its value."""
    queued_core.pull(seats=1)
    queued_core.pull(progress={"1": 1}, seats=1)
    v = queued_core.core.ledger.fair_share.clock.virtual_time
    queued_core.handle(ev.PolicyChanged("justitia", NOMINAL))

    assert isinstance(queued_core.core.ledger.fair_share, NominalShare)
    assert (
        v,
        queued_core.core.ledger.fair_share.clock.virtual_time,
        queued_core.core.tag("b"),
        queued_core.core.tag("a"),
    ) == (5.5, 5.5, 5.5 + 9, 5.5 + 1000)
    assert (
        queued_core.account("b").charged,
        queued_core.account("b").attained,
        queued_core.account("b").settlements,
    ) == (20, 11, 1)

    queued_core.now += 0.001
    queued_core.pull(progress={"1": 1}, seats=1)

    assert pytest.approx(queued_core.core.ledger.fair_share.clock.virtual_time) == 6.5


def test_change_from_nominal_to_served_clock_keeps_the_invariants() -> None:
    driver = CoreDriver(SchedulerCore("justitia", dict(NOMINAL)))
    for name, cost in (("a", 10), ("b", 500), ("idle", 70)):
        driver.open(name, cost)
    driver.submit("x", "a")
    driver.submit("y", "b")
    driver.pull()
    driver.pull(progress={"1": 5, "2": 1})  # a attained 65 of 10

    assert (driver.account("a").charged, driver.account("a").attained) == (10, 65)

    driver.handle(ev.PolicyChanged("justitia"))
    share = driver.core.ledger.fair_share

    assert isinstance(share, ServedShare)
    assert (
        driver.account("a").charged,
        driver.core.tag("a") - share.clock.virtual_time,
        driver.core.tag("b") - share.clock.virtual_time,
        driver.account("idle").withdrawn,
    ) == (67, 2, 489, True)

    driver.pull(progress={"1": 9, "2": 9})
    driver.pull(finished={"1": 10, "2": 10})

    assert driver.account("a").attained + driver.account("b").attained == 2 * 155


def test_options_of_an_unused_clock_leave_finish_tags_unchanged(queued_core: CoreDriver) -> None:
    before = queued_core.core.ledger.fair_share
    queued_core.handle(ev.PolicyChanged("justitia", (("nominal_iteration_s", 0.1),)))

    assert before is queued_core.core.ledger.fair_share
    assert queued_core.core.ledger.options.nominal_iteration_s == 0.1


def test_change_of_the_clock_removes_ended_sessions_from_the_store(core: CoreDriver) -> None:
    """A session left in the store would return to virtual time with the next scheduler."""
    core.open("b", 500)
    core.submit("y", "b")
    core.open("ghost", 155)
    core.submit("x", "ghost")
    core.handle(ev.ApplicationClosed("ghost"))
    core.open("gone", 5)
    core.handle(ev.ApplicationClosed("gone"))
    core.pull()
    core.pull(progress={"2": 0}, finished={"1": 10})

    assert "ghost" in core.core.ledger.fair_share.clock

    core.core.state.changed.clear()
    core.handle(ev.PolicyChanged("justitia", NOMINAL))

    assert {"b", "ghost", "gone"} == set(core.core.take_changed())


def test_nominal_clock_uses_the_memory_of_all_live_replicas() -> None:
    driver = CoreDriver(SchedulerCore("justitia", dict(NOMINAL)), now=0.0)
    driver.open("a", 100_000)
    driver.submit("x")
    driver.pull("r0", kv=1000)  # 2000 a second
    driver.now = 1.0
    driver.pull("r1", kv=500)  # 3000 a second
    clock = driver.core.ledger.fair_share.clock

    assert clock.virtual_time == 2000

    driver.now = 2.0
    driver.handle(ev.ReplicaLost("r0"))

    assert clock.virtual_time == 5000

    driver.now = 3.0
    driver.open("b", 40)

    assert (clock.virtual_time, driver.core.tag("b")) == (6000, 6040)


def test_ended_application_stays_in_nominal_gps_until_its_tag() -> None:
    driver = CoreDriver(SchedulerCore("justitia", dict(NOMINAL)), now=0.0)
    driver.open("a", 1000)
    driver.pull("r0", kv=1000)

    assert ended(driver.handle(ev.ApplicationClosed("a"))) == [("a", "finished")]

    driver.core.take_changed()
    driver.wait(0.25)

    assert driver.core.take_changed() == []

    driver.wait(0.25)

    assert driver.core.take_changed() == ["a"]
