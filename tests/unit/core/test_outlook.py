"""The outlook of an application: reason, position, expected times and guarantee."""

import pytest

from justitia_ray.core import SchedulerCore, queue_profile
from justitia_ray.core import events as ev
from justitia_ray.core.outlook import WHAT_WOULD_HELP, Held, Outlook, Reason
from justitia_ray.core.queue_profile import Demand, QueueProfile
from justitia_ray.core.served_rate import USUAL_ITERATION_S
from tests.core_driver import PATIENT, CoreDriver


@pytest.fixture
def full_driver() -> CoreDriver:
    """Return a core whose replica r0 runs the only inference of application `runs` and is full."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=25)
    return driver


def read_outlook(driver: CoreDriver, name: str = "a") -> Outlook:
    """Return the current outlook of an application."""
    return driver.core.outlooks.ask([name])[name]


def submit_waiting(driver: CoreDriver, name: str, cost: float = 155) -> None:
    """Submit one inference of an application, which then waits."""
    driver.open(name, cost)
    driver.submit(f"{name}1", name)


def test_every_waiting_reason_names_a_remedy() -> None:
    assert {*WHAT_WOULD_HELP} == {*Reason}
    assert all(WHAT_WOULD_HELP.values())


def test_running_application_has_the_reason_running(full_driver: CoreDriver) -> None:
    outlook = read_outlook(full_driver, "runs")

    assert (Reason.RUNNING, None, None) == (
        outlook.reason,
        outlook.position,
        outlook.expected_start_s,
    )
    assert outlook.expected_finish_s is not None


def test_first_application_waits_for_memory_and_the_second_for_its_turn(
    full_driver: CoreDriver,
) -> None:
    submit_waiting(full_driver, "a")
    submit_waiting(full_driver, "b", cost=10_000)
    first, second = read_outlook(full_driver, "a"), read_outlook(full_driver, "b")

    assert (Reason.HEADROOM, 0, 0) == (first.reason, first.position, first.ahead_kv_token_time)
    assert (Reason.TURN, 1, 155) == (second.reason, second.position, second.ahead_kv_token_time)
    assert first.expected_start_s is not None
    assert second.expected_start_s is not None
    assert first.expected_start_s.p50 < second.expected_start_s.p50


def test_first_application_starts_when_a_lease_is_expected_to_end(full_driver: CoreDriver) -> None:
    submit_waiting(full_driver, "a")
    start = read_outlook(full_driver).expected_start_s

    assert start is not None
    assert start.p50 == pytest.approx(10 * USUAL_ITERATION_S, rel=0.1)


def generate_tokens(driver: CoreDriver, *, kv: int, seats: int) -> None:
    """Let the running inference generate a token per 0.5 s, so that a rate is measured."""
    lease = driver.lease_of("x")
    for made in range(1, 6):
        driver.now += 0.5
        driver.pull(progress={lease: made}, kv=kv, seats=seats)


@pytest.mark.parametrize(
    ("kv", "seats", "expected_s"),
    [
        (20, 256, 155 / 26),
        # with one seat 10 tokens take 0.5 s each, however much memory is free
        (1_000_000, 1, 10 * 0.5),
    ],
)
def test_expected_wait_is_computed_from_the_scarcest_resource(
    kv: int, seats: int, expected_s: float
) -> None:
    """Small calls use little memory but a whole seat."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=kv, seats=seats)
    generate_tokens(driver, kv=kv, seats=seats)
    submit_waiting(driver, "a")
    submit_waiting(driver, "b", cost=10_000)
    outlooks = driver.core.outlooks
    profile = QueueProfile(driver.core.state, driver.core.ledger)
    ahead = profile.ahead(1, driver.core.ledger.rank("b"))

    assert Demand(155, 10, 0) == ahead
    assert outlooks._served_within_s(ahead) == pytest.approx(expected_s, rel=0.1)


def test_expected_start_falls_as_time_passes_between_events(
    full_driver: CoreDriver,
) -> None:
    """Half a second after the last event the expected wait is half a second shorter."""
    submit_waiting(full_driver, "a")
    now = full_driver.now
    at_once = full_driver.core.outlooks.ask(["a"], now=now)["a"].expected_start_s
    later = full_driver.core.outlooks.ask(["a"], now=now + 0.1)["a"].expected_start_s

    assert at_once is not None
    assert later is not None
    assert at_once.p50 - later.p50 == pytest.approx(0.1, rel=0.15)


def test_expected_wait_includes_later_stages_of_earlier_applications(
    full_driver: CoreDriver,
) -> None:
    """Later stages are not in the queue yet, but will precede later applications."""
    full_driver.open("small", 1_000)
    full_driver.submit("s1", "small")
    submit_waiting(full_driver, "a", cost=50_000)

    assert 1_000 == read_outlook(full_driver).ahead_kv_token_time


def test_only_waiting_inferences_of_a_closed_application_count_as_work_ahead(
    full_driver: CoreDriver,
) -> None:
    """A closed application submits no more inferences, whatever cost was predicted."""
    submit_waiting(full_driver, "small", cost=1_000)
    full_driver.handle(ev.ApplicationClosed("small"))
    submit_waiting(full_driver, "a", cost=50_000)

    assert 155 == read_outlook(full_driver).ahead_kv_token_time


def test_expected_wait_includes_later_stages_of_running_applications(
    full_driver: CoreDriver,
) -> None:
    """An application between its stages is not in the queue, but precedes others."""
    before = CoreDriver()
    before.open("runs", 900)
    before.submit("x", "runs")
    before.pull(kv=25)
    submit_waiting(before, "a", cost=50_000)

    assert 900 - 155 == read_outlook(before).ahead_kv_token_time


def test_outlook_without_replicas_has_no_expected_times() -> None:
    """No inference starts before there is a replica."""
    driver = CoreDriver()
    submit_waiting(driver, "a")
    outlook = read_outlook(driver)

    assert (Reason.REPLICA, None, None) == (
        outlook.reason,
        outlook.expected_start_s,
        outlook.guaranteed_by_s,
    )


def test_draining_replicas_do_not_count_as_available(full_driver: CoreDriver) -> None:
    submit_waiting(full_driver, "a")
    full_driver.pull(kv=25, draining=True)

    assert Reason.REPLICA == read_outlook(full_driver).reason


def test_application_without_inferences_waits_for_its_tools(full_driver: CoreDriver) -> None:
    """The caller makes the next step, not the service."""
    full_driver.open("a")
    outlook = read_outlook(full_driver)

    assert (Reason.TOOL, None) == (outlook.reason, outlook.position)


def test_recovery_is_the_waiting_reason_while_grants_are_held_back(full_driver: CoreDriver) -> None:
    """After a restart the queue is not the reason of the wait."""
    submit_waiting(full_driver, "a")
    inference = full_driver.inference("a1")
    full_driver.hand_over(SchedulerCore(lease_prefix="2-"), ["r0"])
    full_driver.resubmit(inference, None)

    assert Reason.RECOVERY == read_outlook(full_driver).reason


def test_used_up_quota_is_named_as_the_waiting_reason_before_the_queue(
    full_driver: CoreDriver,
) -> None:
    """The node of a quota is named, because only the owner of the node can raise it."""
    submit_waiting(full_driver, "a")
    full_driver.core.outlooks.held_by = lambda application: Held(Reason.QUOTA, "acme/search")
    outlook = read_outlook(full_driver)

    assert "quota:acme/search" == outlook.reason
    assert WHAT_WOULD_HELP[Reason.QUOTA] == outlook.what_would_help


def test_guaranteed_start_follows_from_the_finish_tag_and_the_fairness_bound(
    full_driver: CoreDriver,
) -> None:
    submit_waiting(full_driver, "a", cost=310)
    core = full_driver.core
    lag, clock = core.lag("a"), core.ledger.fair_share.clock
    assert lag is not None
    assert lag.bound_kv_token_time is not None
    work = (core.tag("a") - clock.virtual_time) * clock.active_weight + lag.bound_kv_token_time

    assert 0 == lag.bound_kv_token_time
    expected = core.outlooks.seconds_for(work)
    assert read_outlook(full_driver).guaranteed_by_s == pytest.approx(expected)


def test_policy_without_a_bound_guarantees_no_start() -> None:
    """An unproven guarantee would be worse than none."""
    driver = CoreDriver(SchedulerCore("fcfs"))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=25)
    submit_waiting(driver, "a")

    assert read_outlook(driver).guaranteed_by_s is None
    assert read_outlook(driver).expected_start_s is not None


def test_application_beyond_the_examined_queue_has_only_a_least_position(
    full_driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examining all applications would stop the scheduler for too long."""
    monkeypatch.setattr(queue_profile, "MAXIMUM_PLACES", 2)
    for number in range(4):
        submit_waiting(full_driver, f"b{number}", cost=100 * (number + 2))
    outlook = read_outlook(full_driver, "b3")

    assert (2, True, None) == (
        outlook.position,
        outlook.position_is_least,
        outlook.expected_start_s,
    )
    assert not read_outlook(full_driver, "b1").position_is_least


def test_actual_starts_calibrate_the_expected_start_times(full_driver: CoreDriver) -> None:
    """Later expectations are corrected by the error of earlier ones."""
    submit_waiting(full_driver, "a")
    before = read_outlook(full_driver).expected_start_s
    full_driver.now += 60.0
    full_driver.pull(finished={full_driver.lease_of("x"): 10}, kv=25)
    submit_waiting(full_driver, "b")
    after = read_outlook(full_driver, "b").expected_start_s

    assert before is not None
    assert after is not None
    assert after.p90 > before.p90


def test_unknown_application_has_no_outlook(full_driver: CoreDriver) -> None:
    """The application may have ended since the ingress sent the request."""
    assert {} == full_driver.core.outlooks.ask(["gone"])


def test_queue_position_is_the_number_of_applications_ahead(full_driver: CoreDriver) -> None:
    """By its tag, a cheap later application precedes expensive ones."""
    for name, cost in (("a", 500.0), ("b", 300.0), ("c", 400.0)):
        submit_waiting(full_driver, name, cost)
    full_driver.now += 1.0
    full_driver.submit("c2", "c")
    inferences = full_driver.core.state.inferences

    assert [2, 0, 1, 1] == [
        full_driver.core.outlooks.position(inferences[name]) for name in ("a1", "b1", "c1", "c2")
    ]


def test_queue_position_beyond_the_examined_applications_is_unknown(
    full_driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over a hundred thousand applications would delay every other request."""
    monkeypatch.setattr(queue_profile, "MAXIMUM_PLACES", 2)
    for name in "abc":
        submit_waiting(full_driver, name)
    inferences = full_driver.core.state.inferences

    assert [0, 1, None] == [
        full_driver.core.outlooks.position(inferences[name]) for name in ("a1", "b1", "c1")
    ]


def test_queue_position_of_an_application_is_cached_for_a_millisecond(
    full_driver: CoreDriver,
) -> None:
    """Caching limits the time for computing positions to 1 %."""
    for name in "abcd":
        submit_waiting(full_driver, name)
    first = full_driver.core.state.inferences["a1"]
    full_driver.core.outlooks.position(first)
    before = full_driver.core.outlooks._profile
    full_driver.now += 0.003
    submit_waiting(full_driver, "e", 1_000.0)
    last = full_driver.core.outlooks.position(full_driver.core.state.inferences["e1"])
    kept = full_driver.core.outlooks._profile
    full_driver.now += 0.003
    full_driver.wait(0.0)
    full_driver.core.outlooks.position(first)

    assert (4, True) == (last, kept is before)
    assert full_driver.core.outlooks._profile is not before
