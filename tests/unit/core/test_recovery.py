"""A new leader adopts the leases of the old one, and no inference runs twice."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.states import InferenceState
from tests.core_driver import CoreDriver, aborted, ended, granted, refused


@pytest.fixture
def old() -> CoreDriver:
    """Return a scheduler with w, x, y of application a on r0 and z waiting, at epoch 1."""
    driver = CoreDriver(SchedulerCore(lease_prefix="1-"))
    driver.open("a", 1000)
    for name in ("w", "x", "y", "z"):
        driver.submit(name)
    driver.pull(seats=3)
    driver.pull(progress={"1-1": 2, "1-2": 4}, seats=3)
    return driver


@pytest.fixture
def new(old: CoreDriver) -> CoreDriver:
    """Return the next leader, which expects a report of r0, at epoch 2."""
    return _successor(old)


def _successor(old: CoreDriver) -> CoreDriver:
    driver = CoreDriver(old.core, old.now + 1.0)
    driver.hand_over(SchedulerCore(lease_prefix="2-"), ["r0"])
    return driver


def _resubmit(driver: CoreDriver, request_id: str, lease_id: str | None = None) -> list[str]:
    return granted(driver.submit(request_id, resubmitted=True, age_s=1.0, lease_id=lease_id))


def test_nothing_is_granted_before_the_known_replicas_have_reported(new: CoreDriver) -> None:
    """A replica may be full of leases that another scheduler granted."""
    _resubmit(new, "z")

    assert granted(new.pull("r9")) == []
    assert granted(new.pull("r0", {"1-1": 3})) == ["z"]


def test_pull_with_only_ends_is_no_report_of_running_leases(new: CoreDriver) -> None:
    """The replica may be full, which only its next report shows."""
    _resubmit(new, "z")

    assert granted(new.pull("r0", None)) == []
    assert granted(new.pull("r0", {"1-1": 3})) == ["z"]


def test_grants_are_held_back_for_three_seconds_at_most(new: CoreDriver) -> None:
    """A replica that died with the scheduler never reports."""
    _resubmit(new, "z")
    new.pull("r9")

    assert granted(new.wait(2.9)) == []
    assert new.core.next_deadline() == 103.0 + 1.0
    assert granted(new.wait(0.1)) == ["z"]
    assert not new.core.recovery.holding


def test_loss_of_the_last_silent_replica_ends_the_hold(new: CoreDriver) -> None:
    """A lost replica will not report any more."""
    _resubmit(new, "z")
    new.pull("r9")

    assert granted(new.handle(ev.ReplicaLost("r0"))) == ["z"]


def test_report_before_claim_joins_the_lease(new: CoreDriver) -> None:
    """The replica pulled before the ingress resubmitted: the lease continues."""
    new.pull("r0", {"1-2": 6})

    assert ["1-2"] == list(new.core.recovery.reported)
    assert _resubmit(new, "x", "1-2") == []
    assert (
        new.inference("x").state,
        new.lease_of("x"),
        new.core.recovery.reported,
    ) == (InferenceState.RUNNING, "1-2", {})


def test_claim_before_report_joins_the_lease(new: CoreDriver) -> None:
    """The ingress was first: its inference is in no queue until the replica reports."""
    _resubmit(new, "x", "1-2")

    assert (InferenceState.CLAIMED, []) == (new.inference("x").state, new.waiting())

    new.pull("r0", {"1-2": 6})

    assert InferenceState.RUNNING is new.inference("x").state


@pytest.mark.parametrize("claim_first", [True, False])
def test_service_is_not_booked_twice(old: CoreDriver, new: CoreDriver, claim_first: bool) -> None:
    """The old scheduler's bookings of a running inference are already in the account."""
    before = old.account().attained
    if claim_first:
        _resubmit(new, "x", "1-2")
        _resubmit(new, "w", "1-1")
    new.pull("r0", {"1-2": 6, "1-1": 2})
    if not claim_first:
        _resubmit(new, "x", "1-2")
        _resubmit(new, "w", "1-1")
    for driver, leases in ((old, {"1-2": 6, "1-1": 2}), (new, {"1-2": 6, "1-1": 2})):
        driver.pull("r0", leases)

    assert (
        before,
        old.account().attained,
        new.account().attained,
    ) == (50 + 23, 81 + 23, 81 + 23)
    assert old.core.tag("a") == new.core.tag("a")


def test_service_of_a_new_inference_is_booked_in_full(new: CoreDriver) -> None:
    """Only inferences submitted before may have been booked before."""
    before = new.account().attained
    new.pull("r0")
    new.submit("fresh")
    new.pull("r0", {"2-4": 1})

    assert before + 11 == new.account().attained


@pytest.mark.parametrize("claim_first", [True, False])
def test_lease_that_finished_meanwhile_ends_its_inference(
    new: CoreDriver, claim_first: bool
) -> None:
    """The end is stored until an ingress claims it; the inference is not run again."""
    if claim_first:
        _resubmit(new, "x", "1-2")
    new.pull("r0", {}, {"1-2": 10})
    if not claim_first:
        assert _resubmit(new, "x", "1-2") == []

    assert (
        new.core.state.inferences,
        new.application().inferences,
        new.application().output_tokens,
    ) == ({}, 1, 10)


def test_claim_that_no_replica_confirms_waits_again(new: CoreDriver) -> None:
    """A claim fails after three seconds, or when every replica has reported without it."""
    _resubmit(new, "x", "1-2")
    _resubmit(new, "y", "1-3")

    assert granted(new.pull("r0", {"1-3": 1})) == ["x"]
    assert (new.lease_of("y"), new.lease_of("x")) == ("1-3", "2-4")


@pytest.mark.parametrize("end", ["engine died", "replica lost", "never reported"])
def test_claim_of_a_lease_that_is_gone_waits_again(new: CoreDriver, end: str) -> None:
    """The lease ended before the ingress claimed it, or no replica reported it in time."""
    if end == "engine died":
        new.pull("r0", {}, [ev.LeaseFinished("1-2", 10, 4, None)], draining=True)
    elif end == "replica lost":
        new.pull("r0", {"1-2": 6})
        new.handle(ev.ReplicaLost("r0"))
    else:
        new.pull("r0", draining=True)
    _resubmit(new, "x", "1-2")

    assert new.waiting() == ["x"]


def test_cancelled_claim_is_forgotten(new: CoreDriver) -> None:
    """The replica's report then has no claimant, and the lease is aborted later."""
    _resubmit(new, "w", "1-1")
    _resubmit(new, "x", "1-2")
    new.handle(ev.InferenceCancelled("x"))
    new.pull("r0", {"1-1": 2, "1-2": 6})

    assert (["w"], ["1-2"]) == (list(new.core.state.inferences), list(new.core.recovery.reported))


def test_unclaimed_lease_is_aborted_after_the_ingress_timeout(new: CoreDriver) -> None:
    """The ingress died with the scheduler, so that the tokens have no reader."""
    stopped: list[str] = []
    for _ in range(10):
        new.pull("r0", {"1-2": 6}, {"1-3": 9} if not stopped else {})
        new.now += 3.0
        stopped += aborted(new.handle(ev.DeadlinePassed()))

    assert stopped == ["1-2"]
    assert {} == new.core.recovery.reported


def test_adopted_lease_holds_a_footprint_and_is_not_aborted(new: CoreDriver) -> None:
    """The deadline of the claim has no effect on an adopted lease."""
    new.pull("r0", {"1-2": 6})
    _resubmit(new, "x", "1-2")
    replica = new.core.state.replicas["r0"]

    assert (
        replica.leases["1-2"].context_tokens,
        replica.leases["1-2"].iterations,
    ) == (16, 4)

    for _ in range(15):
        new.now += 3.0
        new.handle(ev.IngressHeartbeat("i0"))

        assert aborted(new.pull("r0", {"1-2": 6})) == []


def test_order_is_kept_across_the_restart(old: CoreDriver, new: CoreDriver) -> None:
    """The tag is kept, and inferences are in the order of their first submission."""
    new.open("a", 1)  # the ingress opens it again; its tag is stored
    new.open("later", 2000)
    new.submit("l", "later")
    new.submit("y", resubmitted=True, age_s=0.9)
    new.submit("x", resubmitted=True, age_s=1.0)

    assert old.core.tag("a") == new.core.tag("a")
    assert granted(new.pull("r0")) == ["x", "y", "l"]


def test_restored_application_keeps_its_tag_until_its_ingress_is_given_up(
    new: CoreDriver,
) -> None:
    """Inferences may be on their way for 30 s; then the application is idle like any other."""
    new.pull("r0")
    new.wait(29.0)

    assert not new.account().withdrawn

    new.wait(1.0)
    new.pull("r0")

    assert new.account().withdrawn
    assert ended(new.wait(569.0)) == []
    assert ended(new.wait(1.0)) == [("a", "expired")]


def test_restored_closed_application_finishes_when_nothing_comes_back(old: CoreDriver) -> None:
    """The last inferences of the closed application ended with the old scheduler."""
    old.handle(ev.ApplicationClosed("a"))
    old.hand_over(SchedulerCore(lease_prefix="2-"))

    assert ended(old.wait(600.0)) == [("a", "finished")]


def test_cancelled_application_stops_its_claims(new: CoreDriver) -> None:
    """A claimed inference is neither waiting nor in flight, and must not be forgotten."""
    _resubmit(new, "x", "1-2")
    actions = new.handle(ev.ApplicationCancelled("a"))

    assert refused(actions) == [("x", "application_cancelled")]
    assert ended(actions) == [("a", "cancelled")]
    assert granted(new.pull("r0", {"1-2": 6})) == []


def test_unknown_lease_of_this_epoch_is_not_adopted(new: CoreDriver) -> None:
    """After recovery an unknown lease of this epoch is late: the replica aborts it."""
    new.pull("r0")
    new.submit("fresh")
    new.handle(ev.InferenceCancelled("fresh"))
    new.last_word("2-4", output=3)
    late = [ev.LeaseFinished("2-4", 10, 3, Outcome.FINISHED)]

    assert aborted(new.pull("r0", {"2-4": 3})) == ["2-4"]
    assert (new.pull("r0", {}, late), new.core.state.late_reports) == ([], 2)


@pytest.mark.parametrize(
    ("claim_first", "booked", "restarts"),
    [(True, True, 1), (True, False, 1), (False, False, 1), (True, False, 2)],
    ids=["booked", "claimed first", "reported first", "after the next"],
)
def test_end_that_was_counted_is_not_counted_again(
    old: CoreDriver, claim_first: bool, booked: bool, restarts: int
) -> None:
    """An ingress resubmits an inference whose answer was lost when the scheduler was replaced.

    Either the replica has the confirmation, or the scheduler died before its answer to the pull,
    and the end is reported as new. The next scheduler may die, too, before the replica has reported
    to it.
    """
    old.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})
    new = old
    for _ in range(restarts):
        new = _successor(new)
    before = (new.account().attained, new.application().inferences)
    word = ev.LeaseFinished("1-2", 0, 10, Outcome.FINISHED, booked=booked)
    if claim_first:
        _resubmit(new, "x", "1-2")
    new.pull("r0", {"1-1": 2, "1-3": 0}, [word])
    if not claim_first:
        _resubmit(new, "x", "1-2")

    assert before == (new.account().attained, new.application().inferences)
    assert "x" not in new.core.state.inferences


def test_end_that_was_not_saved_is_counted(old: CoreDriver) -> None:
    """The scheduler died before it saved the replica's report."""
    new = _successor(old)
    before = new.application().inferences
    old.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})
    _resubmit(new, "w", "1-1")
    _resubmit(new, "x", "1-2")
    new.pull("r0", {"1-1": 2, "1-3": 0}, {"1-2": 10})

    assert old.account().attained == new.account().attained
    assert before + 1 == new.application().inferences
