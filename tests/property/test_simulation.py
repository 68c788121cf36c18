"""The simulator, which jumps over equal iterations, agrees with executing every iteration.

All times are multiples of 1/32 s, so that their sums are exact.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.policies import LAB_POLICIES, POLICIES
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.kv_memory import KvMemory
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from tests.oracles.stepping_engine import SteppingEngine
from tests.property.profiles import examples

_KV_TOKENS = 40
_OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("justitia", {"backfill": 2}),
    ("vtc", {"backfill": "unlimited"}),
    ("justitia", {"fairness": "tenant"}),
    ("vtc", {"unit": "tenant"}),
    ("drr", {"unit": "tenant", "quantum": 20}),
    ("rpm", {"requests_per_minute": 1}),
]


@st.composite
def _applications(
    draw: st.DrawFn, largest: int = 27, most_prompt: int = 15
) -> list[WorkloadApplication]:
    weights = {"t0": 1.0, "t1": draw(st.sampled_from([0.5, 1.0, 4.0]))}
    applications = []
    for number in range(draw(st.integers(1, 7))):
        inferences: list[WorkloadInference] = []
        for index in range(draw(st.integers(1, 5))):
            before = [i.inference_id for i in inferences]
            after = (
                draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
            )
            prompt = draw(st.integers(1, min(most_prompt, largest - 1)))
            inferences.append(
                WorkloadInference(
                    str(index),
                    prompt,
                    draw(st.integers(1, largest - prompt)),
                    tuple(after),
                    draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 6.0])),
                )
            )
        tenant = draw(st.sampled_from(["t0", "t1"]))
        arrived_at_s = draw(st.integers(0, 40)) / 2
        applications.append(
            WorkloadApplication(
                f"a{number}", "c", arrived_at_s, tuple(inferences), tenant, weights[tenant]
            )
        )
    return applications


_ENGINES = st.builds(
    EngineProfile,
    kv_tokens=st.just(_KV_TOKENS),
    block_size=st.sampled_from([1, 1, 4]),
    max_num_seqs=st.sampled_from([2, 256]),
    iteration=st.builds(
        IterationCost,
        base_s=st.just(1.0),
        per_sequence_s=st.sampled_from([0.0, 0.125]),
        per_context_token_s=st.sampled_from([0.0, 1 / 32]),
        per_prefill_token_s=st.sampled_from([0.0, 0.25]),
    ),
    admission=st.sampled_from(["prompt", "prompt", "peak"]),
)


def _assert_equal_to_stepping(
    applications: list[WorkloadApplication],
    engine: EngineProfile,
    policy: str,
    options: dict[str, object],
    replicas: int,
) -> None:
    result = simulate(applications, RunSettings(engine, policy, options, replicas=replicas))
    stepping = SteppingEngine(
        policy,
        engine.kv_tokens,
        replicas=replicas,
        iteration_s=engine.iteration.base_s,
        prefill_s_per_token=engine.iteration.per_prefill_token_s,
        per_sequence_s=engine.iteration.per_sequence_s,
        per_context_token_s=engine.iteration.per_context_token_s,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        admission=engine.admission,
        options=options,
    )
    stepping.run(applications)

    for row in result.inferences:
        assert stepping.rows[f"{row.application_id}/{row.inference_id}"] == row
    for application in result.applications:
        ended = stepping.ended[application.application_id]
        assert ended.ended_at == application.finished_at_s
        assert ended.virtual_finish_time == pytest.approx(application.virtual_finish_time)
    assert stepping.most_held <= engine.kv_tokens


_ORDERED_BY_EVENTS = sorted({*POLICIES, *LAB_POLICIES} - {"justitia-guarded"})
"""Policies under which no application can become urgent between two simulated events."""


@pytest.mark.parametrize("policy", _ORDERED_BY_EVENTS)
@examples(16)
@given(applications=_applications(), engine=_ENGINES, replicas=st.integers(1, 3))
def test_event_jumping_simulation_equals_a_simulation_of_every_iteration(
    policy: str, applications: list[WorkloadApplication], engine: EngineProfile, replicas: int
) -> None:
    """Start, first token and end of every inference are equal."""
    _assert_equal_to_stepping(applications, engine, policy, {}, replicas)


@pytest.mark.parametrize(("policy", "options"), _OPTIONS)
@examples(16)
@given(applications=_applications(), engine=_ENGINES, replicas=st.integers(1, 2))
def test_event_jumping_simulation_with_options_equals_every_iteration(
    policy: str,
    options: dict[str, object],
    applications: list[WorkloadApplication],
    engine: EngineProfile,
    replicas: int,
) -> None:
    """The options let later applications overtake, delay clients, or share by tenants."""
    _assert_equal_to_stepping(applications, engine, policy, options, replicas)


@st.composite
def _any_run(draw: st.DrawFn) -> tuple[list[WorkloadApplication], RunSettings]:
    """Return a run with random options, including those that the stepping engine lacks."""
    knobs: dict[str, list[Any]] = {
        "block_size": [1, 4],
        "max_num_seqs": [2, 256],
        "prefill": ["mixed", "chunked", "separate"],
        "max_batched_tokens": [2, 16],
        "admission": ["prompt", "peak"],
        "admit_every": [1, 3],
        "overflow": ["swap", "recompute"],
        "reserved_tokens_per_client": [0, 1],
        "last_token_held": [True, False],
        "prefix_caching": [False, True],
        "speedup": [1.0, 2.0],
    }
    cost = IterationCost(
        1.0,
        per_sequence_s=draw(st.sampled_from([0.0, 0.125])),
        per_context_token_s=draw(st.sampled_from([0.0, 1 / 32])),
        per_prefill_token_s=draw(st.sampled_from([0.0, 0.25])),
        prefill_tile_tokens=draw(st.sampled_from([1, 4])),
        prefill_base_s=draw(st.sampled_from([0.0, 0.5])),
    )
    drawn = {name: draw(st.sampled_from(values)) for name, values in knobs.items()}
    engine = EngineProfile(_KV_TOKENS, iteration=cost, **drawn)
    applications = draw(_applications(KvMemory(engine).largest, most_prompt=_KV_TOKENS))
    run = RunSettings(
        engine,
        draw(st.sampled_from(["justitia", "vtc", "fcfs"])),
        replicas=draw(st.integers(1, 3)),
        prediction=draw(st.sampled_from(["oracle", "noisy:3", "noisy:10"])),
        report_interval_s=draw(st.sampled_from([0.0, 0.0, 1.0, 2.5])),
        sample_kv=True,
    )
    return applications, run


def _most_held_tokens(result: RunResult) -> int:
    held: dict[str, int] = {}
    most: dict[float, int] = {}
    for at, application_id, tokens in result.kv_samples:
        held[application_id] = tokens
        most[at] = sum(held.values())
    assert not any(held.values())
    return max(most.values(), default=0)


@pytest.mark.slow
@examples(160)
@given(_any_run())
def test_each_inference_runs_once_and_completely_on_any_engine(
    drawn: tuple[list[WorkloadApplication], RunSettings],
) -> None:
    """No inference is lost, repeated, cut or early, and KV use stays within the memory.

    This holds also with wrong predictions, late reports and preempted work.
    """
    applications, run = drawn
    result = simulate(applications, run)
    iteration_s = run.engine.iteration.base_s / run.engine.speedup

    names = [(a.application_id, i.inference_id) for a in applications for i in a.inferences]
    assert names == [(row.application_id, row.inference_id) for row in result.inferences]
    for row in result.inferences:
        assert row.dispatched_at_s is not None
        assert row.first_token_at_s is not None
        assert row.finished_at_s is not None
        assert row.submitted_at_s <= row.dispatched_at_s <= row.first_token_at_s
        decoded_s = row.finished_at_s - row.first_token_at_s
        assert decoded_s >= (row.output_tokens - 1) * iteration_s
    for application, told in zip(applications, result.applications, strict=True):
        assert told.outcome == "finished"
        if run.engine.last_token_held:
            assert application.cost() == pytest.approx(told.kv_token_time)
    assert _most_held_tokens(result) <= _KV_TOKENS * run.replicas
    assert simulate(applications, run) == result
