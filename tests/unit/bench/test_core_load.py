"""The crowd that scripts/bench_core times: steady, seeded, and made of real events."""

import gc
from array import array
from collections.abc import Iterator

import pytest

from justitia_ray.bench.core_linear import LinearLoad, LinearScan
from justitia_ray.bench.core_load import (
    ARRIVAL,
    COMPLETION,
    GRANT,
    KINDS,
    PULL,
    SUBMIT,
    WAITING_EACH,
    CoreLoad,
    Timings,
)
from justitia_ray.core.invariants import check
from justitia_ray.core.policies import POLICIES


def built(applications: int = 60, seed: int = 1) -> CoreLoad:
    load = CoreLoad(applications, seed)
    load.build()
    return load


@pytest.fixture(scope="module")
def only_new_garbage() -> Iterator[None]:
    """Keep the collector off what other tests imported: it takes half a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("policy", POLICIES)
def test_window_leaves_the_crowd_as_it_was(policy: str) -> None:
    """A crowd that shrank would make the later windows, and the later policies, look fast.

    Nor does a core leave cycles: what ends is freed at once, so that a scheduler may do without
    full collections, which take 0.1 s and more with 10,000 live applications.
    """
    load = built()
    load.change_policy(policy, {})
    gc.collect()
    load.run(steps=5, completions=4)

    assert 0 == gc.collect()
    check(load.core)
    assert 60 * WAITING_EACH == load.waiting()
    assert set(KINDS) == {kind for kind, timed in load.timings.items() if timed.elapsed_ns}


def test_decisions_of_an_event_are_what_it_brought() -> None:
    """The target is per decision: one missed in the count would make the others look slow."""
    load = built()
    load.run(steps=1, completions=3)
    timings = load.timings

    assert [2, 2, 2] == list(timings[COMPLETION].decisions), "a completion and a grant each"
    assert 150 < timings[PULL].decisions[0] < 512, "a report of each lease, and the grants"
    assert 150 < timings[GRANT].decisions[0] <= 256, "the seats of the replica that joined"
    assert {1} == set(timings[ARRIVAL].decisions) | set(timings[SUBMIT].decisions)


def test_same_seed_makes_the_same_events() -> None:
    """Repeats and machines are compared on the same work."""

    def decisions(seed: int) -> dict[str, list[int]]:
        load = built(seed=seed)
        load.run(steps=4, completions=2)
        return {kind: list(timed.decisions) for kind, timed in load.timings.items()}

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)


def test_time_is_shared_by_the_decisions() -> None:
    """3,000 ns over 3 decisions, and 500 ns for one."""
    timed = Timings(array("q", [3000, 500]), array("q", [3, 1]))

    assert [1.0, 0.5] == timed.us_a_decision()


def test_scan_takes_the_least_counter() -> None:
    """It must decide as VTC does, or its time would be that of something else."""
    queue = LinearScan()
    for client, counter in (("a", 5.0), ("b", 3.0), ("c", 9.0)):
        queue.add(client, counter, [4, 4])

    assert ["b", "a", "b", "a"] == queue.grant(4), "3 + 4 = 7 puts b behind a; then 7 against 9"
    assert ["c", "c"] == queue.grant(4)
    assert {"a": 13.0, "b": 11.0, "c": 17.0} == queue.counters


def test_scan_lifts_a_client_that_had_nothing_waiting() -> None:
    """To the least of those that have; alone, or while it has some, it is left where it is."""
    queue = LinearScan()
    queue.submit("a", 4)
    queue.serve("a", 10)
    queue.submit("b", 4)
    queue.submit("b", 4)

    assert {"a": 20.0, "b": 20.0} == queue.counters
    queue.leave("a")
    assert ["b", "b"] == queue.grant(3)
    queue.submit("b", 4)
    assert {"b": 28.0} == queue.counters


def test_scan_sees_as_many_clients_all_the_while() -> None:
    """Its time is proportional to them."""
    load = LinearLoad(30, seed=1)
    load.run(batches=10)

    assert 30 == len(load.queue.counters)
    assert 200 == sum(load.timings[GRANT].decisions)
    assert load.timings[ARRIVAL].elapsed_ns
    load.forget()
    assert not load.timings[GRANT].elapsed_ns
