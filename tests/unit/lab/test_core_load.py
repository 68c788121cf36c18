"""The load that scripts/bench_core times: steady, seeded, and made of real events."""

import gc
from collections.abc import Iterator

import pytest

from justitia_ray.core.invariants import check
from justitia_ray.core.policies import LAB_POLICIES, POLICIES
from justitia_ray.lab.core_load import (
    ARRIVAL,
    COMPLETION,
    GRANT,
    KINDS,
    PULL,
    SUBMIT,
    WAITING_EACH,
    CoreLoad,
)


def build_load(applications: int = 60, seed: int = 1) -> CoreLoad:
    load = CoreLoad(applications, seed)
    load.build()
    return load


def test_tenants_of_the_core_load_are_leaves_at_depth_four() -> None:
    """Without shared parent nodes the tree would cost nothing."""
    load = CoreLoad(200, 1, leaves=81)
    load.build()
    tenants = {application.tenant for application in load.core.state.applications.values()}

    assert {tenant.count("/") for tenant in tenants} == {3}
    assert len({tenant.partition("/")[0] for tenant in tenants}) == 3
    assert 60 < len(tenants) <= 81


@pytest.mark.parametrize("beginnings", [0, 4])
def test_caching_replicas_of_the_core_load_hold_contexts(beginnings: int) -> None:
    load = CoreLoad(60, 1, beginnings=beginnings)
    load.build()
    load.run(steps=5, completions=4)
    state = load.core.state

    assert {True} == {replica.capacity.caches_prefixes for replica in state.replicas.values()}
    assert beginnings == max(len(one.prefixes) for one in state.inferences.values())
    assert any(len(replica.contexts) for replica in state.replicas.values())
    check(load.core)


@pytest.fixture(scope="module")
def collect_only_new_garbage() -> Iterator[None]:
    """Freeze other tests' objects, which cost the garbage collector half a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("collect_only_new_garbage")
@pytest.mark.parametrize("policy", [*POLICIES, *LAB_POLICIES])
def test_measured_window_keeps_the_number_of_live_applications(policy: str) -> None:
    """A shrinking load would make the later windows and policies look fast.

    The core leaves no reference cycles: ended applications are freed at once, so that a scheduler
    needs no full collections, which take 0.1 s and more with 10,000 live applications.
    """
    load = build_load()
    load.change_policy(policy, {})
    gc.collect()
    load.run(steps=5, completions=4)

    assert 0 == gc.collect()
    check(load.core)
    assert 60 * WAITING_EACH == load.waiting()
    assert set(KINDS) == {kind for kind, timed in load.timings.items() if timed.elapsed_ns}


def test_each_inference_of_an_event_counts_as_a_decision() -> None:
    """The target is per decision, and too low a count would make decisions look slow."""
    load = build_load()
    load.run(steps=1, completions=3)
    timings = load.timings

    assert [2, 2, 2] == list(timings[COMPLETION].decisions), "a completion and a grant each"
    assert 150 < timings[PULL].decisions[0] < 512, "a report of each lease, and the grants"
    assert 150 < timings[GRANT].decisions[0] <= 256, "the seats of the replica that joined"
    assert {1} == set(timings[ARRIVAL].decisions) | set(timings[SUBMIT].decisions)


def test_same_seed_makes_the_same_events_of_the_core_load() -> None:
    """Repeats and machines are compared on the same work."""

    def count_decisions(seed: int) -> dict[str, list[int]]:
        load = build_load(seed=seed)
        load.run(steps=4, completions=2)
        return {kind: list(timed.decisions) for kind, timed in load.timings.items()}

    assert count_decisions(1) == count_decisions(1)
    assert count_decisions(1) != count_decisions(2)
