"""Fit an engine profile to measured runs, and validate it by simulating measured runs.

The regression ignores that prefills and completions happen between iterations, and that a
simulation forms other batches. So all times are then scaled by one factor that makes the simulated
throughput of the runs right in the geometric mean. The rules of the engine are not fitted: they are
taken from the start profile.

Every figure of a validation is computed by the same rule from the measured and from the simulated
times, from arrivals and lengths alone; errors are relative to the measured figure.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from justitia_ray.core.policies import find_policy, policy_path
from justitia_ray.core.policies.options import UNIT
from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest, as_workload
from justitia_ray.sim.calibration.regression import Regression, fit_iterations
from justitia_ray.sim.client_service import (
    TABLE_WARM_UP_S,
    ClientService,
    table_instants,
    tokens_per_s,
)
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.units import Tokens


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """Measured and simulated value of a figure."""

    measured: float
    simulated: float
    error: float | None
    """Simulated over measured value, minus 1; None if the measured value is 0."""


@dataclass(frozen=True, slots=True)
class RunValidation:
    """Measured and simulated figures of a run."""

    run: str
    policy: str
    requests: int
    tokens_per_s: ComparedFigure
    """Prompt and output tokens per second, from the first arrival to the last end."""
    mean_first_token_latency_s: ComparedFigure
    p90_first_token_latency_s: ComparedFigure
    mean_latency_s: ComparedFigure
    max_service_difference: ComparedFigure
    """Largest difference of service between two clients, in VTC's unit per second (Table 2)."""
    mean_service_difference: ComparedFigure
    """Mean difference of service between clients, in VTC's unit per second."""
    max_accumulated_difference: ComparedFigure
    """Largest difference of accumulated service between two clients, in VTC's unit."""
    service_error: float
    """Error of the service, Σ |simulated − measured| / Σ measured, over clients and windows of 60
    s.
    """
    client_service_per_s: dict[str, ComparedFigure]
    """Mean over time of each client's service, in VTC's unit per second."""


def validate(
    profile: EngineProfile, runs: Sequence[MeasuredRun], added_prompt_tokens: Tokens = 0
) -> list[RunValidation]:
    """Simulate each run and compare it with the measurement.

    Args:
        profile: The engine on which the runs were measured.
        runs: Measured runs. The simulation uses only their arrivals, lengths, clients and policy.
        added_prompt_tokens: Tokens that the engine puts before each prompt, not counted in the
            files.

    Raises:
        ConfigError: If a request is larger than the engine's KV memory, or a policy is unknown.
    """
    return [
        compare(run, simulate_run(run, profile, added_prompt_tokens=added_prompt_tokens))
        for run in runs
    ]


def simulate_run(
    run: MeasuredRun, profile: EngineProfile, *, added_prompt_tokens: Tokens = 0
) -> list[TimedRequest]:
    """Return the run's requests with simulated times.

    Clients become tenants, the unit that the policy compares. Prompts count as in the file.

    Raises:
        ConfigError: If a request is larger than the engine's KV memory, or the policy is unknown.
    """
    options = {UNIT.name: "tenant"} if UNIT in find_policy(policy_path(run.policy)).OPTIONS else {}
    settings = RunSettings(engine=profile, policy=run.policy, policy_options=options)
    result = simulate(as_workload(run.requests, added_prompt_tokens), settings)
    simulated = []
    for request, row in zip(run.requests, result.inferences, strict=True):
        assert row.first_token_at_s is not None, f"request {row.application_id} made no token"
        assert row.finished_at_s is not None, f"request {row.application_id} did not end"
        simulated.append(
            replace(
                request,
                first_token_at_s=row.first_token_at_s,
                finished_at_s=row.finished_at_s,
            )
        )
    return simulated


def compare(run: MeasuredRun, simulated: Sequence[TimedRequest]) -> RunValidation:
    """Compare measured requests with the same requests simulated."""
    pair = (run.requests, simulated)
    first_token = [np.array([r.first_token_latency_s for r in side]) for side in pair]
    latency = [np.array([r.finished_at_s - r.arrived_at_s for r in side]) for side in pair]
    service = [ClientService(side) for side in pair]
    at = table_instants(max(r.arrived_at_s for r in run.requests))
    received = [s.rates(at) for s in service]
    differences = [s.differences(at) for s in service]
    deviation, total = float(np.abs(received[1] - received[0]).sum()), float(received[0].sum())
    return RunValidation(
        run=run.name,
        policy=run.policy,
        requests=len(run.requests),
        tokens_per_s=_compared_figure(tokens_per_s(side) for side in pair),
        mean_first_token_latency_s=_compared_figure(t.mean() for t in first_token),
        p90_first_token_latency_s=_compared_figure(np.percentile(t, 90) for t in first_token),
        mean_latency_s=_compared_figure(t.mean() for t in latency),
        max_service_difference=_compared_figure(d.max() for d in differences),
        mean_service_difference=_compared_figure(d.mean() for d in differences),
        max_accumulated_difference=_compared_figure(
            s.gaps(at, TABLE_WARM_UP_S).max() for s in service
        ),
        service_error=deviation / total if total else 0.0,
        client_service_per_s={
            client: _compared_figure(r[index].mean() for r in received)
            for index, client in enumerate(service[0].clients)
        },
    )


def _compared_figure(values: Iterable[float]) -> ComparedFigure:
    measured, simulated = (float(value) for value in values)
    return ComparedFigure(measured, simulated, simulated / measured - 1 if measured else None)


_PACES = (0.99, 1.0, 1.01)
"""Speed factors over which the error is averaged, because small changes of speed change the
batches.
"""
_DIGITS = 4
"""Significant digits of a written time, few enough for equal files on every machine."""


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """Fitted profile of an engine, with its errors on the runs it was fitted on."""

    profile: EngineProfile
    regression: Regression
    runs: tuple[RunValidation, ...]


def calibrate(
    runs: Sequence[MeasuredRun], start: EngineProfile, added_prompt_tokens: Tokens = 0
) -> FittedProfile:
    """Fit the iteration costs of a profile; equal runs give equal results.

    Args:
        runs: Measured runs, at least one, without the runs that are kept for validation.
        start: Profile that gives name, memory and rules; its costs and `speedup` are replaced.
        added_prompt_tokens: Tokens that the engine put before each prompt, not counted in the
            files.

    Raises:
        ConfigError: If there are no runs to fit, or a request is larger than the KV memory.
    """
    if not runs:
        raise ConfigError("runs: a profile is fitted on at least one run, got none")
    regression = fit_iterations(runs, added_prompt_tokens)
    start = replace(start, iteration=regression.cost, speedup=1.0)
    logs = [
        math.log(run.tokens_per_s.simulated / run.tokens_per_s.measured)
        for pace in _PACES
        for run in validate(_scale_iteration_times(start, pace), runs, added_prompt_tokens)
    ]
    profile = _scale_iteration_times(start, math.exp(sum(logs) / len(logs)))
    rounded = profile.iteration.with_times(lambda time_s: float(f"{time_s:.{_DIGITS}g}"))
    profile = replace(profile, iteration=rounded)
    return FittedProfile(profile, regression, tuple(validate(profile, runs, added_prompt_tokens)))


def _scale_iteration_times(profile: EngineProfile, factor: float) -> EngineProfile:
    """Return the profile with all times multiplied by a factor."""
    return replace(profile, iteration=profile.iteration.scaled(factor))
