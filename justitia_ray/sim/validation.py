"""How well a profile predicts runs of a real server from their arrivals and lengths alone.

Every figure is taken of the measured times and of the simulated ones by the same rule; the error is
relative to the measured one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from justitia_ray.core.policies import find_policy
from justitia_ray.core.policies.options import UNIT
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest, as_workload
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
class Comparison:
    """One figure of a run."""

    measured: float
    simulated: float

    @property
    def error(self) -> float | None:
        """Simulated over measured, less 1; None if the measured one is 0."""
        return self.simulated / self.measured - 1 if self.measured else None

    def row(self) -> dict[str, float | None]:
        """Return it as JSON has it."""
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, slots=True)
class RunValidation:
    """One run, measured and simulated."""

    run: str
    policy: str
    requests: int
    tokens_per_s: Comparison
    """Prompt and output tokens, from the first arrival to the last end."""
    mean_first_token_latency_s: Comparison
    p90_first_token_latency_s: Comparison
    mean_latency_s: Comparison
    max_service_difference: Comparison
    """Largest over time, in h units a second (VTC, Sec. 5.1, Table 2)."""
    mean_service_difference: Comparison
    """Mean over time."""
    max_accumulated_difference: Comparison
    """Largest difference of accumulated service between two clients, in h units."""
    service_error: float
    """Σ |simulated − measured| / Σ measured service over clients and time (windows of 60 s)."""
    client_service_per_s: dict[str, Comparison]
    """Mean over time of each client's service, in h units a second."""

    def row(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        values: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Comparison):
                values[name] = value.row()
            elif isinstance(value, dict):
                values[name] = {client: item.row() for client, item in value.items()}
            else:
                values[name] = value
        return values


def validate(
    profile: EngineProfile, runs: Sequence[MeasuredRun], added_prompt_tokens: Tokens = 0
) -> list[RunValidation]:
    """Simulate each run and compare.

    Args:
        profile: The engine that the runs were measured on.
        runs: Only arrivals, lengths, clients and policy go into the simulation.
        added_prompt_tokens: What the engine puts before each prompt and the files do not count.

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
    """Return the run's requests with the times that the simulator gives them.

    Clients are tenants, and what the policy compares. Prompts count as in the file.

    Raises:
        ConfigError: As `validate`.
    """
    options = {UNIT.name: "tenant"} if UNIT in find_policy(run.policy).OPTIONS else {}
    settings = RunSettings(engine=profile, policy=run.policy, policy_options=options)
    result = simulate(as_workload(run.requests, added_prompt_tokens), settings)
    simulated = []
    for request, row in zip(run.requests, result.inferences, strict=True):
        assert row.first_token_at_s is not None, f"request {row.application_id} made no token"
        assert row.finished_at_s is not None, f"request {row.application_id} did not end"
        simulated.append(
            TimedRequest(
                request.client,
                request.arrived_at_s,
                request.prompt_tokens,
                request.output_tokens,
                row.first_token_at_s,
                row.finished_at_s,
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
        tokens_per_s=_compare(tokens_per_s(side) for side in pair),
        mean_first_token_latency_s=_compare(t.mean() for t in first_token),
        p90_first_token_latency_s=_compare(np.percentile(t, 90) for t in first_token),
        mean_latency_s=_compare(t.mean() for t in latency),
        max_service_difference=_compare(d.max() for d in differences),
        mean_service_difference=_compare(d.mean() for d in differences),
        max_accumulated_difference=_compare(s.gaps(at, TABLE_WARM_UP_S).max() for s in service),
        service_error=deviation / total if total else 0.0,
        client_service_per_s={
            client: _compare(r[index].mean() for r in received)
            for index, client in enumerate(service[0].clients)
        },
    )


def _compare(values: Iterable[float]) -> Comparison:
    measured, simulated = values
    return Comparison(float(measured), float(simulated))
