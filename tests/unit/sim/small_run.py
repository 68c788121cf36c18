"""Small runs with iterations of one second, to be compared with tables written by hand."""

from typing import Any

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

Inference = tuple[int, int] | tuple[int, int, tuple[str, ...], float]
"""Prompt tokens, output tokens, and optionally the predecessors and the delay in seconds."""
Times = dict[str, tuple[float | None, float | None, float | None]]
"""Times of dispatch, first token and end in seconds, by `application/inference`."""


def application_of(
    name: str, *inferences: Inference, at: float = 0.0, tenant: str = "t"
) -> WorkloadApplication:
    """Return an application whose inferences are named 0, 1, 2 and so on."""
    made = tuple(WorkloadInference(str(index), *sizes) for index, sizes in enumerate(inferences))
    return WorkloadApplication(name, "c", at, made, tenant)


def engine(kv_tokens: int, *, base_s: float = 1.0, **knobs: Any) -> EngineProfile:
    """Return an engine profile; `knobs` set fields of the profile or of its `IterationCost`."""
    costs = {name: knobs.pop(name) for name in list(knobs) if name in IterationCost.__slots__}
    return EngineProfile(kv_tokens, iteration=IterationCost(base_s, **costs), **knobs)


def simulated_times(
    applications: list[WorkloadApplication],
    profile: EngineProfile,
    policy: str = "fcfs",
    **settings: Any,
) -> Times:
    result = simulate(applications, RunSettings(profile, policy, **settings))
    return {
        f"{row.application_id}/{row.inference_id}": (
            row.dispatched_at_s,
            row.first_token_at_s,
            row.finished_at_s,
        )
        for row in result.inferences
    }
