"""The outlook of an application: reason, position, expected times and guarantee."""

import pytest

from justitia_ray.core import SchedulerCore, queue_profile
from justitia_ray.core import events as ev
from justitia_ray.core.outlook import WHAT_WOULD_HELP, Held, Outlook, Reason
from justitia_ray.core.queue_profile import Demand, QueueProfile
from justitia_ray.core.served_rate import USUAL_ITERATION_S
from tests.core_driver import PATIENT, CoreDriver


@pytest.fixture
def driver() -> CoreDriver:
    """Return a driver whose replica r0 runs the one inference of `runs` and is full."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=25)
    return driver


def look(driver: CoreDriver, name: str = "a") -> Outlook:
    """Return the outlook of an application now."""
    return driver.core.outlooks.ask([name])[name]


def wait(driver: CoreDriver, name: str, cost: float = 155) -> None:
    """Submit one inference of an application, which then waits."""
    driver.open(name, cost)
    driver.submit(f"{name}1", name)


def test_every_reason_names_a_remedy() -> None:
    """Every reason names a remedy; the list is closed."""
    assert {*WHAT_WOULD_HELP} == {*Reason}
    assert all(WHAT_WOULD_HELP.values())


def test_running_application_has_reason_running(driver: CoreDriver) -> None:
    """A running application waits for no resource, and has an expected end."""
    outlook = look(driver, "runs")

    assert (Reason.RUNNING, None, None) == (
        outlook.reason,
        outlook.position,
        outlook.expected_start_s,
    )
    assert outlook.expected_finish_s is not None


def test_first_waits_for_headroom_and_the_next_for_its_turn(driver: CoreDriver) -> None:
    """The remedies differ: memory for the first, patience for the next."""
    wait(driver, "a")
    wait(driver, "b", cost=10_000)
    first, second = look(driver, "a"), look(driver, "b")

    assert (Reason.HEADROOM, 0, 0) == (first.reason, first.position, first.ahead_kv_token_time)
    assert (Reason.TURN, 1, 155) == (second.reason, second.position, second.ahead_kv_token_time)
    assert first.expected_start_s is not None
    assert second.expected_start_s is not None
    assert first.expected_start_s.p50 < second.expected_start_s.p50


def test_first_starts_when_the_predictions_say_that_it_fits(driver: CoreDriver) -> None:
    """The running inference ends in 10 iterations, which are assumed to take 30 ms each."""
    wait(driver, "a")
    start = look(driver).expected_start_s

    assert start is not None
    assert start.p50 == pytest.approx(10 * USUAL_ITERATION_S, rel=0.1)


def serve_for_a_while(driver: CoreDriver, *, kv: int, seats: int) -> None:
    """Let the inference of `runs` make a token per 0.5 s, so that a rate is measured."""
    lease = driver.lease_of("x")
    for made in range(1, 6):
        driver.now += 0.5
        driver.pull(progress={lease: made}, kv=kv, seats=seats)


@pytest.mark.parametrize(
    ("kv", "seats", "expected_s"),
    [
        # Of 20 tokens of KV 13 are held on average: 155 at 65 in 2.5 s take 5.96 s.
        (20, 256, 155 / 26),
        # One seat of one: 10 tokens at 0.5 s each, however much memory is free.
        (1_000_000, 1, 10 * 0.5),
    ],
)
def test_service_ahead_is_timed_by_the_scarce_resource(
    kv: int, seats: int, expected_s: float
) -> None:
    """Small calls use little memory but a whole seat: each resource has its own rate."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=kv, seats=seats)
    serve_for_a_while(driver, kv=kv, seats=seats)
    wait(driver, "a")
    wait(driver, "b", cost=10_000)
    outlooks = driver.core.outlooks
    profile = QueueProfile(driver.core.state, driver.core.ledger)
    ahead = profile.ahead(1, driver.core.ledger.rank("b"))

    assert Demand(155, 10, 0) == ahead
    assert outlooks._served_within_s(ahead) == pytest.approx(expected_s, rel=0.1)


def test_expected_times_count_from_the_drivers_clock(
    driver: CoreDriver,
) -> None:
    """Half a second after the last event the expected wait is half a second shorter."""
    wait(driver, "a")
    now = driver.now
    at_once = driver.core.outlooks.ask(["a"], now=now)["a"].expected_start_s
    later = driver.core.outlooks.ask(["a"], now=now + 0.1)["a"].expected_start_s

    assert at_once is not None
    assert later is not None
    assert at_once.p50 - later.p50 == pytest.approx(0.1, rel=0.15)


def test_service_ahead_counts_later_stages_of_those_with_smaller_tags(driver: CoreDriver) -> None:
    """Later stages keep their application's tag and precede: the queue alone is too little."""
    driver.open("small", 1_000)
    driver.submit("s1", "small")
    wait(driver, "a", cost=50_000)

    assert 1_000 == look(driver).ahead_kv_token_time


def test_closed_application_needs_only_its_waiting_inferences(
    driver: CoreDriver,
) -> None:
    """The owner of a closed application submits no more."""
    wait(driver, "small", cost=1_000)
    driver.handle(ev.ApplicationClosed("small"))
    wait(driver, "a", cost=50_000)

    assert 155 == look(driver).ahead_kv_token_time


def test_service_ahead_counts_later_stages_of_running_applications(driver: CoreDriver) -> None:
    """An application between its stages has no place in the queue, but precedes others."""
    before = CoreDriver()
    before.open("runs", 900)
    before.submit("x", "runs")
    before.pull(kv=25)
    wait(before, "a", cost=50_000)

    assert 900 - 155 == look(before).ahead_kv_token_time


def test_without_replicas_the_outlook_has_no_times() -> None:
    """No inference starts before there is a replica."""
    driver = CoreDriver()
    wait(driver, "a")
    outlook = look(driver)

    assert (Reason.REPLICA, None, None) == (
        outlook.reason,
        outlook.expected_start_s,
        outlook.guaranteed_by_s,
    )


def test_draining_replicas_do_not_count_as_available(driver: CoreDriver) -> None:
    wait(driver, "a")
    driver.pull(kv=25, draining=True)

    assert Reason.REPLICA == look(driver).reason


def test_application_without_submitted_inferences_waits_for_its_tools(driver: CoreDriver) -> None:
    """The next step is the caller's: the service cannot help."""
    driver.open("a")
    outlook = look(driver)

    assert (Reason.TOOL, None) == (outlook.reason, outlook.position)


def test_recovery_is_the_reason_while_grants_are_held(driver: CoreDriver) -> None:
    """After a restart the queue is not the reason of the wait."""
    wait(driver, "a")
    inference = driver.inference("a1")
    driver.hand_over(SchedulerCore(lease_prefix="2-"), ["r0"])
    driver.resubmit(inference, None)

    assert Reason.RECOVERY == look(driver).reason


def test_reason_that_holds_an_application_back_precedes_its_turn(driver: CoreDriver) -> None:
    """A quota of a node is named with the node, as only its owner can raise it."""
    wait(driver, "a")
    driver.core.outlooks.held_by = lambda application: Held(Reason.QUOTA, "acme/search")
    outlook = look(driver)

    assert "quota:acme/search" == outlook.reason
    assert WHAT_WOULD_HELP[Reason.QUOTA] == outlook.what_would_help


def test_guarantee_is_the_tag_and_the_bound_at_the_present_speed(driver: CoreDriver) -> None:
    """V has to rise by F − V, which costs that times all active weight; then the bound is served.

    The bound is 0: nothing of a larger tag runs, and GPS owes what has smaller ones all of it.
    """
    wait(driver, "a", cost=310)
    core = driver.core
    lag, clock = core.lag("a"), core.ledger.fair_share.clock
    assert lag is not None
    assert lag.bound_kv_token_time is not None
    work = (core.tag("a") - clock.virtual_time) * clock.active_weight + lag.bound_kv_token_time

    assert 0 == lag.bound_kv_token_time
    expected = core.outlooks.seconds_for(work)
    assert look(driver).guaranteed_by_s == pytest.approx(expected)


def test_policy_without_a_bound_gives_no_guarantee() -> None:
    """An unproven guarantee would be worse than none."""
    driver = CoreDriver(SchedulerCore("fcfs"))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=25)
    wait(driver, "a")

    assert look(driver).guaranteed_by_s is None
    assert look(driver).expected_start_s is not None


def test_beyond_the_examined_applications_there_is_a_least_position_and_no_time(
    driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over all applications would stop the scheduler; a part is not the whole."""
    monkeypatch.setattr(queue_profile, "MAXIMUM_PLACES", 2)
    for number in range(4):
        wait(driver, f"b{number}", cost=100 * (number + 2))
    outlook = look(driver, "b3")

    assert (2, True, None) == (
        outlook.position,
        outlook.position_is_least,
        outlook.expected_start_s,
    )
    assert not look(driver, "b1").position_is_least


def test_actual_starts_calibrate_the_expected_start_times(driver: CoreDriver) -> None:
    """Later expectations are corrected by the error of earlier ones."""
    wait(driver, "a")
    before = look(driver).expected_start_s
    driver.now += 60.0
    driver.pull(finished={driver.lease_of("x"): 10}, kv=25)
    wait(driver, "b")
    after = look(driver, "b").expected_start_s

    assert before is not None
    assert after is not None
    assert after.p90 > before.p90


def test_unknown_application_has_no_outlook(driver: CoreDriver) -> None:
    """The application may have ended since the ingress sent the request."""
    assert {} == driver.core.outlooks.ask(["gone"])


def test_position_is_how_many_applications_are_before_its_own(driver: CoreDriver) -> None:
    """By tag a cheap later application precedes expensive ones, as does its second call."""
    for name, cost in (("a", 500.0), ("b", 300.0), ("c", 400.0)):
        wait(driver, name, cost)
    driver.now += 1.0
    driver.submit("c2", "c")
    inferences = driver.core.state.inferences

    assert [2, 0, 1, 1] == [
        driver.core.outlooks.position(inferences[name]) for name in ("a1", "b1", "c1", "c2")
    ]


def test_position_behind_all_that_are_looked_at_is_not_known(
    driver: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk over a hundred thousand would delay every other request."""
    monkeypatch.setattr(queue_profile, "MAXIMUM_PLACES", 2)
    for name in "abc":
        wait(driver, name)
    inferences = driver.core.state.inferences

    assert [0, 1, None] == [
        driver.core.outlooks.position(inferences[name]) for name in ("a1", "b1", "c1")
    ]


def test_walk_for_positions_is_repeated_after_a_millisecond_for_each_application(
    driver: CoreDriver,
) -> None:
    """Walks take a hundredth of the time; later applications are inserted by their tags."""
    for name in "abcd":
        wait(driver, name)
    first = driver.core.state.inferences["a1"]
    driver.core.outlooks.position(first)
    before = driver.core.outlooks._profile
    driver.now += 0.003
    wait(driver, "e", 1_000.0)
    last = driver.core.outlooks.position(driver.core.state.inferences["e1"])
    kept = driver.core.outlooks._profile
    driver.now += 0.003
    driver.wait(0.0)
    driver.core.outlooks.position(first)

    assert (4, True) == (last, kept is before)
    assert driver.core.outlooks._profile is not before
