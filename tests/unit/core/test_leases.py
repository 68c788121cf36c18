"""Leases that fail: each inference is requeued exactly once, in its old position."""

import pytest

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.states import InferenceState, LeaseState
from tests.core_driver import CoreDriver, aborted, ended, granted


@pytest.fixture
def leased_core(core: CoreDriver) -> CoreDriver:
    """Return a core with x and y leased to r0, and z waiting."""
    core.open()
    for name in ("x", "y", "z"):
        core.submit(name)
    core.pull(seats=2)
    core.handle(ev.PullAnswered("r0"))
    return core


def test_expired_lease_returns_its_inference_once(leased_core: CoreDriver) -> None:
    """A missing payload must not hold memory, and the inference must not run twice."""
    leased_core.now += 3.0
    progress = [ev.LeaseProgress(name, 0, 0, running=name == "2") for name in "12"]
    leased_core.pull(progress=progress, seats=2)
    leased_core.handle(ev.PullAnswered("r0"))
    actions = leased_core.wait(2.0)

    assert aborted(actions) == ["1"]
    assert leased_core.waiting() == ["x", "z"]
    assert leased_core.wait(0.0) == []
    assert granted(leased_core.pull(progress={"2": 1}, seats=2)) == ["x"]


def test_inference_of_an_expired_lease_keeps_its_queue_place(leased_core: CoreDriver) -> None:
    leased_core.open("later", 100)
    leased_core.submit("l", "later")
    tag = leased_core.core.tag("a")
    leased_core.now += 3.0
    leased_core.pull(progress=[ev.LeaseProgress(name, 0, 0, False) for name in "12"], seats=2)
    leased_core.handle(ev.PullAnswered("r0"))
    leased_core.wait(2.0)

    assert (tag, ["x", "y", "z"]) == (leased_core.core.tag("a"), leased_core.waiting())
    assert granted(leased_core.pull("r1")) == ["x", "y", "z", "l"]
    assert leased_core.inference("x").attempts == 2


def test_running_lease_does_not_expire(leased_core: CoreDriver) -> None:
    """Once the payload has arrived, only the replica's silence ends a lease."""
    for _ in range(4):
        leased_core.now += 2.0
        leased_core.pull(progress={"1": 1, "2": 1}, seats=2)

    assert (leased_core.waiting(), leased_core.core.state.leases["1"].state) == (
        ["z"],
        LeaseState.RUNNING,
    )
    assert InferenceState.RUNNING is leased_core.inference("x").state


def test_inference_of_a_refused_lease_returns_to_its_queue_place(leased_core: CoreDriver) -> None:
    actions = leased_core.handle(ev.LeaseNacked("1", ev.NackReason.LEASE))

    assert (aborted(actions), leased_core.waiting()) == (["1"], ["x", "z"])
    assert not leased_core.core.state.replicas["r0"].draining

    again = leased_core.handle(ev.LeaseNacked("1", ev.NackReason.LEASE))

    assert (again, leased_core.core.state.late_reports) == ([], 1)


def test_replica_unreachable_from_one_ingress_serves_other_ingresses(
    leased_core: CoreDriver,
) -> None:
    """A lost connection does not show that the replica failed."""
    leased_core.handle(ev.LeaseNacked("1", ev.NackReason.CONNECTION))

    assert granted(leased_core.pull("r1", seats=1)) == ["x"]
    assert granted(leased_core.pull(progress={"2": 1}, seats=2)) == ["z"]
    assert not leased_core.core.state.replicas["r0"].draining


def test_late_refusal_of_a_lease_of_a_lost_replica_is_ignored(leased_core: CoreDriver) -> None:
    leased_core.handle(ev.ReplicaLost("r0"))

    assert leased_core.handle(ev.LeaseNacked("1", ev.NackReason.CONNECTION)) == []
    assert leased_core.waiting() == ["x", "y", "z"]


def test_lost_replica_returns_all_its_inferences(leased_core: CoreDriver) -> None:
    """Inferences return once, in their order, running or not."""
    leased_core.pull(progress={"2": 4}, seats=2)

    assert leased_core.handle(ev.ReplicaLost("r0")) == []
    assert leased_core.waiting() == ["x", "y", "z"]
    assert leased_core.handle(ev.ReplicaLost("r0")) == []
    assert granted(leased_core.pull("r1")) == ["x", "y", "z"]


def test_silent_replica_is_lost_after_its_timeout(leased_core: CoreDriver) -> None:
    """Re-leasing within 5 s is the target, so silence counts as loss after 4 s."""
    leased_core.now += 2.0
    leased_core.pull(progress={"1": 1, "2": 1}, seats=2)
    leased_core.wait(3.9)

    assert list(leased_core.core.state.replicas) == ["r0"]

    leased_core.wait(0.1)

    assert (list(leased_core.core.state.replicas), leased_core.waiting()) == ([], ["x", "y", "z"])


def test_deadline_of_a_removed_replica_has_no_effect(leased_core: CoreDriver) -> None:
    """The deadline of a removed replica is still in the heap."""
    leased_core.handle(ev.ReplicaLost("r0"))

    assert leased_core.wait(10.0) == []


def test_returning_replica_starts_without_leases(leased_core: CoreDriver) -> None:
    """Reports of old leases are late, so the replica must abort them."""
    leased_core.wait(4.0)
    leased_core.handle(ev.ReplicaLost("r0"))
    actions = leased_core.pull(progress={"1": 5, "2": 5}, seats=1)

    assert (aborted(actions), granted(actions)) == (["1", "2"], ["x"])
    assert (leased_core.core.state.late_reports, leased_core.account().attained) == (2, 0)


def test_late_final_report_is_dropped_and_counted(leased_core: CoreDriver) -> None:
    leased_core.pull(progress={"2": 1}, finished={"1": 10})
    leased_core.pull(progress={"2": 1})
    attained = leased_core.account().attained
    actions = leased_core.pull(progress={"2": 1}, finished={"1": 12})

    assert ([], 1, attained) == (
        actions,
        leased_core.core.state.late_reports,
        leased_core.account().attained,
    )
    assert leased_core.application().inferences == 1


def test_repeated_final_report_is_ignored_and_confirmed(
    leased_core: CoreDriver,
) -> None:
    """A replica repeats the report until it is confirmed."""
    leased_core.pull(progress={"2": 1}, finished={"1": 10})
    for _ in range(2):
        leased_core.pull(progress={"2": 1}, finished={"1": 10})

    assert (0, 1) == (leased_core.core.state.late_reports, leased_core.application().inferences)

    kept = list(leased_core.application().ended_leases)
    still = list(leased_core.application().ended_leases)
    leased_core.pull(progress={"2": 1})
    assert (["1"], ["1"], {}) == (kept, still, leased_core.application().ended_leases)


def test_final_report_repeated_in_one_pull_counts_once(leased_core: CoreDriver) -> None:
    """A replica may have kept the report from a pull that was not answered."""
    finished = [ev.LeaseFinished("1", 0, n, Outcome.FINISHED) for n in (10, 10)]
    leased_core.pull(progress={"2": 1}, finished=finished)

    assert (leased_core.application().inferences, leased_core.application().output_tokens) == (
        1,
        10,
    )


def test_inference_of_a_dead_engine_returns_to_its_queue_place(leased_core: CoreDriver) -> None:
    leased_core.pull(progress={"1": 3, "2": 3}, seats=2)
    leased_core.handle(ev.PullAnswered("r0"))
    finished = ev.LeaseFinished("1", 10, 4, None)
    actions = leased_core.pull(progress={"2": 4}, finished=[finished], draining=True)

    assert (actions, leased_core.waiting()) == ([], ["x", "z"])
    assert leased_core.application().inferences == 0


def test_running_lease_missing_from_a_report_is_requeued(leased_core: CoreDriver) -> None:
    """Until a lease has run, the answer that carries it may still be on its way."""
    leased_core.pull(seats=2)

    assert (["z"], {"1", "2"}) == (leased_core.waiting(), set(leased_core.core.state.leases))

    leased_core.pull(progress={"1": 3, "2": 3}, seats=2)
    leased_core.pull(progress={"2": 4}, draining=True)
    assert leased_core.waiting() == ["x", "z"]


def test_partial_report_of_ended_leases_leaves_other_leases_unchanged(
    leased_core: CoreDriver,
) -> None:
    """Between two full reports a replica sends only ends."""
    leased_core.pull(progress={"1": 3, "2": 3}, seats=2)
    actions = leased_core.pull(progress=None, finished={"1": 10}, seats=2)

    assert (["z"], LeaseState.RUNNING) == (
        granted(actions),
        leased_core.core.state.leases["2"].state,
    )
    assert {"2", "3"} == leased_core.core.state.leases.keys()

    leased_core.pull(progress={}, seats=2, draining=True)
    assert (["y"], ["3"]) == (leased_core.waiting(), list(leased_core.core.state.leases))


def test_partial_report_of_ended_leases_confirms_no_running_lease(leased_core: CoreDriver) -> None:
    for _ in range(4):
        leased_core.now += 1.3
        actions = leased_core.pull(progress=None, seats=2)

    assert ["1", "2"] == aborted(actions)


def test_kv_memory_in_use_without_a_lease_reduces_the_leasable_tokens() -> None:
    driver = CoreDriver()
    driver.open()
    driver.submit("x", prompt=10, output=50)
    driver.pull(kv=100)
    driver.pull(progress={"1": 0}, kv=100, free=70)
    replica = driver.core.state.replicas["r0"]

    assert (20, 0, 80) == (
        replica.unaccounted_tokens,
        replica.grown_tokens,
        replica.leasable_tokens,
    )
    driver.pull(progress=None, kv=100, free=65)
    assert (20, 5) == (replica.unaccounted_tokens, replica.grown_tokens)
    driver.pull(progress=None, kv=100, free=83)
    assert (7, 0) == (replica.unaccounted_tokens, replica.grown_tokens)
    driver.pull(progress={"1": 7}, kv=100, free=83)
    assert (0, 0) == (replica.unaccounted_tokens, replica.grown_tokens)


def test_failed_inference_ends_and_is_counted(leased_core: CoreDriver) -> None:
    """The engine answered with an error that a retry would repeat."""
    finished = ev.LeaseFinished("1", 10, 0, Outcome.FAILED)
    leased_core.pull(progress={"2": 1}, finished=[finished], seats=1)

    assert (leased_core.application().failed, leased_core.application().inferences) == (1, 1)


def test_lost_ingress_ends_its_inferences(leased_core: CoreDriver) -> None:
    """No ingress is left to send their payloads or read their tokens."""
    leased_core.open("b", 10, ingress_id="i1")
    leased_core.submit("other", "b", ingress_id="i1")
    actions = []
    for _ in range(10):  # Replica r0 and ingress i1 report during these 30 s.
        leased_core.now += 3.0
        leased_core.handle(ev.IngressHeartbeat("i1"))
        actions += leased_core.pull(progress={"1": 1, "2": 1}, seats=2)

    assert aborted(actions) == ["1", "2"]
    assert list(leased_core.core.state.inferences) == ["other"]
    assert {"i1"} == leased_core.core.state.ingresses.keys()
    leased_core.last_word("1", "2", output=1)
    assert leased_core.application().inferences == 3


def test_ingress_with_heartbeats_keeps_its_inferences(leased_core: CoreDriver) -> None:
    """The timeout of an ingress counts from its last message."""
    leased_core.now += 20.0
    leased_core.handle(ev.IngressHeartbeat("i0"))
    leased_core.wait(29.0)

    assert len(leased_core.core.state.inferences) == 3

    leased_core.wait(1.0)

    assert len(leased_core.core.state.inferences) == 0


def test_lost_ingress_ends_a_closed_application() -> None:
    """The application ends with its last inference, as it would by any other end."""
    driver = CoreDriver(SchedulerCore(timeouts=Timeouts(ingress_s=10.0)))
    driver.open()
    driver.submit("x")
    driver.handle(ev.ApplicationClosed("a"))

    assert ended(driver.wait(10.0)) == [("a", "finished")]


def test_next_deadline_is_the_earliest_deadline(leased_core: CoreDriver) -> None:
    """The driver of the scheduler sets one timer for the earliest deadline."""
    assert leased_core.core.next_deadline() == 104.0

    leased_core.handle(ev.ReplicaLost("r0"))
    leased_core.wait(4.0)

    assert leased_core.core.next_deadline() == 105.0


def test_empty_core_has_no_deadline(core: CoreDriver) -> None:
    assert None is core.core.next_deadline()
