"""The simulator's jumps change nothing: against an engine that goes through every iteration."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core.policies import POLICIES
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from tests.oracles.stepping_engine import SteppingEngine

_KV_TOKENS = 40


@st.composite
def _applications(draw: st.DrawFn) -> list[WorkloadApplication]:
    applications = []
    for number in range(draw(st.integers(1, 7))):
        inferences: list[WorkloadInference] = []
        for index in range(draw(st.integers(1, 5))):
            before = [i.inference_id for i in inferences]
            after = (
                draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
            )
            inferences.append(
                WorkloadInference(
                    str(index),
                    draw(st.integers(1, 15)),
                    draw(st.integers(1, 12)),
                    tuple(after),
                    draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 6.0])),
                )
            )
        applications.append(
            WorkloadApplication(
                f"a{number}",
                "c",
                draw(st.integers(0, 40)) / 2,
                tuple(inferences),
                draw(st.sampled_from(["t0", "t1"])),
            )
        )
    return applications


def _both(
    applications: list[WorkloadApplication],
    policy: str,
    options: dict[str, object] | None = None,
    *,
    replicas: int = 1,
    prefill_s_per_token: float = 0.0,
    max_num_seqs: int = 256,
) -> tuple[RunResult, SteppingEngine]:
    cost = IterationCost(1.0, per_prefill_token_s=prefill_s_per_token)
    engine = EngineProfile(_KV_TOKENS, iteration=cost, max_num_seqs=max_num_seqs)
    result = simulate(applications, RunSettings(engine, policy, options or {}, replicas=replicas))
    stepping = SteppingEngine(
        policy,
        _KV_TOKENS,
        replicas=replicas,
        prefill_s_per_token=prefill_s_per_token,
        max_num_seqs=max_num_seqs,
        options=options,
    )
    stepping.run(applications)
    return result, stepping


def _assert_same(result: RunResult, stepping: SteppingEngine) -> None:
    for row in result.inferences:
        assert stepping.rows[f"{row.application_id}/{row.inference_id}"] == row
    for application in result.applications:
        ended = stepping.ended[application.application_id]
        assert ended.ended_at == application.finished_at_s
        assert ended.virtual_finish_time == pytest.approx(application.virtual_finish_time)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25)
@given(
    applications=_applications(),
    replicas=st.integers(1, 3),
    prefill_s_per_token=st.sampled_from([0.0, 0.25]),
    max_num_seqs=st.sampled_from([2, 256]),
)
def test_jumps_give_what_each_iteration_gives(
    policy: str,
    applications: list[WorkloadApplication],
    replicas: int,
    prefill_s_per_token: float,
    max_num_seqs: int,
) -> None:
    """Every instant of every inference; only so the speed of the simulator costs nothing."""
    result, stepping = _both(
        applications,
        policy,
        replicas=replicas,
        prefill_s_per_token=prefill_s_per_token,
        max_num_seqs=max_num_seqs,
    )

    _assert_same(result, stepping)
    assert stepping.most_held <= _KV_TOKENS
