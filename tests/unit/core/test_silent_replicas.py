"""A silent but connected replica keeps its running inferences and gets no new ones."""

from justitia_ray.core import events as ev
from tests.core_driver import CoreDriver, aborted, granted


def _run_on_r0(core: CoreDriver) -> None:
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


def test_silent_but_connected_replica_is_not_lost(core: CoreDriver) -> None:
    """An event loop may compile a grammar for half a minute without a report."""
    _run_on_r0(core)
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
    """The replica would not read the grant, even if its pull is open."""
    core.open("a", 100)
    core.pull("r0", connected=True)
    _pass_time(core, 5.0)

    assert [] == granted(core.submit("x"))
    assert ["x"] == granted(core.pull("r0", connected=True))


def test_replica_with_a_closed_connection_is_lost_after_the_timeout(core: CoreDriver) -> None:
    """The host of an ended process closes the connection."""
    _run_on_r0(core)
    _pass_time(core, 20.0)
    core.handle(ev.ReplicaDisconnected("r0"))
    _pass_time(core, 1.0)

    assert {} == core.core.state.replicas
    assert ["x"] == granted(core.pull("r1"))


def test_replica_that_reconnects_in_time_is_not_lost(core: CoreDriver) -> None:
    """A lost connection is not a lost process."""
    _run_on_r0(core)
    core.handle(ev.ReplicaDisconnected("r0"))
    core.now += 3.0
    core.pull("r0", progress={"1": 3}, connected=True)
    _pass_time(core, 3.0)

    assert {"r0"} == core.core.state.replicas.keys()


def test_silent_replica_keeps_its_lease(core: CoreDriver) -> None:
    """A call that blocks its replica would block the next one too, and in the end all."""
    core.open("a", 100)
    core.submit("x")
    core.pull("r0", connected=True)
    core.handle(ev.PullAnswered("r0"))

    assert [] == _pass_time(core, 25.0)

    core.pull("r0", progress={"1": 1}, connected=True)
    assert [] == aborted(_pass_time(core, 3.0))  # type: ignore[arg-type]


def test_lease_whose_prompt_never_arrived_is_requeued_at_the_next_report(
    core: CoreDriver,
) -> None:
    core.open("a", 100)
    core.submit("x")
    core.pull("r0", connected=True)
    _pass_time(core, 20.0)
    armed = (ev.LeaseProgress("1", 0, 0, running=False),)
    core.pull("r0", progress=armed, connected=True)
    core.now += 1.9

    assert ["1"] == aborted(core.handle(ev.DeadlinePassed()))
