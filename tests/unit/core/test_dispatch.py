"""Dispatch: which inference is granted on which replica, and when."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndsStored, Grant
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.placement import Placement
from justitia_ray.core.policies import policy_path
from justitia_ray.core.policies.justitia import rank_preserving_integer
from justitia_ray.core.queue import Queue
from justitia_ray.errors import ConfigError
from tests.core_driver import CoreDriver, aborted, granted, refused


def test_inference_is_granted_at_once_to_a_replica_with_an_open_pull(core: CoreDriver) -> None:
    """An idle service must add no round trip."""
    core.pull("r0")
    core.open("a", 155)
    actions = core.submit("x")

    tag = core.core.tag("a")

    assert [Grant("x", "i0", "1", "r0", rank_preserving_integer(tag), 20, 0.0)] == actions
    assert tag == 155


def test_grant_contains_the_waiting_time(core: CoreDriver) -> None:
    """The age of an inference at an earlier scheduler counts."""
    core.open()
    core.submit("x", age_s=2.5)
    core.now += 1.5
    (grant,) = core.pull()

    assert isinstance(grant, Grant)
    assert (grant.waited_s, core.application().first_dispatched_at) == (4.0, 100.0 + 1.5)


def test_inferences_of_a_lost_replica_are_granted_at_an_arrival(core: CoreDriver) -> None:
    """An arrival may be the first event after a replica's timeout, and the last for long."""
    core.open("a")
    core.submit("x", "a")
    core.pull("r0", seats=1)
    core.now += 3
    core.pull("r1", seats=1)
    core.now += 3

    assert ["x"] == granted(core.open("b"))


def _count_searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry for each search for an inference to grant."""
    looks: list[str] = []
    grant_all = Leases.grant_all

    def record_search(leases: Leases) -> None:
        looks.append("look")
        grant_all(leases)

    monkeypatch.setattr(Leases, "grant_all", record_search)
    return looks


def test_arriving_inference_that_fits_no_replica_starts_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search is expensive, and the next report makes one anyway."""
    core = CoreDriver(SchedulerCore("justitia", {"order": "sgps", "guard_iterations": 300}))
    core.open("a")
    core.submit("x", "a")
    core.submit("y", "a")
    core.pull("r0", seats=1)
    looks = _count_searches(monkeypatch)
    core.open("b", 1)
    core.submit("z", "b")

    assert [] == looks
    assert ["z"] == granted(core.pull("r1", seats=1))
    assert looks

    core.pull("r2", seats=2)
    core.open("c", 1)

    assert ["w"] == granted(core.submit("w", "c"))


@pytest.mark.parametrize(("guard_iterations", "looked"), [(0, []), (300, ["look"])])
def test_inference_arriving_behind_a_blocked_inference_starts_no_search(
    guard_iterations: float, looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"order": "sgps", "guard_iterations": guard_iterations}
    core = CoreDriver(SchedulerCore("justitia", options))
    core.open("a", 100_000)
    core.submit("held", "a", prompt=600, output=10)
    core.pull(kv=1000)
    core.submit("large", "a", prompt=600, output=10)
    core.pull(kv=1000, progress={core.lease_of("held"): 1})
    looks = _count_searches(monkeypatch)
    core.submit("behind", "a", prompt=1, output=1)
    core.open("b", 1_000_000)
    core.submit("later", "b", prompt=1, output=1)

    assert looked == looks

    core.open("c", 1)

    assert ["small"] == granted(core.submit("small", "c", prompt=1, output=1))
    assert [*looked, "look"] == looks


@pytest.mark.parametrize(
    "event",
    [
        ev.ApplicationReopened("a"),
        ev.DeadlinePassed(),
        ev.EndsAcknowledged(EndsStored("i0")),
        ev.IngressHeartbeat("i0"),
        ev.PullAnswered("r1"),
        ev.StateStored(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_event_that_can_start_no_inference_triggers_no_search(
    monkeypatch: pytest.MonkeyPatch, event: ev.Event
) -> None:
    """Half of all events start no inference, and each search is expensive."""
    driver = _driver_with_a_blocked_inference("unlimited")
    looks = _count_searches(monkeypatch)
    driver.handle(event)

    assert [] == looks


def test_no_search_is_made_without_a_free_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    core = CoreDriver(SchedulerCore("justitia"))
    core.open("a")
    core.submit("held", "a")
    core.pull("r0", seats=1)
    core.submit("x", "a")
    core.submit("y", "a")
    looks: list[str | None] = []
    first = Queue.claim_first

    def record_first(queue: Queue) -> Application | None:
        application = first(queue)
        looks.append(None if application is None else application.waiting.first.request_id)
        return application

    monkeypatch.setattr(Queue, "claim_first", record_first)
    core.pull("r0", seats=1, progress={core.lease_of("held"): 1})

    assert [] == looks
    assert ["x"] == granted(core.pull("r0", seats=1, finished={core.lease_of("held"): 10}))
    assert ["x"] == looks


def test_application_with_the_smallest_tag_is_granted_first(core: CoreDriver) -> None:
    for name, cost in (("a", 1000), ("b", 500), ("c", 10)):
        core.open(name, cost)
        core.submit(f"{name}1", name)
        core.submit(f"{name}2", name)

    assert granted(core.pull()) == ["c1", "c2", "b1", "b2", "a1", "a2"]


def test_blocked_first_inference_is_never_overtaken(core: CoreDriver) -> None:
    """Small inferences must not keep a large one waiting forever."""
    core.open("a", 100_000)
    core.open("b", 1_000_000)
    core.submit("held", "a", prompt=600, output=10)
    core.pull(kv=1000)
    core.submit("large", "a", prompt=600, output=10)
    core.submit("small", "b", prompt=1, output=1)

    assert granted(core.pull(progress={core.lease_of("held"): 1})) == []

    after = core.pull(finished={core.lease_of("held"): 10})

    assert granted(after) == ["large", "small"]


def test_application_that_exceeds_its_charge_moves_back_in_the_queue(core: CoreDriver) -> None:
    core.open("a", 20)
    core.open("b", 39)
    core.submit("a1", "a")
    core.pull(seats=1)
    core.submit("a2", "a")
    core.submit("b1", "b")

    assert ["b1", "a2"] == granted(core.pull(progress={"1": 3}, seats=3))
    assert 20 + 20 == core.core.tag("a")  # charged 40, has received 36


def test_replica_with_most_free_memory_is_chosen(core: CoreDriver) -> None:
    """Ties go to the smaller name, so that runs can be repeated."""
    core.pull("r1", kv=1000)
    core.pull("r0", kv=1000)
    core.pull("r2", kv=1200)
    placed = []
    for number in range(5):
        core.open(f"a{number}")
        (grant,) = core.submit(f"x{number}", f"a{number}", prompt=190, output=10)
        assert isinstance(grant, Grant)
        placed.append(grant.replica_id)

    assert placed == ["r2", "r2", "r0", "r1", "r2"]


def test_replica_without_an_open_pull_gets_no_grant(core: CoreDriver) -> None:
    """A grant after the answer would wait for the replica's next pull."""
    core.pull("r0")
    core.handle(ev.PullAnswered("r0"))
    core.handle(ev.PullAnswered("unknown"))
    core.open()

    assert core.submit("x") == []
    assert granted(core.pull("r0")) == ["x"]


def test_draining_replica_gets_no_grant(core: CoreDriver) -> None:
    core.pull("r0")
    core.open()
    core.submit("x")
    lease = core.lease_of("x")
    core.pull("r0", {lease: 1}, draining=True)
    core.submit("y")

    assert core.pull("r0", {lease: 2}) == []
    assert granted(core.pull("r1")) == ["y"]


def test_number_of_free_seats_limits_the_grants_to_a_replica(core: CoreDriver) -> None:
    core.open()
    for name in ("x", "y", "z"):
        core.submit(name)

    assert granted(core.pull(seats=2)) == ["x", "y"]


def test_kv_memory_in_use_without_a_lease_prevents_grants(core: CoreDriver) -> None:
    """Granting memory that an aborted call still holds would cause a preemption."""
    core.open()
    core.submit("x", prompt=10, output=10)
    core.pull(kv=100)
    core.handle(ev.PullAnswered("r0"))
    lease = core.lease_of("x")
    core.submit("y", prompt=60, output=20)

    assert granted(core.pull(progress={lease: 1}, kv=100, free=39)) == []
    assert granted(core.pull(progress={lease: 1}, kv=100, free=89)) == ["y"]


def test_freed_memory_is_granted_at_once(core: CoreDriver) -> None:
    """Waiting inferences are examined again once a replica has more room, not before."""
    core.open()
    core.submit("x", prompt=60, output=20)
    core.pull(kv=100)

    assert [] == core.submit("y", prompt=60, output=20)
    assert [] == core.submit("z", prompt=60, output=20)
    assert ["y"] == granted(core.handle(ev.InferenceCancelled("x")))
    assert ["z"] == granted(core.pull(kv=200))


def test_inference_of_an_unknown_application_is_refused(core: CoreDriver) -> None:
    """The ingress opens applications first, and again after a restart."""
    assert refused(core.submit("x", "nobody")) == [("x", "unknown_application")]


def test_repeated_submission_changes_nothing(core: CoreDriver) -> None:
    """The same request id is the same attempt, whether it waits, is leased or runs."""
    core.open()
    core.submit("x")
    core.submit("x")

    assert core.waiting() == ["x"]
    assert granted(core.pull()) == ["x"]
    assert core.submit("x") == []

    core.pull(progress={"1": 3})

    assert core.submit("x") == []
    assert len(core.core.state.inferences) == 1


def test_repeated_pull_changes_nothing(core: CoreDriver) -> None:
    """A pull whose answer was lost is sent again."""
    core.open()
    core.submit("x")
    core.pull()
    core.pull(progress={"1": 3})
    before = core.account().attained

    assert core.pull(progress={"1": 3}) == []
    assert (before, 3 * 10 + 6) == (core.account().attained, before)


def test_backward_clock_step_counts_as_the_last_known_time(core: CoreDriver) -> None:
    """A wall clock may be set back, but no lease may expire twice."""
    core.pull()
    core.now -= 50
    core.open()

    assert core.application().arrived_at == 100.0


def test_cancelled_waiting_inference_leaves_the_queue(core: CoreDriver) -> None:
    core.open()
    core.submit("x")
    core.submit("y")

    assert core.handle(ev.InferenceCancelled("x")) == []
    assert granted(core.pull()) == ["y"]


@pytest.mark.parametrize("running", [False, True])
def test_cancelled_leased_inference_is_aborted(core: CoreDriver, running: bool) -> None:
    """The replica must abort the inference so that its KV memory is free within a second."""
    core.open()
    core.submit("x")
    core.pull()
    lease = core.lease_of("x")
    core.pull(progress=[ev.LeaseProgress(lease, 10, 0, running=running)])

    assert [lease] == aborted(core.handle(ev.InferenceCancelled("x")))
    assert core.handle(ev.InferenceCancelled("x")) == []
    assert (core.application().inferences, core.core.state.leases) == (0, {})
    core.last_word(lease)
    assert core.application().inferences == 1


def test_backlog_is_the_memory_that_waiting_inferences_need(core: CoreDriver) -> None:
    core.open()
    core.submit("x", prompt=10, output=5)
    core.submit("y", prompt=20, output=7)
    backlog = core.core.state.counters.waiting_kv_tokens
    core.pull()

    assert (backlog, core.core.state.counters.waiting_kv_tokens) == (42, 0)


def test_core_uses_the_chosen_admission_rule() -> None:
    """The rule `prompt` admits what fits now, and `peak` what fits to its end."""
    admitted = {}
    for admission in ("peak", "prompt"):
        driver = CoreDriver(SchedulerCore(admission=admission))
        driver.open()
        for name in ("x", "y"):
            driver.submit(name, prompt=20, output=60)
        admitted[admission] = granted(driver.pull(kv=100))

    assert admitted == {"peak": ["x"], "prompt": ["x", "y"]}


def test_unknown_admission_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="admission: 'fifo' is not one of peak, prompt"):
        SchedulerCore(admission="fifo")


def _driver_with_a_blocked_inference(
    backfill: object, *, kv: int = 100, **options: object
) -> CoreDriver:
    """Return an FCFS core where `held` grows from 60 to 80 KV tokens, and `first` waits."""
    driver = CoreDriver(SchedulerCore("fcfs", {"backfill": backfill, **options}))
    driver.pull(kv=kv)
    _submit_application(driver, "held", 60, 20)
    _submit_application(driver, "first", 50, 20)
    assert ["first"] == driver.waiting("first")
    return driver


def _submit_application(driver: CoreDriver, name: str, prompt: int, output: int) -> list[str]:
    driver.open(name)
    return granted(driver.submit(name, name, prompt=prompt, output=output))


def test_backfilling_is_off_by_default() -> None:
    """The fairness bound is derived for strict order."""
    assert [] == _submit_application(_driver_with_a_blocked_inference(0), "tiny", 1, 1)


def test_inference_that_ends_before_the_first_can_start_is_backfilled() -> None:
    driver = _driver_with_a_blocked_inference("unlimited")

    assert ["short"] == _submit_application(driver, "short", 10, 5)
    assert 1 == driver.inference("first").passes


def test_longer_inference_is_backfilled_if_it_leaves_room_for_the_first() -> None:
    driver = _driver_with_a_blocked_inference("unlimited", kv=120)

    assert [] == _submit_application(driver, "longer", 11, 50)
    assert 0 == driver.inference("first").passes
    assert ["long"] == _submit_application(driver, "long", 10, 50)


def test_first_inference_is_overtaken_a_limited_number_of_times() -> None:
    """Predictions may be wrong, so only the count bounds the delay."""
    driver = _driver_with_a_blocked_inference(2)

    assert ["s1"] == _submit_application(driver, "s1", 2, 2)
    assert ["s2"] == _submit_application(driver, "s2", 2, 2)
    assert [] == _submit_application(driver, "s3", 2, 2)
    assert 2 == driver.inference("first").passes


def test_overtaking_limit_holds_for_the_grants_of_one_report() -> None:
    driver = _driver_with_a_blocked_inference(1)
    driver.handle(ev.PullAnswered("r0"))
    for name in ("s1", "s2"):
        _submit_application(driver, name, 2, 2)

    assert ["s1"] == granted(driver.pull(kv=100))


def test_each_overtaken_inference_counts_how_often_it_was_overtaken() -> None:
    driver = _driver_with_a_blocked_inference(2)
    _submit_application(driver, "second", 45, 20)
    _submit_application(driver, "s1", 2, 2)
    _submit_application(driver, "s2", 2, 2)

    assert (2, 2) == (driver.inference("first").passes, driver.inference("second").passes)

    driver.pull(finished={driver.lease_of("held"): 20}, kv=100)

    assert ["second"] == driver.waiting("second")
    assert [] == _submit_application(driver, "s3", 1, 1)


def test_backfilling_keeps_the_order_of_the_remaining_queue() -> None:
    """Overtaken inferences keep their places, and start as soon as there is room."""
    driver = _driver_with_a_blocked_inference("unlimited")
    _submit_application(driver, "second", 45, 2)

    assert ["short"] == _submit_application(driver, "short", 2, 2)

    driver.handle(ev.InferenceCancelled("short"))

    assert ["first", "second"] == granted(driver.handle(ev.InferenceCancelled("held")))


def test_backfilling_examines_a_limited_number_of_applications() -> None:
    """Examining ten thousand applications for each event would cost more than it gains."""
    driver = _driver_with_a_blocked_inference("unlimited")
    for number in range(16):
        _submit_application(driver, f"large{number}", 50, 20)

    assert [] == _submit_application(driver, "short", 2, 2)
    assert granted(driver.handle(ev.InferenceCancelled("large3"))) == ["short"]


def test_backfilling_checks_each_waiting_inference_once_per_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the cached answer, the number of checks would be quadratic."""
    driver = _driver_with_a_blocked_inference("unlimited")
    large = [f"large{number}" for number in range(12)]
    for name in large:
        _submit_application(driver, name, 50, 20)
    asked: list[str] = []
    can_hold = Placement.can_hold

    def record_check(placement: Placement, replica: KnownReplica, inference: Inference) -> bool:
        asked.append(inference.request_id)
        return can_hold(placement, replica, inference)

    monkeypatch.setattr(Placement, "can_hold", record_check)

    assert ["short"] == _submit_application(driver, "short", 2, 2)
    assert sorted(["first", *large, "short"]) == sorted(asked)


def test_draining_replica_gets_no_backfilled_inference() -> None:
    driver = _driver_with_a_blocked_inference("unlimited")
    driver.handle(ev.PullAnswered("r0"))

    assert [] == _submit_application(driver, "short", 2, 2)


def test_tenant_whose_only_work_was_skipped_still_counts_as_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoreDriver(
        SchedulerCore(policy_path("drr"), {"backfill": "unlimited", "unit": "tenant"})
    )
    left: list[str] = []
    monkeypatch.setattr(driver.core.ledger.policy, "left", left.append)
    driver.pull(kv=100)
    _submit_application(driver, "held", 60, 20)
    _submit_application(driver, "first", 50, 20)
    left.clear()

    assert ["short"] == _submit_application(driver, "short", 2, 2)
    assert [] == left
    assert ["first"] == granted(driver.handle(ev.InferenceCancelled("held")))
    assert ["tenant"] == left
