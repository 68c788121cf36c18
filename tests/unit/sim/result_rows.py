"""Result rows of a few applications, made from their times."""

from collections.abc import Mapping

from justitia_ray.sim.results import ApplicationResult, InferenceResult, RunResult
from justitia_ray.units import Seconds, Tokens


def application_row(
    name: str, arrived_at_s: Seconds, finished_at_s: Seconds | None
) -> ApplicationResult:
    """Return the result row of an application of class MRS and tenant `t`."""
    return ApplicationResult(
        application_id=name,
        application_class="MRS",
        tenant="t",
        arrived_at_s=arrived_at_s,
        finished_at_s=finished_at_s,
        jct_s=None if finished_at_s is None else finished_at_s - arrived_at_s,
        kv_token_time=10.0,
        predicted_kv_token_time=12.0,
        virtual_finish_time=None,
        gps_finished_at_s=None,
        outcome="failed" if finished_at_s is None else "finished",
    )


def inference_row(
    name: str, finished_at_s: Seconds | None, output_tokens: Tokens = 5
) -> InferenceResult:
    return InferenceResult(
        application_id=name,
        inference_id="0",
        replica=0,
        submitted_at_s=0.0,
        dispatched_at_s=None,
        first_token_at_s=None,
        finished_at_s=finished_at_s,
        prompt_tokens=4,
        output_tokens=output_tokens,
    )


def run_of(
    ends: Mapping[str, tuple[Seconds, Seconds | None]], makespan_s: Seconds = 10.0
) -> RunResult:
    """Return a run of one-inference applications with the given (arrival, end) times."""
    return RunResult(
        applications=[application_row(name, *times) for name, times in ends.items()],
        inferences=[
            inference_row(name, finished_at_s) for name, (_, finished_at_s) in ends.items()
        ],
        makespan_s=makespan_s,
    )
