"""A new leader adopts the leases of the old one, and no inference runs twice."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.states import InferenceState
from tests.core_driver import CoreDriver, aborted, ended, granted, refused


@pytest.fixture
def old_scheduler() -> CoreDriver:
    """Return a core with w, x, y of application a on r0 and z waiting, at epoch 1."""
    driver = CoreDriver(SchedulerCore(lease_prefix="1-"))
    driver.open("a", 1000)
    for name in ("w", "x", "y", "z"):
        driver.submit(name)
    driver.pull(seats=3)
    driver.pull(progress={"1-1": 2, "1-2": 4}, seats=3)
    return driver


@pytest.fixture
def new_scheduler(old_scheduler: CoreDriver) -> CoreDriver:
    """Return the next leader at epoch 2, which expects a report of r0."""
    return _take_over(old_scheduler)


def _take_over(old: CoreDriver) -> CoreDriver:
    driver = CoreDriver(old.core, old.now + 1.0)
    driver.hand_over(SchedulerCore(lease_prefix="2-"), ["r0"])
    return driver


def _resubmit_inference(
    driver: CoreDriver, request_id: str, lease_id: str | None = None
) -> list[str]:
    return granted(driver.submit(request_id, resubmitted=True, age_s=1.0, lease_id=lease_id))


def test_recovery_grants_nothing_before_the_known_replicas_have_reported(
    new_scheduler: CoreDriver,
) -> None:
    """A replica may be full of leases that another scheduler granted."""
    _resubmit_inference(new_scheduler, "z")

    assert granted(new_scheduler.pull("r9")) == []
    assert granted(new_scheduler.pull("r0", {"1-1": 3})) == ["z"]


def test_recovery_waits_for_a_full_report_of_running_leases(new_scheduler: CoreDriver) -> None:
    """Only a full report shows whether the replica is full."""
    _resubmit_inference(new_scheduler, "z")

    assert granted(new_scheduler.pull("r0", None)) == []
    assert granted(new_scheduler.pull("r0", {"1-1": 3})) == ["z"]


def test_recovery_delays_grants_for_at_most_three_seconds(new_scheduler: CoreDriver) -> None:
    """A replica that died with the scheduler never reports."""
    _resubmit_inference(new_scheduler, "z")
    new_scheduler.pull("r9")

    assert granted(new_scheduler.wait(2.9)) == []
    assert new_scheduler.core.next_deadline() == 103.0 + 1.0
    assert granted(new_scheduler.wait(0.1)) == ["z"]
    assert not new_scheduler.core.recovery.holding


def test_loss_of_the_last_unreported_replica_ends_the_recovery(new_scheduler: CoreDriver) -> None:
    """A lost replica will not report any more."""
    _resubmit_inference(new_scheduler, "z")
    new_scheduler.pull("r9")

    assert granted(new_scheduler.handle(ev.ReplicaLost("r0"))) == ["z"]


def test_lease_reported_before_its_ingress_resubmits_it_continues(
    new_scheduler: CoreDriver,
) -> None:
    new_scheduler.pull("r0", {"1-2": 6})

    assert ["1-2"] == list(new_scheduler.core.recovery.reported)
    assert _resubmit_inference(new_scheduler, "x", "1-2") == []
    assert (
        new_scheduler.inference("x").state,
        new_scheduler.lease_of("x"),
        new_scheduler.core.recovery.reported,
    ) == (InferenceState.RUNNING, "1-2", {})


def test_lease_resubmitted_before_its_replica_reports_it_continues(
    new_scheduler: CoreDriver,
) -> None:
    """The inference is in no queue until the replica reports its lease."""
    _resubmit_inference(new_scheduler, "x", "1-2")

    assert (InferenceState.CLAIMED, []) == (
        new_scheduler.inference("x").state,
        new_scheduler.waiting(),
    )

    new_scheduler.pull("r0", {"1-2": 6})

    assert InferenceState.RUNNING is new_scheduler.inference("x").state


@pytest.mark.parametrize("claim_first", [True, False])
def test_service_charged_by_the_old_scheduler_is_not_charged_again(
    old_scheduler: CoreDriver, new_scheduler: CoreDriver, claim_first: bool
) -> None:
    """The account already has the service of a running inference."""
    before = old_scheduler.account().attained
    if claim_first:
        _resubmit_inference(new_scheduler, "x", "1-2")
        _resubmit_inference(new_scheduler, "w", "1-1")
    new_scheduler.pull("r0", {"1-2": 6, "1-1": 2})
    if not claim_first:
        _resubmit_inference(new_scheduler, "x", "1-2")
        _resubmit_inference(new_scheduler, "w", "1-1")
    for driver, leases in (
        (old_scheduler, {"1-2": 6, "1-1": 2}),
        (new_scheduler, {"1-2": 6, "1-1": 2}),
    ):
        driver.pull("r0", leases)

    assert (
        before,
        old_scheduler.account().attained,
        new_scheduler.account().attained,
    ) == (50 + 23, 81 + 23, 81 + 23)
    assert old_scheduler.core.tag("a") == new_scheduler.core.tag("a")


def test_inference_submitted_after_a_restart_is_charged_in_full(new_scheduler: CoreDriver) -> None:
    """Only inferences submitted before the restart may have been charged before."""
    before = new_scheduler.account().attained
    new_scheduler.pull("r0")
    new_scheduler.submit("fresh")
    new_scheduler.pull("r0", {"2-4": 1})

    assert before + 11 == new_scheduler.account().attained


@pytest.mark.parametrize("claim_first", [True, False])
def test_lease_finished_during_a_scheduler_outage_ends_its_inference(
    new_scheduler: CoreDriver, claim_first: bool
) -> None:
    """The inference must not run again."""
    if claim_first:
        _resubmit_inference(new_scheduler, "x", "1-2")
    new_scheduler.pull("r0", {}, {"1-2": 10})
    if not claim_first:
        assert _resubmit_inference(new_scheduler, "x", "1-2") == []

    assert (
        new_scheduler.core.state.inferences,
        new_scheduler.application().inferences,
        new_scheduler.application().output_tokens,
    ) == ({}, 1, 10)


def test_resubmitted_inference_without_a_replica_report_waits_again(
    new_scheduler: CoreDriver,
) -> None:
    _resubmit_inference(new_scheduler, "x", "1-2")
    _resubmit_inference(new_scheduler, "y", "1-3")

    assert granted(new_scheduler.pull("r0", {"1-3": 1})) == ["x"]
    assert (new_scheduler.lease_of("y"), new_scheduler.lease_of("x")) == ("1-3", "2-4")


@pytest.mark.parametrize("end", ["engine died", "replica lost", "never reported"])
def test_resubmitted_inference_of_an_ended_lease_waits_again(
    new_scheduler: CoreDriver, end: str
) -> None:
    if end == "engine died":
        new_scheduler.pull("r0", {}, [ev.LeaseFinished("1-2", 10, 4, None)], draining=True)
    elif end == "replica lost":
        new_scheduler.pull("r0", {"1-2": 6})
        new_scheduler.handle(ev.ReplicaLost("r0"))
    else:
        new_scheduler.pull("r0", draining=True)
    _resubmit_inference(new_scheduler, "x", "1-2")

    assert new_scheduler.waiting() == ["x"]


def test_resubmitted_inference_that_is_cancelled_is_forgotten(new_scheduler: CoreDriver) -> None:
    """The replica's later report finds no claim, and its lease is aborted."""
    _resubmit_inference(new_scheduler, "w", "1-1")
    _resubmit_inference(new_scheduler, "x", "1-2")
    new_scheduler.handle(ev.InferenceCancelled("x"))
    new_scheduler.pull("r0", {"1-1": 2, "1-2": 6})

    assert (["w"], ["1-2"]) == (
        list(new_scheduler.core.state.inferences),
        list(new_scheduler.core.recovery.reported),
    )


def test_lease_without_a_resubmission_is_aborted_after_the_ingress_timeout(
    new_scheduler: CoreDriver,
) -> None:
    """The ingress died with the scheduler, so no caller reads the tokens."""
    stopped: list[str] = []
    for _ in range(10):
        new_scheduler.pull("r0", {"1-2": 6}, {"1-3": 9} if not stopped else {})
        new_scheduler.now += 3.0
        stopped += aborted(new_scheduler.handle(ev.DeadlinePassed()))

    assert stopped == ["1-2"]
    assert {} == new_scheduler.core.recovery.reported


def test_lease_adopted_after_a_restart_has_a_footprint(new_scheduler: CoreDriver) -> None:
    new_scheduler.pull("r0", {"1-2": 6})
    _resubmit_inference(new_scheduler, "x", "1-2")
    replica = new_scheduler.core.state.replicas["r0"]

    assert (
        replica.leases["1-2"].context_tokens,
        replica.leases["1-2"].iterations,
    ) == (16, 4)

    for _ in range(15):
        new_scheduler.now += 3.0
        new_scheduler.handle(ev.IngressHeartbeat("i0"))

        assert aborted(new_scheduler.pull("r0", {"1-2": 6})) == []


def test_queue_order_survives_a_scheduler_restart(
    old_scheduler: CoreDriver, new_scheduler: CoreDriver
) -> None:
    new_scheduler.open("a", 1)  # the ingress opens application a again
    new_scheduler.open("later", 2000)
    new_scheduler.submit("l", "later")
    new_scheduler.submit("y", resubmitted=True, age_s=0.9)
    new_scheduler.submit("x", resubmitted=True, age_s=1.0)

    assert old_scheduler.core.tag("a") == new_scheduler.core.tag("a")
    assert granted(new_scheduler.pull("r0")) == ["x", "y", "l"]


def test_restored_application_keeps_its_tag_until_its_ingress_times_out(
    new_scheduler: CoreDriver,
) -> None:
    new_scheduler.pull("r0")
    new_scheduler.wait(29.0)

    assert not new_scheduler.account().withdrawn

    new_scheduler.wait(1.0)
    new_scheduler.pull("r0")

    assert new_scheduler.account().withdrawn
    assert ended(new_scheduler.wait(569.0)) == []
    assert ended(new_scheduler.wait(1.0)) == [("a", "expired")]


def test_restored_closed_application_ends_without_inferences(old_scheduler: CoreDriver) -> None:
    """The last inferences of the closed application ended with the old scheduler."""
    old_scheduler.handle(ev.ApplicationClosed("a"))
    old_scheduler.hand_over(SchedulerCore(lease_prefix="2-"))

    assert ended(old_scheduler.wait(600.0)) == [("a", "finished")]


def test_cancelled_application_stops_its_resubmitted_inferences(new_scheduler: CoreDriver) -> None:
    """A claimed inference is neither in the queue nor running, and must not be forgotten."""
    _resubmit_inference(new_scheduler, "x", "1-2")
    actions = new_scheduler.handle(ev.ApplicationCancelled("a"))

    assert refused(actions) == [("x", "application_cancelled")]
    assert ended(actions) == [("a", "cancelled")]
    assert granted(new_scheduler.pull("r0", {"1-2": 6})) == []


def test_unknown_lease_of_the_present_epoch_is_not_adopted(new_scheduler: CoreDriver) -> None:
    """After the recovery, a lease that the scheduler does not know must be aborted."""
    new_scheduler.pull("r0")
    new_scheduler.submit("fresh")
    new_scheduler.handle(ev.InferenceCancelled("fresh"))
    new_scheduler.last_word("2-4", output=3)
    late = [ev.LeaseFinished("2-4", 10, 3, Outcome.FINISHED)]

    assert aborted(new_scheduler.pull("r0", {"2-4": 3})) == ["2-4"]
    assert (new_scheduler.pull("r0", {}, late), new_scheduler.core.state.late_reports) == ([], 2)


@pytest.mark.parametrize(
    ("claim_first", "booked", "restarts"),
    [(True, True, 1), (True, False, 1), (False, False, 1), (True, False, 2)],
    ids=["booked", "claimed first", "reported first", "after the next"],
)
def test_ended_inference_counted_before_a_restart_is_not_counted_again(
    old_scheduler: CoreDriver, claim_first: bool, booked: bool, restarts: int
) -> None:
    """An ingress resubmits an inference whose answer was lost when the scheduler was replaced.

    Either the replica has the confirmation, or the scheduler died before its answer to the pull,
    and the end is reported as new. The next scheduler may die, too, before the replica has reported
    to it.
    """
    old_scheduler.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})
    new = old_scheduler
    for _ in range(restarts):
        new = _take_over(new)
    before = (new.account().attained, new.application().inferences)
    word = ev.LeaseFinished("1-2", 0, 10, Outcome.FINISHED, booked=booked)
    if claim_first:
        _resubmit_inference(new, "x", "1-2")
    new.pull("r0", {"1-1": 2, "1-3": 0}, [word])
    if not claim_first:
        _resubmit_inference(new, "x", "1-2")

    assert before == (new.account().attained, new.application().inferences)
    assert "x" not in new.core.state.inferences


def test_ended_inference_unsaved_at_the_restart_is_counted(old_scheduler: CoreDriver) -> None:
    """The scheduler died before it saved the replica's report."""
    new = _take_over(old_scheduler)
    before = new.application().inferences
    old_scheduler.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})
    _resubmit_inference(new, "w", "1-1")
    _resubmit_inference(new, "x", "1-2")
    new.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})

    assert old_scheduler.account().attained == new.account().attained
    assert before + 1 == new.application().inferences
