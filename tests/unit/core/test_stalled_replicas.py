"""A stalled replica loses its leases to others, and gets none until it makes progress again."""

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from tests.core_driver import CoreDriver, aborted, granted


def test_leases_of_a_stalled_replica_move_to_others(core: CoreDriver) -> None:
    """On a stalled replica neither running nor granted inferences get tokens."""
    core.open("a", 100)
    core.submit("x")
    core.submit("y")
    core.pull("r0")
    core.pull("r0", progress={"1": 2})

    actions = core.pull("r0", progress={"1": 2}, stalled=True)
    assert {"1", "2"} == set(aborted(actions))

    assert ["x", "y"] == granted(core.pull("r1"))
    assert {"r1"} == {lease.replica_id for lease in core.core.state.leases.values()}


def test_stalled_replica_gets_no_lease_until_it_makes_progress(core: CoreDriver) -> None:
    """A stalled replica continues to pull like one with free capacity."""
    core.open("a", 100)
    core.pull("r0", stalled=True)
    assert [] == granted(core.submit("x"))
    assert [] == granted(core.pull("r0", stalled=True))

    assert ["x"] == granted(core.pull("r0"))


def test_inference_requeued_from_a_stalled_engine_is_aborted_when_it_continues(
    core: CoreDriver,
) -> None:
    """The replica may not have read the abort, and its tokens must not be counted twice."""
    core.open("a", 100)
    core.submit("x")
    core.pull("r0")
    core.pull("r0", progress={"1": 2})
    core.pull("r0", progress={"1": 2}, stalled=True)
    core.pull("r1")

    actions = core.pull("r0", progress={"1": 7})
    assert ["1"] == aborted(actions)
    assert core.core.state.inferences["x"].output_tokens == 2


def test_lease_granted_before_a_restart_is_requeued_from_a_stalled_replica(
    core: CoreDriver,
) -> None:
    """A new scheduler receives the stall and the lease in either order."""
    core.core.recovery.hold_grants({"r0"}, core.now + 3.0)
    core.open("a", 100)
    running = (ev.LeaseProgress("0-1", 10, 4, running=True),)
    core.pull("r0", progress=running, stalled=True)
    core.submit("x", lease_id="0-1", resubmitted=True)

    assert {} == core.core.state.leases
    core.pull("r1")
    core.now += 4.0
    assert ["x"] == granted(core.pull("r1"))


def test_finished_lease_reported_together_with_a_stall_counts_as_ended(core: CoreDriver) -> None:
    """The inference had received its last token before the stall."""
    core.open("a", 100)
    core.submit("x")
    core.pull("r0")
    end = (ev.LeaseFinished("1", 10, 5, Outcome.FINISHED),)

    assert [] == aborted(core.pull("r0", finished=end, stalled=True))
    assert "x" not in core.core.state.inferences
