"""Placement of the first in order: room, then locality, then free KV; and lines per replica."""

from collections.abc import Sequence

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.admission import ADMISSIONS, PeakAdmission
from justitia_ray.core.entities import Inference, KnownReplica
from tests.core_driver import PATIENT, CoreDriver, granted


def _places(actions: Sequence[Action]) -> dict[str, str]:
    """Return the replica of each request granted."""
    return {a.request_id: a.replica_id for a in actions if isinstance(a, Grant)}


def _pool(admission: str = "peak", **kv_tokens: int) -> CoreDriver:
    """Return an FCFS core whose replicas of these sizes have pulled."""
    driver = CoreDriver(SchedulerCore("fcfs", admission=admission, timeouts=PATIENT))
    for name, tokens in kv_tokens.items():
        driver.pull(name, kv=tokens)
    return driver


def _ask(driver: CoreDriver, name: str, prompt: int, output: int = 10) -> dict[str, str]:
    """Open an application with one inference."""
    driver.open(name)
    return _places(driver.submit(name, name, prompt=prompt, output=output))


def _serve(driver: CoreDriver, request_id: str, replica_id: str, kv: int = 1000) -> None:
    driver.pull(replica_id, finished={driver.lease_of(request_id): 10}, kv=kv)


def test_replica_that_served_the_application_comes_before_a_freer_one() -> None:
    """The earlier replica may have the prefix of the prompt in its cache."""
    driver = _pool(r0=1000)
    driver.open("a")
    driver.submit("a1", "a")
    _serve(driver, "a1", "r0", kv=1000)
    driver.pull("r1", kv=5000)

    assert {"a2": "r0"} == _places(driver.submit("a2", "a"))
    assert {"b": "r1"} == _ask(driver, "b", 10)


def test_fan_out_is_spread_until_its_first_inference_has_finished() -> None:
    """No replica has its prefix yet, and one replica alone would be slower for all of it."""
    driver = _pool(r0=1000, r1=1000)
    driver.open("a")
    places = [_places(driver.submit(f"a{n}", "a"))[f"a{n}"] for n in range(4)]

    assert ["r0", "r1", "r0", "r1"] == places


def test_locality_delays_no_inference() -> None:
    """A replica without room is no candidate, even with the context; then both have served it."""
    driver = _pool(r0=100)
    driver.open("a")
    driver.submit("a1", "a")
    _serve(driver, "a1", "r0", kv=100)
    _ask(driver, "b", 60, 20)
    driver.pull("r1", kv=1000)

    assert {"a2": "r1"} == _places(driver.submit("a2", "a", prompt=30, output=20))
    _serve(driver, "a2", "r1", kv=1000)
    assert ["r0", "r1"] == list(driver.application("a").replicas)
    # r1 is the freer of the two
    assert {"a3": "r1"} == _places(driver.submit("a3", "a", prompt=5, output=2))


def test_next_turn_goes_where_the_last_one_was_served() -> None:
    """The last replica has the whole context; the other, freer one an earlier part of it."""
    driver = _pool(r0=100)
    driver.open("a")
    driver.submit("a1", "a")
    _serve(driver, "a1", "r0", kv=100)
    _ask(driver, "b", 60, 20)
    driver.pull("r1", kv=1000)
    driver.submit("a2", "a", prompt=30, output=20)
    _serve(driver, "a2", "r1", kv=1000)
    _ask(driver, "c", 900, 20)  # on r1: it has less left than r0, which `b` leaves
    _serve(driver, "b", "r0", kv=100)

    assert {"a3": "r1"} == _places(driver.submit("a3", "a", prompt=40, output=2))
    # A running sibling makes it one of several calls, which are spread as before.
    assert {"a4": "r0"} == _places(driver.submit("a4", "a", prompt=40, output=2))


@pytest.mark.parametrize(
    ("pulls_again", "connected", "expected"),
    [(True, True, "r0"), (False, True, "r1"), (True, False, "r1")],
)
def test_next_turn_does_not_leave_its_context_for_the_time_between_two_pulls(
    *, pulls_again: bool, connected: bool, expected: str
) -> None:
    """The scheduler answers each pull with news, and the next one comes milliseconds later."""
    driver = _pool()
    driver.pull("r0", connected=connected)
    driver.open("a")
    driver.submit("a1", "a")
    driver.pull("r1", connected=True)
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, connected=connected)
    driver.handle(ev.PullAnswered("r0", pulls_again=pulls_again))

    assert {"a2": expected} == _places(driver.submit("a2", "a"))
    assert {"b": "r1"} == _ask(driver, "b", 10)  # other applications go where a pull waits


def test_replica_without_a_recent_pull_gets_no_turn() -> None:
    """A replica may have stopped with its connection open."""
    driver = _pool()
    driver.pull("r0", connected=True)
    driver.open("a")
    driver.submit("a1", "a")
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, connected=True)
    driver.handle(ev.PullAnswered("r0", pulls_again=True))
    driver.wait(0.5)
    driver.pull("r1", connected=True)

    assert {"a2": "r1"} == _places(driver.submit("a2", "a"))


def test_replica_that_serves_again_is_the_last() -> None:
    driver = _pool(r0=1000, r1=1000)
    driver.open("a")
    for name in ("a1", "a2", "a3"):
        driver.submit(name, "a")
    for name in ("a2", "a1", "a3"):
        _serve(driver, name, {"a1": "r0", "a2": "r1", "a3": "r0"}[name])

    assert ["r1", "r0"] == list(driver.application("a").replicas)


def test_memory_that_no_lease_explains_is_not_free() -> None:
    """KV of an aborted call is not free, neither for the choice nor for admission."""
    driver = _pool()
    driver.pull("r0", kv=1000, free=300)
    driver.pull("r1", kv=500)

    assert {"a": "r1"} == _ask(driver, "a", 10)


def test_replicas_that_are_gone_are_forgotten() -> None:
    """A long-lived application on changing replicas must not fill the store."""
    driver = _pool(r0=1000)
    driver.open("a")
    driver.submit("a1", "a")
    _serve(driver, "a1", "r0", kv=1000)
    driver.handle(ev.ReplicaLost("r0"))
    for number in (2, 3):
        driver.submit(f"a{number}", "a")
        driver.pull("r1", kv=1000)
        _serve(driver, f"a{number}", "r1", kv=1000)

        assert ["r1"] == list(driver.application("a").replicas)


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_large_one_waits_for_the_replica_that_can_hold_it(admission: str) -> None:
    """On the small one, even alone, it would exceed the memory."""
    driver = _pool(admission, small=100, large=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _ask(driver, "giant", 300, 100)
    assert ["giant"] == granted(driver.pull("large", kv=1000))


def test_prompt_that_fits_now_is_not_enough_where_the_rest_will_not() -> None:
    """Under `prompt` an engine preempts others for room, and here that could not be enough."""
    driver = _pool("prompt", small=100, large=1000)
    _ask(driver, "a", 980, 10)

    assert {"b": "small"} == _ask(driver, "b", 20, 10)
    assert {} == _ask(driver, "long", 30, 90)
    assert {"long": "large"} == _places(driver.handle(ev.InferenceCancelled("a")))


def test_small_inferences_start_on_replicas_too_small_for_the_first() -> None:
    """Passing costs the first no time here, and the small replica would stand idle."""
    driver = _pool(small=100, large=1000)
    _ask(driver, "held", 800, 100)

    assert {} == _ask(driver, "giant", 300, 100)
    assert {"b": "small"} == _ask(driver, "b", 40, 10)
    assert {} == _ask(driver, "c", 60, 10)  # no room on small; in line for large, behind giant
    assert {} == _ask(driver, "d", 10, 10)  # would fit both, and c is in line for both
    assert 0 == driver.inference("giant").passes

    assert ["giant", "c", "d"] == granted(driver.handle(ev.InferenceCancelled("held")))


def test_inference_too_large_for_every_replica_runs_alone_on_the_largest() -> None:
    """An inference that waited for ever would block all later ones."""
    driver = _pool(small=100, large=1000)
    _ask(driver, "held", 900, 50)

    assert {} == _ask(driver, "giant", 3000, 100)
    assert {"giant": "large"} == _places(driver.handle(ev.InferenceCancelled("held")))
    assert {"b": "small"} == _ask(driver, "b", 10)


def test_seats_decide_which_of_two_is_the_larger() -> None:
    """Five sequences on replicas of three and four seats run on the latter, in turns."""
    driver = _pool()
    driver.pull("r0", kv=100, seats=3)
    driver.pull("r1", kv=100, seats=4)
    driver.open("a")

    assert {"x": "r1"} == _places(driver.submit("x", "a", choices=5))


@pytest.mark.parametrize("end", ["lost", "draining"])
def test_next_larger_replica_takes_the_giant_when_the_largest_leaves(end: str) -> None:
    """No inference may wait for a replica that takes no work any more."""
    driver = _pool(small=100)
    driver.pull("large", kv=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _ask(driver, "giant", 300, 100)

    actions = {
        "lost": lambda: driver.handle(ev.ReplicaLost("large")),
        "draining": lambda: driver.pull("large", kv=1000, draining=True),
    }[end]()

    assert {"giant": "small"} == _places(actions)


def test_giant_waits_for_a_larger_replica_that_has_joined() -> None:
    """A new replica may be busy on arrival: the largest replica is now a larger one."""
    driver = _pool(small=100)
    _ask(driver, "held", 50)
    driver.pull("large", kv=1000)
    driver.handle(ev.PullAnswered("large"))

    assert {} == _ask(driver, "giant", 300, 100)
    assert [] == granted(driver.handle(ev.InferenceCancelled("held")))
    assert {"giant": "large"} == _places(driver.pull("large", kv=1000))


def test_joining_replica_gets_waiting_inferences() -> None:
    """A replica that drains keeps its running inferences and gets no new ones."""
    driver = _pool(r0=100)
    _ask(driver, "a", 60, 20)
    _ask(driver, "b", 60, 20)

    assert {"b": "r1"} == _places(driver.pull("r1", kv=100))

    driver.pull("r1", {driver.lease_of("b"): 3}, kv=100, draining=True)
    _ask(driver, "c", 60, 20)

    assert [] == granted(driver.pull("r1", finished={driver.lease_of("b"): 20}, kv=100))
    assert ["c"] == granted(driver.pull("r0", finished={driver.lease_of("a"): 20}, kv=100))


def test_inferences_of_a_lost_replica_go_to_others_in_order() -> None:
    """Requeued inferences are first in line, before later ones."""
    driver = _pool(r0=100)
    _ask(driver, "a", 60, 20)
    driver.pull("r1", kv=100)
    _ask(driver, "b", 60, 20)
    _ask(driver, "c", 60, 20)

    assert [] == granted(driver.handle(ev.ReplicaLost("r0")))
    assert ["a"] == granted(driver.handle(ev.InferenceCancelled("b")))
    assert ["c"] == driver.waiting("c")


def _cut_off(driver: CoreDriver, request_id: str) -> dict[str, str]:
    """Nack a leased inference because its ingress has no connection to its replica."""
    nacked = ev.LeaseNacked(driver.lease_of(request_id), ev.NackReason.CONNECTION)
    return _places(driver.handle(nacked))


def test_inference_goes_to_a_replica_that_its_ingress_can_reach() -> None:
    """The other replica has served its application and is freer; it is not leased there again."""
    driver = _pool(r0=1000, r1=1000, r2=500)
    driver.open("a")
    driver.submit("a1", "a")
    _serve(driver, "a1", "r0")

    assert {"a2": "r0"} == _places(driver.submit("a2", "a"))
    assert {"a2": "r1"} == _cut_off(driver, "a2")
    assert {"a2": "r2"} == _cut_off(driver, "a2")


def test_inference_waits_at_its_place_for_the_replicas_that_it_can_reach() -> None:
    """Where it cannot run others start; where it can, no other passes it."""
    driver = _pool(r0=1000, r1=1000)
    _ask(driver, "held", 980, 10)
    _ask(driver, "x", 50, 20)

    assert {} == _cut_off(driver, "x")
    assert {"y": "r1"} == _ask(driver, "y", 50, 20)
    driver.handle(ev.PullAnswered("r1"))
    assert {} == _ask(driver, "z", 5, 4)  # z would fit r0
    assert {"x": "r0", "z": "r0"} == _places(driver.handle(ev.InferenceCancelled("held")))


def test_application_of_an_inference_that_avoids_a_replica_keeps_its_turn_there() -> None:
    """Another of its inferences starts there before those of later applications."""
    driver = _pool(r0=1000, r1=1000)
    _ask(driver, "held", 980, 10)
    driver.open("x")
    driver.submit("x1", "x", prompt=50, output=20)
    assert {} == _cut_off(driver, "x1")
    driver.handle(ev.ReplicaLost("r1"))
    for name in ("x2", "x3"):
        driver.submit(name, "x", prompt=50, output=20)
    _ask(driver, "y", 50, 20)

    assert {"x2": "r1"} == _places(driver.pull("r1", kv=100))
    driver.handle(ev.PullAnswered("r1"))
    assert {"x3": "r1", "y": "r1"} == _places(driver.pull("r1", kv=1000))
    assert {"x1": "r0"} == _places(driver.handle(ev.InferenceCancelled("held")))


def test_inference_that_can_reach_no_replica_tries_all_again_after_two_seconds() -> None:
    """The connections may be back; an immediate retry would use up its leases."""
    driver = _pool(r0=1000, r1=1000)
    _ask(driver, "x", 50)

    for _ in range(3):
        assert {"x": "r1"} == _cut_off(driver, "x")
        assert {} == _cut_off(driver, "x")
        assert {} == _places(driver.wait(1.75))
        assert {"x": "r0"} == _places(driver.wait(0.25))


@pytest.mark.parametrize("end", ["lost", "draining", "small"])
def test_replica_is_avoided_only_while_another_could_hold_the_inference(end: str) -> None:
    """No inference may wait for ever; a new replica is preferred to the one that failed."""
    driver = _pool(r0=1000)
    driver.pull("r1", kv=50 if end == "small" else 1000)
    driver.handle(ev.PullAnswered("r1"))
    _ask(driver, "x", 50)

    assert {} == _cut_off(driver, "x")
    if end != "small":
        assert {} == _places(driver.wait(2.5))
    if end == "lost":
        driver.handle(ev.ReplicaLost("r1"))
    elif end == "draining":
        driver.pull("r1", draining=True)
    assert {"x": "r0"} == _places(driver.wait(2.0))
    assert {} == _cut_off(driver, "x")
    assert {"x": "r2"} == _places(driver.pull("r2", kv=1000))


@pytest.fixture
def lined_up() -> CoreDriver:
    """Return an FCFS core of two busy replicas, with two applications in line for both.

    `first` fits beside no other, and `x` would hold 40 when `held` holds 65 of the 100 of r1.
    """
    options = {"backfill": "unlimited"}
    driver = CoreDriver(SchedulerCore("fcfs", options, timeouts=PATIENT))
    driver.pull("r1", kv=100)
    _ask(driver, "held", 60, 20)
    driver.pull("r0", kv=100)
    for name, prompt, output in (
        ("long", 5, 50),
        ("short", 50, 20),
        ("first", 95, 5),
        ("x", 35, 5),
    ):
        _ask(driver, name, prompt, output)
    assert ["first"] == driver.waiting("first")
    assert ["x"] == driver.waiting("x")
    return driver


def test_waiting_inference_is_checked_again_against_changed_replicas(
    lined_up: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report examines up to sixteen, for the reporting replica.

    The first is always examined.
    """
    asked: list[tuple[str, str]] = []
    fits = PeakAdmission.fits

    def count(
        rule: PeakAdmission, replica: KnownReplica, inference: Inference, kv_tokens: int
    ) -> bool:
        asked.append((inference.request_id, replica.replica_id))
        return fits(rule, replica, inference, kv_tokens)

    monkeypatch.setattr(PeakAdmission, "fits", count)
    lined_up.pull("r0", {lined_up.lease_of("long"): 1, lined_up.lease_of("short"): 1}, kv=100)

    assert [("first", "r0"), ("first", "r1"), ("x", "r0")] == sorted(asked)


@pytest.mark.parametrize(("free", "seats"), [(40, 256), (45, 1)])
def test_waiting_inference_starts_where_missing_memory_or_seats_become_free(
    lined_up: CoreDriver, free: int, seats: int
) -> None:
    """A larger r1 has five unaccounted tokens, of an aborted call; or it has a free seat."""
    assert [] == granted(lined_up.pull("r1", None, kv=105, free=free, seats=seats))
    assert ["x"] == granted(lined_up.pull("r1", None, kv=105, free=45))


def test_waiting_inference_starts_under_another_admission_rule(lined_up: CoreDriver) -> None:
    """By vLLM's rule: 60 and 35 and a token for each of the two."""
    options = (("backfill", "unlimited"),)

    assert ["x"] == granted(lined_up.handle(ev.PolicyChanged("fcfs", options, "prompt")))


def test_waiting_inference_starts_when_its_prompt_was_shorter(lined_up: CoreDriver) -> None:
    """The inference ran on r0, which counted five tokens less, and was lost."""
    assert ["x"] == granted(lined_up.pull("r0", finished={lined_up.lease_of("short"): 20}, kv=100))

    progress = [ev.LeaseProgress(lined_up.lease_of("x"), 30, 1, running=True)]
    lined_up.pull("r0", progress, kv=100)

    assert ["x"] == granted(lined_up.handle(ev.ReplicaLost("r0")))
