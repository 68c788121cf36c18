"""Leases that fail: each inference is requeued exactly once, at its old place."""

import pytest

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.states import InferenceState, LeaseState
from tests.core_driver import CoreDriver, aborted, ended, granted


@pytest.fixture
def leased(core: CoreDriver) -> CoreDriver:
    """Return a core with x and y leased to r0, and z waiting."""
    core.open()
    for name in ("x", "y", "z"):
        core.submit(name)
    core.pull(seats=2)
    core.handle(ev.PullAnswered("r0"))
    return core


def test_expired_lease_returns_inference_once(leased: CoreDriver) -> None:
    """A missing payload must not hold memory, and the inference must not run twice."""
    leased.now += 3.0
    progress = [ev.LeaseProgress(name, 0, 0, running=name == "2") for name in "12"]
    leased.pull(progress=progress, seats=2)
    leased.handle(ev.PullAnswered("r0"))
    actions = leased.wait(2.0)

    assert aborted(actions) == ["1"]
    assert leased.waiting() == ["x", "z"]
    assert leased.wait(0.0) == []
    assert granted(leased.pull(progress={"2": 1}, seats=2)) == ["x"]


def test_expired_lease_keeps_its_place_in_the_queue(leased: CoreDriver) -> None:
    """An inference has the tag of its application; later applications of equal cost stay behind."""
    leased.open("later", 100)
    leased.submit("l", "later")
    tag = leased.core.tag("a")
    leased.now += 3.0
    leased.pull(progress=[ev.LeaseProgress(name, 0, 0, False) for name in "12"], seats=2)
    leased.handle(ev.PullAnswered("r0"))
    leased.wait(2.0)

    assert (tag, ["x", "y", "z"]) == (leased.core.tag("a"), leased.waiting())
    assert granted(leased.pull("r1")) == ["x", "y", "z", "l"]
    assert leased.inference("x").attempts == 2


def test_running_lease_does_not_expire(leased: CoreDriver) -> None:
    """Once the payload has arrived only the replica's silence ends a lease."""
    for _ in range(4):
        leased.now += 2.0
        leased.pull(progress={"1": 1, "2": 1}, seats=2)

    assert (leased.waiting(), leased.core.state.leases["1"].state) == (["z"], LeaseState.RUNNING)
    assert InferenceState.RUNNING is leased.inference("x").state


def test_refused_lease_returns_to_its_place(leased: CoreDriver) -> None:
    """A replica that did not hold a lease may get the inference again, as may any other."""
    actions = leased.handle(ev.LeaseNacked("1", ev.NackReason.LEASE))

    assert (aborted(actions), leased.waiting()) == (["1"], ["x", "z"])
    assert not leased.core.state.replicas["r0"].draining

    again = leased.handle(ev.LeaseNacked("1", ev.NackReason.LEASE))

    assert (again, leased.core.state.late_reports) == ([], 1)


def test_replica_that_one_ingress_cannot_reach_serves_others(leased: CoreDriver) -> None:
    """A lost connection does not show that the replica failed: it reports by another one."""
    leased.handle(ev.LeaseNacked("1", ev.NackReason.CONNECTION))

    assert granted(leased.pull("r1", seats=1)) == ["x"]
    assert granted(leased.pull(progress={"2": 1}, seats=2)) == ["z"]
    assert not leased.core.state.replicas["r0"].draining


def test_refusal_of_a_lease_of_a_lost_replica_is_late(leased: CoreDriver) -> None:
    """The replica was lost in the meantime, and its leases with it."""
    leased.handle(ev.ReplicaLost("r0"))

    assert leased.handle(ev.LeaseNacked("1", ev.NackReason.CONNECTION)) == []
    assert leased.waiting() == ["x", "y", "z"]


def test_lost_replica_returns_all_its_inferences(leased: CoreDriver) -> None:
    """Inferences return once, in their order, running or not."""
    leased.pull(progress={"2": 4}, seats=2)

    assert leased.handle(ev.ReplicaLost("r0")) == []
    assert leased.waiting() == ["x", "y", "z"]
    assert leased.handle(ev.ReplicaLost("r0")) == []
    assert granted(leased.pull("r1")) == ["x", "y", "z"]


def test_silent_replica_is_lost_after_its_timeout(leased: CoreDriver) -> None:
    """Re-leasing within 5 s is the target, so silence counts as loss after 4 s."""
    leased.now += 2.0
    leased.pull(progress={"1": 1, "2": 1}, seats=2)
    leased.wait(3.9)

    assert list(leased.core.state.replicas) == ["r0"]

    leased.wait(0.1)

    assert (list(leased.core.state.replicas), leased.waiting()) == ([], ["x", "y", "z"])


def test_deadline_of_a_replica_that_is_gone_is_harmless(leased: CoreDriver) -> None:
    """The deadline of a removed replica is still in the heap."""
    leased.handle(ev.ReplicaLost("r0"))

    assert leased.wait(10.0) == []


def test_returning_replica_starts_without_leases(leased: CoreDriver) -> None:
    """Reports of old leases are late: the replica must abort them."""
    leased.wait(4.0)
    leased.handle(ev.ReplicaLost("r0"))
    actions = leased.pull(progress={"1": 5, "2": 5}, seats=1)

    assert (aborted(actions), granted(actions)) == (["1", "2"], ["x"])
    assert (leased.core.state.late_reports, leased.account().attained) == (2, 0)


def test_late_final_report_is_dropped_and_counted(leased: CoreDriver) -> None:
    """The first final report of an inference wins; the service of the second is not charged."""
    leased.pull(progress={"2": 1}, finished={"1": 10})
    leased.pull(progress={"2": 1})
    attained = leased.account().attained
    actions = leased.pull(progress={"2": 1}, finished={"1": 12})

    assert ([], 1, attained) == (
        actions,
        leased.core.state.late_reports,
        leased.account().attained,
    )
    assert leased.application().inferences == 1


def test_repeated_final_report_is_ignored_and_confirmed(
    leased: CoreDriver,
) -> None:
    """A replica repeats it until it is confirmed; stored confirmations must not accumulate."""
    leased.pull(progress={"2": 1}, finished={"1": 10})
    for _ in range(2):
        leased.pull(progress={"2": 1}, finished={"1": 10})

    assert (0, 1) == (leased.core.state.late_reports, leased.application().inferences)

    kept = list(leased.application().ended_leases)
    still = list(leased.application().ended_leases)
    leased.pull(progress={"2": 1})
    assert (["1"], ["1"], {}) == (kept, still, leased.application().ended_leases)


def test_final_report_repeated_in_one_pull_counts_once(leased: CoreDriver) -> None:
    """A replica may have kept it from a pull that was not answered."""
    finished = [ev.LeaseFinished("1", 0, n, Outcome.FINISHED) for n in (10, 10)]
    leased.pull(progress={"2": 1}, finished=finished)

    assert (leased.application().inferences, leased.application().output_tokens) == (1, 10)


def test_engine_that_died_under_a_lease_returns_the_inference(leased: CoreDriver) -> None:
    """Outcome None is no end: the inference waits again, at its place."""
    leased.pull(progress={"1": 3, "2": 3}, seats=2)
    leased.handle(ev.PullAnswered("r0"))
    finished = ev.LeaseFinished("1", 10, 4, None)
    actions = leased.pull(progress={"2": 4}, finished=[finished], draining=True)

    assert (actions, leased.waiting()) == ([], ["x", "z"])
    assert leased.application().inferences == 0


def test_lease_is_requeued_only_when_its_replica_omits_it(leased: CoreDriver) -> None:
    """The answer that carries it may be on its way; one that ran and is gone waits again."""
    leased.pull(seats=2)

    assert (["z"], {"1", "2"}) == (leased.waiting(), set(leased.core.state.leases))

    leased.pull(progress={"1": 3, "2": 3}, seats=2)
    leased.pull(progress={"2": 4}, draining=True)
    assert leased.waiting() == ["x", "z"]


def test_pull_with_only_ends_leaves_other_leases_unchanged(leased: CoreDriver) -> None:
    """Between two full reports a replica sends only ends: other leases are unchanged."""
    leased.pull(progress={"1": 3, "2": 3}, seats=2)
    actions = leased.pull(progress=None, finished={"1": 10}, seats=2)

    assert (["z"], LeaseState.RUNNING) == (granted(actions), leased.core.state.leases["2"].state)
    assert {"2", "3"} == leased.core.state.leases.keys()

    leased.pull(progress={}, seats=2, draining=True)
    assert (["y"], ["3"]) == (leased.waiting(), list(leased.core.state.leases))


def test_pull_with_only_ends_does_not_confirm_that_a_lease_runs(leased: CoreDriver) -> None:
    """A replica reports progress before a lease expires, unless its payload has not arrived."""
    for _ in range(4):
        leased.now += 1.3
        actions = leased.pull(progress=None, seats=2)

    assert ["1", "2"] == aborted(actions)


def test_kv_that_leases_took_since_their_progress_is_not_leased() -> None:
    """The forecast starts at their last progress; freed memory counts at once."""
    driver = CoreDriver()
    driver.open()
    driver.submit("x", prompt=10, output=50)
    driver.pull(kv=100)
    driver.pull(progress={"1": 0}, kv=100, free=70)  # 10 of x, 20 of an aborted call
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


def test_failed_inference_ends_and_is_counted(leased: CoreDriver) -> None:
    """The engine answered with an error that a retry would repeat."""
    finished = ev.LeaseFinished("1", 10, 0, Outcome.FAILED)
    leased.pull(progress={"2": 1}, finished=[finished], seats=1)

    assert (leased.application().failed, leased.application().inferences) == (1, 1)


def test_lost_ingress_ends_its_inferences(leased: CoreDriver) -> None:
    """No ingress is left to send their payloads or read their tokens."""
    leased.open("b", 10, ingress_id="i1")
    leased.submit("other", "b", ingress_id="i1")
    actions = []
    for _ in range(10):  # 30 s in which r0 and i1 report
        leased.now += 3.0
        leased.handle(ev.IngressHeartbeat("i1"))
        actions += leased.pull(progress={"1": 1, "2": 1}, seats=2)

    assert aborted(actions) == ["1", "2"]
    assert list(leased.core.state.inferences) == ["other"]
    assert {"i1"} == leased.core.state.ingresses.keys()
    leased.last_word("1", "2", output=1)
    assert leased.application().inferences == 3


def test_ingress_with_heartbeats_keeps_its_inferences(leased: CoreDriver) -> None:
    """The timeout of an ingress counts from its last message."""
    leased.now += 20.0
    leased.handle(ev.IngressHeartbeat("i0"))
    leased.wait(29.0)

    assert len(leased.core.state.inferences) == 3

    leased.wait(1.0)

    assert len(leased.core.state.inferences) == 0


def test_lost_ingress_ends_a_closed_application() -> None:
    """The application ends with its last inference, as it would by any other end."""
    driver = CoreDriver(SchedulerCore(timeouts=Timeouts(ingress_s=10.0)))
    driver.open()
    driver.submit("x")
    driver.handle(ev.ApplicationClosed("a"))

    assert ended(driver.wait(10.0)) == [("a", "finished")]


def test_next_deadline_is_the_earliest_deadline(leased: CoreDriver) -> None:
    """The driver sets one timer for it."""
    assert leased.core.next_deadline() == 104.0

    leased.handle(ev.ReplicaLost("r0"))
    leased.wait(4.0)

    assert leased.core.next_deadline() == 105.0


def test_empty_core_has_no_deadline(core: CoreDriver) -> None:
    assert None is core.core.next_deadline()
