"""Placement of the first inference in order, by room, then locality, then free KV memory."""

from collections.abc import Sequence

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.admission import ADMISSIONS, PeakAdmission
from justitia_ray.core.entities import Inference, KnownReplica
from tests.core_driver import PATIENT, CoreDriver, granted


def _granted_replicas(actions: Sequence[Action]) -> dict[str, str]:
    """Return the replica of each request granted."""
    return {a.request_id: a.replica_id for a in actions if isinstance(a, Grant)}


def _pool_of_replicas(admission: str = "peak", **kv_tokens: int) -> CoreDriver:
    """Return an FCFS core whose replicas, of these sizes, have asked for work."""
    driver = CoreDriver(SchedulerCore("fcfs", admission=admission, timeouts=PATIENT))
    for name, tokens in kv_tokens.items():
        driver.pull(name, kv=tokens)
    return driver


def _submit_application(
    driver: CoreDriver, name: str, prompt: int, output: int = 10
) -> dict[str, str]:
    """Open an application with one inference."""
    driver.open(name)
    return _granted_replicas(driver.submit(name, name, prompt=prompt, output=output))


def _finish_inference(driver: CoreDriver, request_id: str, replica_id: str, kv: int = 1000) -> None:
    driver.pull(replica_id, finished={driver.lease_of(request_id): 10}, kv=kv)


def test_replica_that_served_the_application_precedes_one_with_more_free_memory() -> None:
    """The earlier replica may have the prefix of the prompt in its cache."""
    driver = _pool_of_replicas(r0=1000)
    driver.open("a")
    driver.submit("a1", "a")
    _finish_inference(driver, "a1", "r0", kv=1000)
    driver.pull("r1", kv=5000)

    assert {"a2": "r0"} == _granted_replicas(driver.submit("a2", "a"))
    assert {"b": "r1"} == _submit_application(driver, "b", 10)


def test_parallel_calls_are_spread_over_replicas_until_one_has_finished() -> None:
    """No replica has the prefix yet, and one replica alone would be slower for all calls."""
    driver = _pool_of_replicas(r0=1000, r1=1000)
    driver.open("a")
    places = [_granted_replicas(driver.submit(f"a{n}", "a"))[f"a{n}"] for n in range(4)]

    assert ["r0", "r1", "r0", "r1"] == places


def test_inference_starts_elsewhere_if_its_last_replica_has_no_room() -> None:
    """A replica without room is no candidate, even if it has the context."""
    driver = _pool_of_replicas(r0=100)
    driver.open("a")
    driver.submit("a1", "a")
    _finish_inference(driver, "a1", "r0", kv=100)
    _submit_application(driver, "b", 60, 20)
    driver.pull("r1", kv=1000)

    assert {"a2": "r1"} == _granted_replicas(driver.submit("a2", "a", prompt=30, output=20))
    _finish_inference(driver, "a2", "r1", kv=1000)
    assert ["r0", "r1"] == list(driver.application("a").replicas)
    # r1 is the freer of the two
    assert {"a3": "r1"} == _granted_replicas(driver.submit("a3", "a", prompt=5, output=2))


def test_next_turn_goes_to_the_replica_of_the_last_turn() -> None:
    """The last replica has the whole context of the application."""
    driver = _pool_of_replicas(r0=100)
    driver.open("a")
    driver.submit("a1", "a")
    _finish_inference(driver, "a1", "r0", kv=100)
    _submit_application(driver, "b", 60, 20)
    driver.pull("r1", kv=1000)
    driver.submit("a2", "a", prompt=30, output=20)
    _finish_inference(driver, "a2", "r1", kv=1000)
    _submit_application(driver, "c", 900, 20)
    _finish_inference(driver, "b", "r0", kv=100)

    assert {"a3": "r1"} == _granted_replicas(driver.submit("a3", "a", prompt=40, output=2))
    # while a3 runs, a4 counts as one of several parallel calls, which are spread over replicas
    assert {"a4": "r0"} == _granted_replicas(driver.submit("a4", "a", prompt=40, output=2))


@pytest.mark.parametrize(
    ("pulls_again", "connected", "expected"),
    [(True, True, "r0"), (False, True, "r1"), (True, False, "r1")],
)
def test_next_turn_goes_to_a_replica_that_is_about_to_pull_again(
    *, pulls_again: bool, connected: bool, expected: str
) -> None:
    """The scheduler answers a pull as soon as it has news, and the next pull follows soon."""
    driver = _pool_of_replicas()
    driver.pull("r0", connected=connected)
    driver.open("a")
    driver.submit("a1", "a")
    driver.pull("r1", connected=True)
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, connected=connected)
    driver.handle(ev.PullAnswered("r0", pulls_again=pulls_again))

    assert {"a2": expected} == _granted_replicas(driver.submit("a2", "a"))
    assert {"b": "r1"} == _submit_application(driver, "b", 10)


def test_replica_without_a_recent_pull_gets_no_turn() -> None:
    """A replica may have stopped with its connection open."""
    driver = _pool_of_replicas()
    driver.pull("r0", connected=True)
    driver.open("a")
    driver.submit("a1", "a")
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, connected=True)
    driver.handle(ev.PullAnswered("r0", pulls_again=True))
    driver.wait(0.5)
    driver.pull("r1", connected=True)

    assert {"a2": "r1"} == _granted_replicas(driver.submit("a2", "a"))


def test_replica_that_serves_an_application_again_becomes_its_last_replica() -> None:
    driver = _pool_of_replicas(r0=1000, r1=1000)
    driver.open("a")
    for name in ("a1", "a2", "a3"):
        driver.submit(name, "a")
    for name in ("a2", "a1", "a3"):
        _finish_inference(driver, name, {"a1": "r0", "a2": "r1", "a3": "r0"}[name])

    assert ["r1", "r0"] == list(driver.application("a").replicas)


def test_kv_memory_in_use_without_a_lease_is_not_free() -> None:
    """KV memory of an aborted call counts as used, both for the choice and for admission."""
    driver = _pool_of_replicas()
    driver.pull("r0", kv=1000, free=300)
    driver.pull("r1", kv=500)

    assert {"a": "r1"} == _submit_application(driver, "a", 10)


def test_applications_forget_removed_replicas() -> None:
    """A long-lived application on changing replicas must not fill the store."""
    driver = _pool_of_replicas(r0=1000)
    driver.open("a")
    driver.submit("a1", "a")
    _finish_inference(driver, "a1", "r0", kv=1000)
    driver.handle(ev.ReplicaLost("r0"))
    for number in (2, 3):
        driver.submit(f"a{number}", "a")
        driver.pull("r1", kv=1000)
        _finish_inference(driver, f"a{number}", "r1", kv=1000)

        assert ["r1"] == list(driver.application("a").replicas)


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_large_inference_waits_for_a_replica_that_can_hold_it(admission: str) -> None:
    """The small replica could not hold the inference even alone."""
    driver = _pool_of_replicas(admission, small=100, large=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _submit_application(driver, "giant", 300, 100)
    assert ["giant"] == granted(driver.pull("large", kv=1000))


def test_replica_that_cannot_hold_the_whole_output_gets_no_inference() -> None:
    """Even after it has preempted all others, the engine would run out of memory."""
    driver = _pool_of_replicas("prompt", small=100, large=1000)
    _submit_application(driver, "a", 980, 10)

    assert {"b": "small"} == _submit_application(driver, "b", 20, 10)
    assert {} == _submit_application(driver, "long", 30, 90)
    assert {"long": "large"} == _granted_replicas(driver.handle(ev.InferenceCancelled("a")))


def test_small_inferences_start_on_replicas_too_small_for_the_first_inference() -> None:
    """The first inference loses no time, and otherwise the small replica would be idle."""
    driver = _pool_of_replicas(small=100, large=1000)
    _submit_application(driver, "held", 800, 100)

    assert {} == _submit_application(driver, "giant", 300, 100)
    assert {"b": "small"} == _submit_application(driver, "b", 40, 10)
    assert {} == _submit_application(driver, "c", 60, 10)
    assert {} == _submit_application(driver, "d", 10, 10)
    assert 0 == driver.inference("giant").passes

    assert ["giant", "c", "d"] == granted(driver.handle(ev.InferenceCancelled("held")))


def test_inference_too_large_for_every_replica_runs_alone_on_the_largest() -> None:
    """An inference that waited forever would block all later ones."""
    driver = _pool_of_replicas(small=100, large=1000)
    _submit_application(driver, "held", 900, 50)

    assert {} == _submit_application(driver, "giant", 3000, 100)
    assert {"giant": "large"} == _granted_replicas(driver.handle(ev.InferenceCancelled("held")))
    assert {"b": "small"} == _submit_application(driver, "b", 10)


def test_number_of_free_seats_decides_between_replicas_of_equal_memory() -> None:
    driver = _pool_of_replicas()
    driver.pull("r0", kv=100, seats=3)
    driver.pull("r1", kv=100, seats=4)
    driver.open("a")

    assert {"x": "r1"} == _granted_replicas(driver.submit("x", "a", choices=5))


@pytest.mark.parametrize("end", ["lost", "draining"])
def test_large_inference_moves_to_a_smaller_replica_when_the_largest_leaves(end: str) -> None:
    """The inference would otherwise wait for a replica that takes no more leases."""
    driver = _pool_of_replicas(small=100)
    driver.pull("large", kv=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _submit_application(driver, "giant", 300, 100)

    actions = {
        "lost": lambda: driver.handle(ev.ReplicaLost("large")),
        "draining": lambda: driver.pull("large", kv=1000, draining=True),
    }[end]()

    assert {"giant": "small"} == _granted_replicas(actions)


def test_large_inference_waits_for_a_larger_replica_that_has_joined() -> None:
    """The new replica is the largest one, even while it is busy."""
    driver = _pool_of_replicas(small=100)
    _submit_application(driver, "held", 50)
    driver.pull("large", kv=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _submit_application(driver, "giant", 300, 100)
    assert [] == granted(driver.handle(ev.InferenceCancelled("held")))
    assert {"giant": "large"} == _granted_replicas(driver.pull("large", kv=1000))


def test_joining_replica_gets_waiting_inferences() -> None:
    driver = _pool_of_replicas(r0=100)
    _submit_application(driver, "a", 60, 20)
    _submit_application(driver, "b", 60, 20)

    assert {"b": "r1"} == _granted_replicas(driver.pull("r1", kv=100))

    driver.pull("r1", {driver.lease_of("b"): 3}, kv=100, draining=True)
    _submit_application(driver, "c", 60, 20)

    assert [] == granted(driver.pull("r1", finished={driver.lease_of("b"): 20}, kv=100))
    assert ["c"] == granted(driver.pull("r0", finished={driver.lease_of("a"): 20}, kv=100))


def test_inferences_of_a_lost_replica_move_to_other_replicas_in_queue_order() -> None:
    """Requeued inferences are first in the queue, before later ones."""
    driver = _pool_of_replicas(r0=100)
    _submit_application(driver, "a", 60, 20)
    driver.pull("r1", kv=100)
    _submit_application(driver, "b", 60, 20)
    _submit_application(driver, "c", 60, 20)

    assert [] == granted(driver.handle(ev.ReplicaLost("r0")))
    assert ["a"] == granted(driver.handle(ev.InferenceCancelled("b")))
    assert ["c"] == driver.waiting("c")


def _reject_by_connection(driver: CoreDriver, request_id: str) -> dict[str, str]:
    """Reject a lease because its ingress has no connection to the replica."""
    nacked = ev.LeaseNacked(driver.lease_of(request_id), ev.NackReason.CONNECTION)
    return _granted_replicas(driver.handle(nacked))


def test_inference_goes_to_a_replica_that_its_ingress_can_reach() -> None:
    driver = _pool_of_replicas(r0=1000, r1=1000, r2=500)
    driver.open("a")
    driver.submit("a1", "a")
    _finish_inference(driver, "a1", "r0")

    assert {"a2": "r0"} == _granted_replicas(driver.submit("a2", "a"))
    assert {"a2": "r1"} == _reject_by_connection(driver, "a2")
    assert {"a2": "r2"} == _reject_by_connection(driver, "a2")


def test_inference_keeps_its_queue_place_until_a_replica_is_reachable() -> None:
    driver = _pool_of_replicas(r0=1000, r1=1000)
    _submit_application(driver, "held", 980, 10)
    _submit_application(driver, "x", 50, 20)

    assert {} == _reject_by_connection(driver, "x")
    assert {"y": "r1"} == _submit_application(driver, "y", 50, 20)
    driver.handle(ev.PullAnswered("r1"))
    assert {} == _submit_application(driver, "z", 5, 4)  # z would fit r0
    assert {"x": "r0", "z": "r0"} == _granted_replicas(driver.handle(ev.InferenceCancelled("held")))


def test_replica_avoided_by_one_inference_serves_others_of_its_application() -> None:
    driver = _pool_of_replicas(r0=1000, r1=1000)
    _submit_application(driver, "held", 980, 10)
    driver.open("x")
    driver.submit("x1", "x", prompt=50, output=20)
    assert {} == _reject_by_connection(driver, "x1")
    driver.handle(ev.ReplicaLost("r1"))
    for name in ("x2", "x3"):
        driver.submit(name, "x", prompt=50, output=20)
    _submit_application(driver, "y", 50, 20)

    assert {"x2": "r1"} == _granted_replicas(driver.pull("r1", kv=100))
    driver.handle(ev.PullAnswered("r1"))
    assert {"x3": "r1", "y": "r1"} == _granted_replicas(driver.pull("r1", kv=1000))
    assert {"x1": "r0"} == _granted_replicas(driver.handle(ev.InferenceCancelled("held")))


def test_inference_that_avoids_every_replica_tries_all_again_after_two_seconds() -> None:
    """An immediate retry would use up the inference's leases before connections are back."""
    driver = _pool_of_replicas(r0=1000, r1=1000)
    _submit_application(driver, "x", 50)

    for _ in range(3):
        assert {"x": "r1"} == _reject_by_connection(driver, "x")
        assert {} == _reject_by_connection(driver, "x")
        assert {} == _granted_replicas(driver.wait(1.75))
        assert {"x": "r0"} == _granted_replicas(driver.wait(0.25))


@pytest.mark.parametrize("end", ["lost", "draining", "small"])
def test_unreachable_replica_is_avoided_while_another_can_hold_the_inference(end: str) -> None:
    """No inference may wait forever for a replica."""
    driver = _pool_of_replicas(r0=1000)
    driver.pull("r1", kv=50 if end == "small" else 1000)
    driver.handle(ev.PullAnswered("r1"))
    _submit_application(driver, "x", 50)

    assert {} == _reject_by_connection(driver, "x")
    if end != "small":
        assert {} == _granted_replicas(driver.wait(2.5))
    if end == "lost":
        driver.handle(ev.ReplicaLost("r1"))
    elif end == "draining":
        driver.pull("r1", draining=True)
    assert {"x": "r0"} == _granted_replicas(driver.wait(2.0))
    assert {} == _reject_by_connection(driver, "x")
    assert {"x": "r2"} == _granted_replicas(driver.pull("r2", kv=1000))


@pytest.fixture
def driver_with_two_waiting() -> CoreDriver:
    """Return an FCFS core of two busy replicas, where two applications wait for both.

    `first` fits beside no other, and `x` would hold 40 when `held` holds 65 of the 100 of r1.
    """
    options = {"backfill": "unlimited"}
    driver = CoreDriver(SchedulerCore("fcfs", options, timeouts=PATIENT))
    driver.pull("r1", kv=100)
    _submit_application(driver, "held", 60, 20)
    driver.pull("r0", kv=100)
    for name, prompt, output in (
        ("long", 5, 50),
        ("short", 50, 20),
        ("first", 95, 5),
        ("x", 35, 5),
    ):
        _submit_application(driver, name, prompt, output)
    assert ["first"] == driver.waiting("first")
    assert ["x"] == driver.waiting("x")
    return driver


def test_waiting_inference_is_checked_again_when_a_replica_changes(
    driver_with_two_waiting: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report examines up to sixteen waiting inferences for the reporting replica.

    The first is always examined.
    """
    asked: list[tuple[str, str]] = []
    fits = PeakAdmission.fits

    def record_check(
        rule: PeakAdmission, replica: KnownReplica, inference: Inference, kv_tokens: int
    ) -> bool:
        asked.append((inference.request_id, replica.replica_id))
        return fits(rule, replica, inference, kv_tokens)

    monkeypatch.setattr(PeakAdmission, "fits", record_check)
    driver_with_two_waiting.pull(
        "r0",
        {driver_with_two_waiting.lease_of("long"): 1, driver_with_two_waiting.lease_of("short"): 1},
        kv=100,
    )

    assert [("first", "r0"), ("first", "r1"), ("x", "r0")] == sorted(asked)


@pytest.mark.parametrize(("free", "seats"), [(40, 256), (45, 1)])
def test_waiting_inference_starts_where_missing_memory_or_seats_become_free(
    driver_with_two_waiting: CoreDriver, free: int, seats: int
) -> None:
    assert [] == granted(driver_with_two_waiting.pull("r1", None, kv=105, free=free, seats=seats))
    assert ["x"] == granted(driver_with_two_waiting.pull("r1", None, kv=105, free=45))


def test_waiting_inference_starts_under_another_admission_rule(
    driver_with_two_waiting: CoreDriver,
) -> None:
    options = (("backfill", "unlimited"),)

    assert ["x"] == granted(
        driver_with_two_waiting.handle(ev.PolicyChanged("fcfs", options, "prompt"))
    )


def test_inference_starts_when_its_prompt_is_shorter_than_estimated(
    driver_with_two_waiting: CoreDriver,
) -> None:
    assert ["x"] == granted(
        driver_with_two_waiting.pull(
            "r0", finished={driver_with_two_waiting.lease_of("short"): 20}, kv=100
        )
    )

    progress = [ev.LeaseProgress(driver_with_two_waiting.lease_of("x"), 30, 1, running=True)]
    driver_with_two_waiting.pull("r0", progress, kv=100)

    assert ["x"] == granted(driver_with_two_waiting.handle(ev.ReplicaLost("r0")))
