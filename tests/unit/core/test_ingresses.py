"""Until a dead ingress times out, its inferences take no capacity from those of others."""

from collections.abc import Sequence

import pytest

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action
from justitia_ray.core.lag.meter import LagMeter
from tests.core_driver import CoreDriver, aborted, ended, granted, refused


def _advance_and_report(
    driver: CoreDriver,
    seconds: float,
    *,
    seats: int = 2,
    heard: str | None = "i1",
    running: Sequence[str] = (),
) -> list[Action]:
    """Advance the time while a replica reports its leases and pulls, and an ingress is live."""
    driver.now += seconds
    actions = driver.handle(ev.IngressHeartbeat(heard) if heard else ev.DeadlinePassed())
    held = driver.core.state.replicas["r0"].leases
    progress = [ev.LeaseProgress(name, 0, int(name in running), name in running) for name in held]
    return actions + driver.pull(progress=progress, seats=seats)


@pytest.fixture
def silent_ingress(core: CoreDriver) -> CoreDriver:
    """Return a core whose ingress does not respond to its grants of x and y; z and w wait.

    All are of application a, which comes first; b is of i1. The leases have just expired.
    """
    _let_ingress_fall_silent(core)
    return core


@pytest.fixture
def silent_ingress_with_lags() -> CoreDriver:
    """Return the core of the fixture `silent_ingress`, with lag measurement switched on."""
    driver = CoreDriver(SchedulerCore(meter=LagMeter))
    _let_ingress_fall_silent(driver)
    return driver


def _let_ingress_fall_silent(driver: CoreDriver) -> None:
    driver.open("a", 100)
    driver.open("b", 500, ingress_id="i1")
    for name in ("x", "y", "z", "w"):
        driver.submit(name)
    driver.now += 0.1
    driver.pull(seats=2)
    driver.now += 0.1
    for name in ("p", "q", "r"):
        driver.submit(name, "b", ingress_id="i1")
    _advance_and_report(driver, 3.0)
    _advance_and_report(driver, 2.0)


def _run_x_and_suspend_y(driver: CoreDriver) -> None:
    driver.open("a")
    driver.submit("x")
    driver.submit("y")
    driver.now += 0.1
    driver.pull(seats=2)
    for _ in range(3):
        _advance_and_report(driver, 2.0, heard=None, running=["1"])


def _suspended_inferences(driver: CoreDriver, application_id: str = "a") -> list[str]:
    return [one.request_id for one in driver.application(application_id).suspended]


def test_expired_lease_of_a_silent_ingress_suspends_the_inferences_of_that_ingress(
    silent_ingress: CoreDriver,
) -> None:
    assert ["w", "x", "y", "z"] == sorted(_suspended_inferences(silent_ingress))
    assert 4 == silent_ingress.core.ingresses.suspended
    assert [] == silent_ingress.waiting("a")
    assert {"p", "q"} == {lease.request_id for lease in silent_ingress.core.state.leases.values()}


def test_other_ingresses_get_every_seat_while_one_ingress_is_silent(
    silent_ingress: CoreDriver,
) -> None:
    """Callers of other ingresses must not notice the failure."""
    leased = []
    for number in range(40):
        running = list(silent_ingress.core.state.leases)
        silent_ingress.now += 0.5
        silent_ingress.handle(ev.IngressHeartbeat("i1"))
        leased += granted(silent_ingress.submit(f"n{number}", "b", ingress_id="i1"))
        leased += granted(silent_ingress.pull(finished=dict.fromkeys(running, 3), seats=2))

    assert ["r", *(f"n{number}" for number in range(40))] == leased
    assert ["w", "x", "y", "z"] == sorted(_suspended_inferences(silent_ingress))


def test_inferences_of_an_ingress_that_returns_in_time_keep_their_places(
    silent_ingress: CoreDriver,
) -> None:
    """The callers of a paused ingress have waited longest, and lose neither place nor answer."""
    tag = silent_ingress.core.tag("a")
    silent_ingress.handle(ev.PullAnswered("r0"))
    for _ in range(3):
        silent_ingress.now += 1.0
        silent_ingress.pull(progress={"3": 5, "4": 5}, seats=2)
        silent_ingress.handle(ev.PullAnswered("r0"))
    silent_ingress.handle(ev.IngressHeartbeat("i0"))

    assert 0 == silent_ingress.core.ingresses.suspended
    assert (["x", "y", "z", "w"], [], tag) == (
        silent_ingress.waiting("a"),
        _suspended_inferences(silent_ingress),
        silent_ingress.core.tag("a"),
    )
    assert ["x", "y"] == granted(silent_ingress.pull(finished={"3": 10, "4": 10}, seats=2))


def test_inferences_of_a_returning_ingress_start_where_there_is_room(
    silent_ingress: CoreDriver,
) -> None:
    """A heartbeat frees no memory, but some may be free for the resumed inferences."""
    assert ["r"] == granted(silent_ingress.pull(finished={"3": 10, "4": 10}, seats=2))
    assert ["x"] == granted(silent_ingress.handle(ev.IngressHeartbeat("i0")))


def test_submission_of_a_silent_ingress_resumes_its_suspended_inferences(
    silent_ingress: CoreDriver,
) -> None:
    silent_ingress.handle(ev.PullAnswered("r0"))
    silent_ingress.submit("v")

    assert ["x", "y", "z", "w", "v"] == silent_ingress.waiting("a")


def test_ingress_that_refuses_a_lease_is_not_silent(core: CoreDriver) -> None:
    """Only the ingress has the id of the lease, so its refusal shows that it lives."""
    _run_x_and_suspend_y(core)
    core.handle(ev.PullAnswered("r0"))
    core.handle(ev.LeaseNacked("1", ev.NackReason.CONNECTION))

    assert (["x", "y"], []) == (core.waiting(), _suspended_inferences(core))


def test_ingress_with_a_message_since_the_grant_is_not_silent(core: CoreDriver) -> None:
    core.open()
    core.submit("x")
    core.now += 0.1
    core.pull(seats=1)
    core.handle(ev.IngressHeartbeat("i0"))
    core.handle(ev.PullAnswered("r0"))
    _advance_and_report(core, 3.0, seats=1, heard=None)
    actions = _advance_and_report(core, 2.0, seats=1, heard=None)

    assert (["1"], ["x"], []) == (aborted(actions), granted(actions), _suspended_inferences(core))


def test_ingress_granted_a_lease_in_the_answer_to_a_submission_is_not_silent(
    core: CoreDriver,
) -> None:
    """The ingress has the grant, and may then be silent during its long-poll of 20 s."""
    core.open()
    core.pull(seats=1)
    core.submit("x")
    core.handle(ev.PullAnswered("r0"))
    _advance_and_report(core, 3.0, seats=1, heard=None)

    assert ["x"] == granted(_advance_and_report(core, 2.0, seats=1, heard=None))


def test_lease_of_an_earlier_scheduler_does_not_make_its_ingress_silent() -> None:
    driver = CoreDriver(SchedulerCore(lease_prefix="2-"))
    driver.core.recover(["r0"], driver.now)
    driver.open()
    driver.submit("x", resubmitted=True, lease_id="1-7")
    driver.now += 1.0
    driver.pull(progress=[ev.LeaseProgress("1-7", 0, 0, running=False)], seats=1)
    driver.now += 3.0
    driver.pull(progress=[ev.LeaseProgress("1-7", 0, 0, running=False)], seats=1)
    driver.now += 2.0

    assert ["x"] == granted(driver.pull(seats=1))


def test_running_inference_of_a_silent_ingress_continues(
    core: CoreDriver,
) -> None:
    """The caller may still be there, but a second attempt would only hold a seat."""
    _run_x_and_suspend_y(core)

    assert (["y"], {"1"}) == (_suspended_inferences(core), set(core.core.state.leases))

    core.handle(ev.ReplicaLost("r0"))

    assert (["y", "x"], []) == (_suspended_inferences(core), granted(core.pull("r1")))


def test_loss_of_an_ingress_ends_its_suspended_inferences(
    silent_ingress: CoreDriver,
) -> None:
    for _ in range(9):
        _advance_and_report(silent_ingress, 2.9)

    assert set("pqr") == set(silent_ingress.core.state.inferences)
    assert "i0" not in silent_ingress.core.ingresses.suspect
    assert (4, True) == (
        silent_ingress.application("a").inferences,
        silent_ingress.application("a").is_idle,
    )
    assert silent_ingress.account("a").withdrawn

    silent_ingress.handle(ev.PullAnswered("r0"))
    silent_ingress.submit("v")
    assert (["v"], []) == (silent_ingress.waiting("a"), _suspended_inferences(silent_ingress))


def test_closed_application_waits_for_its_suspended_inferences(
    silent_ingress: CoreDriver,
) -> None:
    """The callers of suspended inferences may still be there."""
    closed = silent_ingress.handle(ev.ApplicationClosed("a"))
    for name in ("x", "y", "z"):
        closed += silent_ingress.handle(ev.InferenceCancelled(name))

    assert [] == ended(closed)
    assert 1 == silent_ingress.core.ingresses.suspended
    assert [("a", "finished")] == ended(silent_ingress.handle(ev.InferenceCancelled("w")))
    assert 0 == silent_ingress.core.ingresses.suspended


def test_cancelled_application_ends_with_its_suspended_inferences(
    silent_ingress: CoreDriver,
) -> None:
    actions = silent_ingress.handle(ev.ApplicationCancelled("a"))

    assert [(name, "application_cancelled") for name in "xyzw"] == refused(actions)
    assert [("a", "cancelled")] == ended(actions)


def test_application_with_a_suspended_inference_does_not_expire_as_idle() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=Timeouts(application_s=6.0, ingress_s=60.0)))
    driver.open()
    driver.submit("x")
    driver.now += 0.1
    driver.pull(seats=1)
    _advance_and_report(driver, 3.0, heard=None)
    _advance_and_report(driver, 2.0, heard=None)

    assert ["x"] == _suspended_inferences(driver)
    assert [] == ended(driver.wait(20.0))
    assert (False, False) == (driver.application().is_idle, driver.account().withdrawn)


def test_policy_change_keeps_inferences_suspended(silent_ingress: CoreDriver) -> None:
    silent_ingress.handle(ev.PullAnswered("r0"))
    silent_ingress.handle(ev.PolicyChanged("vtc"))

    assert (4, []) == (len(_suspended_inferences(silent_ingress)), silent_ingress.waiting("a"))

    silent_ingress.handle(ev.IngressHeartbeat("i0"))

    assert ["x", "y", "z", "w"] == silent_ingress.waiting("a")


def test_change_of_the_fairness_unit_keeps_the_charge_of_suspended_inferences(
    silent_ingress: CoreDriver,
) -> None:
    silent_ingress.handle(ev.PullAnswered("r0"))
    silent_ingress.handle(ev.PolicyChanged("justitia", (("fairness", "tenant"),)))

    assert not silent_ingress.account("a").withdrawn


def test_suspended_inferences_count_against_the_queue_limit(silent_ingress: CoreDriver) -> None:
    """Suspended inferences use memory, and a silent ingress must not send more."""
    known = silent_ingress.core.state.known_inferences

    assert (7, 4) == (known.total, silent_ingress.application("a").waiting_count)


def test_suspension_by_one_ingress_stops_no_inference_of_another_ingress(core: CoreDriver) -> None:
    core.open("a")
    core.submit("x")
    core.submit("y", ingress_id="i1")
    core.submit("z")
    core.now += 0.1
    core.pull(seats=1)
    _advance_and_report(core, 3.0, seats=1)
    actions = _advance_and_report(core, 2.0, seats=1)

    assert (["y"], ["z", "x"]) == (granted(actions), _suspended_inferences(core))


def test_application_that_was_suspended_has_no_lag_bound(
    silent_ingress_with_lags: CoreDriver,
) -> None:
    """The silent ingress delayed the application, not the order of service."""
    before = silent_ingress_with_lags.core.lag("b")
    silent_ingress_with_lags.handle(ev.IngressHeartbeat("i0"))
    late, other = silent_ingress_with_lags.core.lag("a"), silent_ingress_with_lags.core.lag("b")

    assert late is not None
    assert late.bound_kv_token_time is None
    assert before is not None
    assert before.bound_kv_token_time is not None
    assert other is not None
    assert other.bound_kv_token_time is not None


def test_lag_bound_includes_service_that_gps_gives_ahead_of_real_service(
    silent_ingress_with_lags: CoreDriver,
) -> None:
    lag = silent_ingress_with_lags.core.lags
    assert isinstance(lag, LagMeter)
    in_flight = lag._bound.in_flight
    silent_ingress_with_lags.handle(ev.PullAnswered("r0"))
    silent_ingress_with_lags.pull(progress={"3": 5, "4": 5}, seats=2)
    silent_ingress_with_lags.handle(ev.PullAnswered("r0"))
    before = lag._bound.exceptions
    owed = silent_ingress_with_lags.core.ledger.fair_share.clock.owed("a")
    silent_ingress_with_lags.handle(ev.IngressHeartbeat("i0"))

    assert 2 * (10 * 10 + 55) == in_flight
    assert 0 < 100 - owed == lag._bound.exceptions - before
