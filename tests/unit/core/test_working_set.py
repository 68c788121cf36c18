"""The working set: idle contexts of earlier applications count as used memory."""

from collections.abc import Sequence

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action
from justitia_ray.core.scheduler import SchedulerCore
from tests.core_driver import PATIENT, CoreDriver, granted

KV = 10_000
COUNTS_S = 3.0
"""Seconds for which a context counts while gaps and the time of a prompt are unknown."""


NAMES = ("runs", "first", "second", "third")
COSTS = (1e9, 2e9, 3e9, 4e9)
OUTRUN = (10, 58_000, 60_000, 70_000)
"""Costs with which application `first` precedes `second` until its charge has doubled."""


def core_with_running_lease(
    *,
    working_set: bool = True,
    caches: bool = True,
    costs: Sequence[float] = COSTS,
    host: int = 0,
) -> CoreDriver:
    """Return a core with one replica, on which `runs` permanently holds 1,000 tokens.

    The context of `first`, 6,000 tokens, is idle. Order: runs, first, second, third.
    """
    options = {"working_set": working_set}
    driver = CoreDriver(SchedulerCore("justitia", options, "peak", PATIENT))
    driver.pull(progress=None, kv=KV, caches=caches, host=host)
    for name, cost in zip(NAMES, costs, strict=True):
        driver.open(name, cost)
    driver.submit("runs1", "runs", prompt=990)
    driver.submit("first1", "first", prompt=5990)
    driver.end("first1", 5990)
    return driver


def report_and_ask(driver: CoreDriver) -> list[Action]:
    return driver.handle(ev.ReplicaReported("r0", asks=True))


def test_inference_waits_if_its_start_would_evict_an_earlier_context() -> None:
    driver = core_with_running_lease()

    assert [] == granted(driver.submit("second1", "second", prompt=3000))
    assert [] == granted(report_and_ask(driver))


def test_inference_that_fits_beside_all_contexts_does_not_wait() -> None:
    driver = core_with_running_lease()

    assert ["second1"] == granted(driver.submit("second1", "second", prompt=1500))


@pytest.mark.parametrize(("host", "starts"), [(0, False), (KV, False), (2 * KV, True)])
def test_contexts_count_against_the_larger_of_gpu_and_host_memory(host: int, starts: bool) -> None:
    """The host memory has copies of all contexts."""
    driver = core_with_running_lease(host=host)

    assert ["second1"] * starts == granted(driver.submit("second1", "second", prompt=3000))


def test_context_of_a_later_application_delays_no_earlier_start() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=1900)
    driver.end("second1", 1900)

    assert ["first2"] == granted(driver.submit("first2", "first", prompt=7900))


def test_working_set_counts_the_context_of_a_returning_application_once() -> None:
    driver = core_with_running_lease()

    assert ["first2"] == granted(driver.submit("first2", "first", prompt=7900))


def test_later_application_does_not_overtake_one_that_waits_for_the_working_set() -> None:
    """A stream of small calls could otherwise delay the waiting application forever."""
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)

    assert [] == granted(driver.submit("third1", "third", prompt=10))


def test_idle_context_counts_in_the_working_set_for_a_limited_time() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)
    driver.now += COUNTS_S - 1.0
    assert [] == granted(report_and_ask(driver))
    driver.now += 1.0

    assert ["second1"] == granted(report_and_ask(driver))


def test_end_of_an_application_removes_its_context_from_the_working_set() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)

    assert ["second1"] == granted(driver.handle(ev.ApplicationClosed("first")))


def test_first_application_starts_on_an_empty_replica_despite_idle_contexts() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)

    assert ["second1"] == granted(driver.end("runs1", 990))


@pytest.mark.parametrize(("working_set", "caches"), [(False, True), (True, False)])
def test_idle_contexts_delay_no_start_without_a_prefix_cache(
    *, working_set: bool, caches: bool
) -> None:
    driver = core_with_running_lease(working_set=working_set, caches=caches)

    assert ["second1"] == granted(driver.submit("second1", "second", prompt=3000))


def test_policy_change_may_disable_the_working_set() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)
    changed = driver.handle(ev.PolicyChanged("justitia", (("working_set", False),)))

    assert ["second1"] == granted(changed)


def test_working_set_without_contexts_admits_leases_to_the_full_memory() -> None:
    """The limit of 90 % applies only beside contexts."""
    driver = core_with_running_lease()
    driver.handle(ev.ApplicationClosed("first"))
    driver.submit("second1", "second", prompt=8000)

    assert ["third1"] == granted(driver.submit("third1", "third", prompt=900))


def test_working_set_counts_a_prompt_shared_by_choices_once() -> None:
    driver = core_with_running_lease()
    choices = ev.InferenceSubmitted(
        "second1", "second", "second1", "i0", 4000, 10, 10, choices=4, copies=4
    )

    assert ["second1"] == granted(driver.handle(choices))


def test_leases_of_a_draining_replica_delay_no_start_elsewhere() -> None:
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=9500)
    driver.pull(progress=None, kv=KV, caches=True, draining=True)
    driver.now += 1.0
    driver.pull("r1", kv=KV, caches=True)

    assert "r1" == driver.core.state.leases[driver.lease_of("second1")].replica_id


def test_context_that_no_turn_continues_leaves_the_working_set() -> None:
    driver = core_with_running_lease()
    driver.core.state.applications["first"].reuse = -2

    assert ["second1"] == granted(driver.submit("second1", "second", prompt=3000))


def test_context_of_a_closed_application_is_not_in_the_working_set() -> None:
    driver = core_with_running_lease()
    driver.submit("first2", "first", prompt=100)
    assert [] == granted(driver.submit("second1", "second", prompt=3000))

    driver.handle(ev.ApplicationClosed("first"))
    driver.now += 1.0

    assert ["second1"] == granted(report_and_ask(driver))


def test_working_set_refusal_is_cached_until_a_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas report hundreds of times a second, and a walk over 10,000 contexts takes 22 ms."""
    driver = core_with_running_lease()
    driver.submit("second1", "second", prompt=3000)
    gate = driver.core.ledger.gate
    assert gate is not None
    monkeypatch.setattr(
        gate, "_missing_kv_tokens", lambda *_: pytest.fail("the contexts are walked again")
    )

    for _ in range(3):
        assert [] == granted(report_and_ask(driver))


def test_refusal_beside_many_contexts_stays_cached_although_leases_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Examining 300 contexts takes half a millisecond, and a hundred leases may end a second."""
    driver = CoreDriver(SchedulerCore("justitia", {}, "peak", PATIENT))
    driver.pull(progress=None, kv=KV, caches=True)
    driver.open("runs", 10)
    driver.submit("runs1", "runs", prompt=90)
    driver.submit("runs2", "runs", prompt=90)
    for number in range(300):
        driver.open(f"a{number}", 1e6)
        driver.submit(f"a{number}", f"a{number}", prompt=10)
        driver.end(f"a{number}", 10)
    driver.open("next", 1e9)
    driver.submit("next1", "next", prompt=4_000)
    gate = driver.core.ledger.gate
    assert gate is not None
    examined: list[float] = []

    def record_and_refuse(*_: object) -> int:
        examined.append(driver.now)
        return 1

    monkeypatch.setattr(gate, "_missing_kv_tokens", record_and_refuse)

    driver.now += 0.005
    driver.end("runs1", 90)
    assert [] == examined
    driver.now += 0.002
    report_and_ask(driver)
    assert [driver.now] == examined


def test_started_application_keeps_its_queue_place_when_its_charge_doubles() -> None:
    """An application with a low prediction would otherwise lose its context."""
    driver = core_with_running_lease(costs=OUTRUN)
    assert [] == granted(driver.submit("second1", "second", prompt=3000))
    again = driver.submit("first2", "first", prompt=6500)

    assert driver.core.tag("first") > driver.core.tag("second")
    assert ["first2"] == granted(again)


def test_started_application_loses_its_place_after_four_times_its_charge() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    driver.submit("second1", "second", prompt=3000)
    for turn, prompt in enumerate((6500, 7000, 7500), start=2):
        assert ["second1"] != granted(driver.submit(f"first{turn}", "first", prompt=prompt))
        ended = driver.end(f"first{turn}", prompt)

    assert driver.account("first").attained > 4 * 58_000
    assert ["second1"] == granted(ended)


def test_application_loses_its_queue_place_when_its_context_is_evicted() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    contexts = driver.core.state.replicas["r0"].contexts
    for context in [*contexts.of("first")]:
        contexts.forget("first", context)

    assert ["second1"] == granted(driver.submit("second1", "second", prompt=3000))


def test_unstarted_application_waits_behind_the_first_in_the_queue() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    driver.submit("second1", "second", prompt=3000)
    driver.submit("third1", "third", prompt=10)

    assert ["first2"] == granted(driver.submit("first2", "first", prompt=6500))
    assert driver.inference("third1").lease_id is None


def test_smaller_application_that_arrives_later_precedes_a_started_one() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    driver.open("small", 1_000)
    driver.submit("second1", "second", prompt=3000)

    assert ["small1"] == granted(driver.submit("small1", "small", prompt=3000))


def test_lag_bound_includes_the_service_that_started_applications_get_first() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    driver.submit("second1", "second", prompt=3000)
    with_place = driver.core.lag("second")
    gate = driver.core.ledger.gate
    assert gate is not None
    gate._starts.clear()
    without = driver.core.lag("second")

    assert with_place is not None
    assert with_place.bound_kv_token_time is not None
    assert without is not None
    assert without.bound_kv_token_time is not None
    left = 4 * 58_000 - driver.account("first").attained
    assert left == with_place.bound_kv_token_time - without.bound_kv_token_time


def test_ended_applications_leave_the_working_set() -> None:
    driver = core_with_running_lease()
    gate = driver.core.ledger.gate
    assert gate is not None
    for number in range(200):
        driver.open(f"a{number}", 100)
        driver.submit(f"r{number}", f"a{number}", prompt=10)
        driver.end(f"r{number}", 10)
        driver.handle(ev.ApplicationClosed(f"a{number}"))

    assert len(gate._starts) <= 66


def test_started_and_waiting_applications_of_the_working_set_are_counted() -> None:
    driver = core_with_running_lease(costs=OUTRUN)
    driver.submit("second1", "second", prompt=3000)
    driver.submit("third1", "third", prompt=10)
    driver.submit("first2", "first", prompt=9500)
    gate, queue = driver.core.ledger.gate, driver.core.ledger.queue
    assert gate is not None

    assert (2, 2) == gate.started_and_waiting(queue)
    assert 6000 == gate.context_tokens()
    driver.now += COUNTS_S
    report_and_ask(driver)
    assert 0 == gate.context_tokens()


def test_contexts_of_a_class_with_long_gaps_delay_no_start() -> None:
    driver = core_with_running_lease()
    gate = driver.core.ledger.gate
    assert gate is not None
    for _ in range(8):
        gate.returned(driver.application("first"), idle_s=100.0)

    assert ["second1"] == granted(driver.submit("second1", "second", prompt=3000))


def test_gap_between_turns_lasts_from_an_end_to_the_next_submission() -> None:
    driver = core_with_running_lease()
    driver.now += 2.0
    driver.submit("first2", "first", prompt=7900)
    driver.end("first2", 7900)
    driver.now += 5.0
    driver.handle(ev.ApplicationClosed("first"))
    gate = driver.core.ledger.gate
    assert gate is not None

    [gaps] = gate._gaps._of.values()
    assert [(2.0, True), (5.0, False)] == [(gap.length_s, gap.has_returned) for gap in gaps]
