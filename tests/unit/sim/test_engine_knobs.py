"""Effect of each option of an engine profile on a run, computed by hand."""

from typing import Any

import pytest

from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation, simulate
from tests.unit.sim.small_run import application_of, engine, simulated_times


@pytest.mark.parametrize(
    ("admit_every", "a", "b"),
    [(1, (0.0, 1.0, 4.0), (2.0, 3.0, 4.0)), (2, (0.0, 1.0, 3.0), (3.0, 4.0, 5.0))],
)
def test_separate_prefill_stops_running_sequences_and_makes_a_first_token(
    admit_every: int, a: tuple[float, ...], b: tuple[float, ...]
) -> None:
    profile = engine(
        100,
        prefill="separate",
        admit_every=admit_every,
        prefill_base_s=0.5,
        per_prefill_token_s=0.25,
    )

    assert {"a/0": a, "b/0": b} == simulated_times(
        [application_of("a", (2, 3)), application_of("b", (2, 2), at=1.25)], profile
    )


def test_separate_prefill_limits_the_tokens_after_its_first_prompt() -> None:
    profile = engine(100, prefill="separate", max_batched_tokens=4, per_prefill_token_s=0.25)
    found = simulated_times([application_of("a", (5, 9), (3, 1), (3, 1))], profile)

    assert [(0.0, 1.25), (2.25, 3.0), (4.0, 4.75)] == [found[f"a/{n}"][:2] for n in range(3)]


def test_chunked_prefill_uses_the_token_budget_left_by_running_sequences() -> None:
    profile = engine(100, prefill="chunked", max_batched_tokens=3, per_prefill_token_s=0.25)

    assert {"a/0": (0.0, 3.25, 6.0), "b/0": (3.25, 6.0, 6.0)} == simulated_times(
        [application_of("a", (5, 3)), application_of("b", (3, 1), at=2.0)], profile
    )


@pytest.mark.parametrize(("overflow", "end"), [("swap", 7.5), ("recompute", 9.5)])
def test_recomputation_takes_the_time_of_prompt_and_generated_tokens(
    overflow: str, end: float
) -> None:
    profile = engine(10, overflow=overflow, per_prefill_token_s=0.5)

    assert {"a/0": (0.0, 4.5, 6.5), "a/1": (0.0, 4.5, end)} == simulated_times(
        [application_of("a", (4, 3), (3, 2))], profile
    )


@pytest.mark.parametrize(("overflow", "recomputed"), [("swap", 0), ("recompute", 4)])
def test_scheduler_learns_of_recomputed_tokens(overflow: str, recomputed: int) -> None:
    """The tenant pays for the prompt and the token that are computed again."""
    profile = engine(10, overflow=overflow, per_prefill_token_s=0.5)
    run = Simulation([application_of("a", (4, 3), (3, 2))], RunSettings(profile, with_prefill=True))
    run.run(lambda ended: None)
    counters = run._core.state.counters

    assert (counters.forgiven, counters.prefill) == (5 * recomputed, 5 * (7 + recomputed))


def test_peak_admission_starts_a_sequence_that_fits_after_an_end() -> None:
    found = simulated_times([application_of("a", (3, 2), (2, 2))], engine(8, admission="peak"))

    assert (1.0, 2.0, 3.0) == found["a/1"]


def test_peak_admission_delays_a_sequence_whose_peak_does_not_fit() -> None:
    found = simulated_times([application_of("a", (4, 3), (3, 3))], engine(12, admission="peak"))

    assert {"a/0": (0.0, 1.0, 3.0), "a/1": (1.0, 2.0, 4.0)} == found


def test_memory_peak_is_not_recomputed_at_each_iteration() -> None:
    applications = [application_of(name, *[(5, 40)] * 6, tenant=name) for name in "ab"]
    settings = RunSettings(engine(60, admission="peak"), "vtc", {"unit": "tenant"})
    result = simulate(applications, settings)

    assert 370.0 == result.makespan_s
    assert result.decisions < 100


@pytest.mark.parametrize(("kv_tokens", "b"), [(10, (1.5, 2.0, 4.0)), (9, (2.5, 3.0, 5.0))])
def test_memory_peak_includes_the_first_token_of_a_separate_prefill(
    kv_tokens: int, b: tuple[float, ...]
) -> None:
    profile = engine(kv_tokens, prefill="separate", admission="peak", prefill_base_s=0.5)
    applications = [application_of("a", (3, 3)), application_of("b", (2, 3), at=1.0)]

    assert 0 == simulate(applications, RunSettings(profile, "fcfs")).preemptions
    assert b == simulated_times(applications, profile)["b/0"]


def test_kv_memory_is_allocated_in_whole_blocks() -> None:
    """The memory of 16 tokens has four blocks.

    M = 16 in blocks of 4: a/0 holds 8 tokens from 5 to 8, a/1 too; from 9 on 12.

    The core counts a block less one token as waste: a/0 at 1 s 6 + 3, a/1 5 + 3, 2 more: 19. So a/1
    waits for the end. With blocks of 1: 5 + 5 + 1 + 1 = 12.
    """
    applications = [application_of("a", (5, 4), (5, 1))]

    assert 4.0 == simulated_times(applications, engine(16, block_size=4))["a/1"][0]
    assert 0.0 == simulated_times(applications, engine(16))["a/1"][0]


@pytest.mark.parametrize(("each", "third"), [(2, 0.0), (4, 1.0)])
def test_kv_memory_is_reserved_for_each_running_client(each: int, third: float) -> None:
    """Memory for each running client's next tokens cannot be used by new sequences.

    M = 20: c/0 needs 8 + 4 + 1 + 2 = 15, beside two clients' reserve: 16 are left, or 12.
    """
    applications = [
        application_of("a", (4, 1), tenant="t0"),
        application_of("b", (4, 1), tenant="t1"),
        application_of("c", (4, 1), tenant="t1"),
    ]
    found = simulated_times(applications, engine(20, reserved_tokens_per_client=each))

    assert [0.0, 0.0, third] == [found[name][0] for name in ("a/0", "b/0", "c/0")]


def test_kv_memory_is_reserved_for_each_new_client() -> None:
    applications = [application_of(name, (2, 1), tenant=name) for name in "abc"]
    found = simulated_times(applications, engine(14, reserved_tokens_per_client=4))

    assert [0.0, 0.0, 1.0] == [found[f"{name}/0"][0] for name in "abc"]


@pytest.mark.parametrize(("caching", "end"), [(True, 6.0), (False, 9.0)])
def test_prompt_that_continues_a_context_costs_only_its_new_tokens(
    caching: bool, end: float
) -> None:
    profile = engine(10, prefix_caching=caching, per_prefill_token_s=0.5)
    found = simulated_times([application_of("a", (4, 2), (8, 1, ("0",), 0.0))], profile)

    assert (4.0, end, end) == found["a/1"]


@pytest.mark.parametrize(
    ("knobs", "first", "end"),
    [
        ({"per_prefill_token_s": 0.25, "prefill_tile_tokens": 4}, 3.0, 4.0),
        ({"per_prefill_token_s": 0.25, "prefill_base_s": 0.5}, 2.75, 3.75),
        ({"per_sequence_s": 0.5}, 1.5, 3.0),
        ({"per_context_token_s": 0.25}, 2.25, 4.75),
        ({"speedup": 2.0, "per_context_token_s": 0.25}, 1.125, 2.375),
    ],
)
def test_iteration_time_depends_on_its_tokens_and_contexts(
    knobs: dict[str, Any], first: float, end: float
) -> None:
    assert {"a/0": (0.0, first, end)} == simulated_times(
        [application_of("a", (5, 2))], engine(100, **knobs)
    )
