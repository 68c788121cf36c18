"""A silent but connected replica keeps its running inferences and gets no new ones."""

from justitia_ray.core import events as ev
from tests.core_driver import CoreDriver, aborted, granted


def _running_on_r0(core: CoreDriver) -> None:
    core.open("a", 100)
    core.submit("x")
    core.pull("r0", connected=True)
    core.pull("r0", progress={"1": 2}, connected=True)
    core.handle(ev.PullAnswered("r0"))


def _pass_time(core: CoreDriver, for_s: float) -> list[object]:
    actions: list[object] = []
    for _ in range(round(for_s)):
        core.now += 1.0
        actions += core.handle(ev.DeadlinePassed())
    return actions


def test_silent_replica_that_is_connected_is_not_lost(core: CoreDriver) -> None:
    """An event loop may compile a grammar for half a minute without a report."""
    _running_on_r0(core)
    core.pull("r1")
    core.now += 2.0
    core.pull("r1")

    assert [] == _pass_time(core, 3.0)
    for _ in range(20):
        core.now += 1.0
        assert [] == core.pull("r1")

    assert {"r0"} == {lease.replica_id for lease in core.core.state.leases.values()}
    assert core.core.state.replicas["r0"].is_silent


def test_silent_replica_gets_no_lease_until_it_pulls(core: CoreDriver) -> None:
    """Even if its pull is open, it would not read the grant."""
    core.open("a", 100)
    core.pull("r0", connected=True)
    _pass_time(core, 5.0)

    assert [] == granted(core.submit("x"))
    assert ["x"] == granted(core.pull("r0", connected=True))


def test_replica_whose_process_has_ended_is_lost_in_time(core: CoreDriver) -> None:
    """The host has closed the connection: from then on the timeout applies."""
    _running_on_r0(core)
    _pass_time(core, 20.0)
    core.handle(ev.ReplicaDisconnected("r0"))
    _pass_time(core, 1.0)

    assert {} == core.core.state.replicas
    assert ["x"] == granted(core.pull("r1"))


def test_replica_that_connects_anew_in_time_is_not_lost(core: CoreDriver) -> None:
    """A lost connection is not a lost process."""
    _running_on_r0(core)
    core.handle(ev.ReplicaDisconnected("r0"))
    core.now += 3.0
    core.pull("r0", progress={"1": 3}, connected=True)
    _pass_time(core, 3.0)

    assert {"r0"} == core.core.state.replicas.keys()


def test_lease_is_not_taken_back_from_a_silent_replica(core: CoreDriver) -> None:
    """The call that keeps it busy would block the next replica, and in the end all of them."""
    core.open("a", 100)
    core.submit("x")
    core.pull("r0", connected=True)
    core.handle(ev.PullAnswered("r0"))

    assert [] == _pass_time(core, 25.0)

    core.pull("r0", progress={"1": 1}, connected=True)
    assert [] == aborted(_pass_time(core, 3.0))  # type: ignore[arg-type]


def test_lease_whose_payload_never_came_is_taken_back_when_the_replica_calls(
    core: CoreDriver,
) -> None:
    """The replica reports the lease as armed and not running."""
    core.open("a", 100)
    core.submit("x")
    core.pull("r0", connected=True)
    _pass_time(core, 20.0)
    armed = (ev.LeaseProgress("1", 0, 0, running=False),)
    core.pull("r0", progress=armed, connected=True)
    core.now += 1.9

    assert ["1"] == aborted(core.handle(ev.DeadlinePassed()))
