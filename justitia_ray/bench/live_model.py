"""The simulator's model of the engines that a load was played on, and its word on a play."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from justitia_ray.bench.live_arms import Arm
from justitia_ray.bench.live_rows import PlayedApplication, as_workload
from justitia_ray.bench.live_session import LiveRun
from justitia_ray.predictor.observation import Observation
from justitia_ray.sim.calibration.residence import HeldLease, ResidenceFit, fit_residence
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.units import Seconds

REPORT_INTERVAL_S: Seconds = 0.25
"""`replica.report_interval_s`: how old what the scheduler knows of running inferences may be."""
_PACE_ROUNDS = 6
_PACE_TOLERANCE = 0.01
_LEAST_SLOPE, _MOST_SLOPE = 0.5, 4.0
"""Of a completion time over the times of iterations: above 1 where work waits."""
_DISPATCH_SHARE = 0.5
"""Of a call's latency under its lease: the way of the payload. The rest is that of the answer,
while which the memory is free again. A call's times do not tell them apart."""


@dataclass(frozen=True, slots=True)
class LiveModel:
    """Two or more engines that share a machine with all that serves them."""

    engine: EngineProfile
    """All times as they are while every engine is busy."""
    replicas: int
    call_latency_s: Seconds
    """Of a call, besides queue and engine and `dispatch_s`."""
    dispatch_s: Seconds
    """How long a lease is held before its payload is at the engine."""
    fit: ResidenceFit
    pace: float
    """What the fitted times were multiplied by, so that the mean completion time of the load that
    they were fitted on comes out right."""

    def predict(
        self, arm: Arm, played: Sequence[PlayedApplication], history: Sequence[Observation]
    ) -> RunResult:
        """Simulate what was played, under a policy.

        Args:
            arm: The policy.
            played: What came, how long it was, and which costs the service predicted.
            history: What the service knew of the stages of each class.
        """
        return simulate(
            as_workload(played, self.call_latency_s),
            RunSettings(
                engine=self.engine,
                policy=arm.policy,
                policy_options=dict(arm.options),
                replicas=self.replicas,
                prediction="table",
                predicted_costs={
                    one.name: one.recorded.predicted_kv_token_time
                    for one in played
                    if one.recorded is not None
                },
                history=history,
                lengths_are_known=True,
                report_interval_s=REPORT_INTERVAL_S,
                dispatch_s=self.dispatch_s,
            ),
        )

    def takes_s(self, played: Sequence[PlayedApplication]) -> Seconds:
        """Return how long one of these applications takes all engines if they come at once."""
        at_once = [replace(one, arrived_at_s=0.0) for one in as_workload(played)]
        settings = RunSettings(
            engine=self.engine,
            policy="fcfs",
            replicas=self.replicas,
            report_interval_s=REPORT_INTERVAL_S,
            dispatch_s=self.dispatch_s,
        )
        return simulate(at_once, settings).makespan_s / len(at_once)


def fit_model(run: LiveRun, start: EngineProfile, replicas: int) -> LiveModel:
    """Fit a model on a play under which all engines were busy; deterministic.

    Args:
        run: The play; none that predictions are to be tried on.
        start: Its name, memory and rules are kept, its costs are not.
        replicas: How many engines there are.

    Raises:
        ConfigError: If too little was played to fit anything.
    """
    calls = held_leases(run.played)
    fit = fit_residence(calls)
    waits = [row.waited_s for one in run.played for row in one.inferences]
    dispatch_s = _DISPATCH_SHARE * fit.call_latency_s
    model = LiveModel(
        engine=replace(start, iteration=fit.cost, speedup=1.0),
        replicas=replicas,
        call_latency_s=min(waits) + fit.call_latency_s - dispatch_s,
        dispatch_s=dispatch_s,
        fit=fit,
        pace=1.0,
    )
    measured_s = _mean_jct(one.record.jct_s for one in run.played if one.is_whole)

    def error(pace: float) -> float:
        """Return how much too late the model is at a pace, as a logarithm."""
        simulated = _at_pace(model, pace).predict(run.arm, run.played, ())
        ends = _mean_jct(a.jct_s for a in simulated.applications if a.jct_s is not None)
        return math.log(ends / measured_s)

    return _at_pace(model, _zero_of(error))


def held_leases(played: Sequence[PlayedApplication]) -> list[HeldLease]:
    """Return the calls of a play that say where they ran."""
    return [
        HeldLease(
            row.replica,
            row.submitted_at_s + row.waited_s,
            row.finished_at_s,
            row.prompt_tokens,
            row.output_tokens,
        )
        for one in played
        for row in one.inferences
        if row.replica is not None
    ]


def _zero_of(error: Callable[[float], float]) -> float:
    """Return where an increasing function of the pace is zero, nearly, by secants in logarithms.

    Batches form otherwise with every change of the times, so that it is not smooth: the best of
    some rounds is taken.
    """
    tried = [(0.0, error(1.0))]
    at = -tried[0][1] / 2
    for _ in range(_PACE_ROUNDS):
        tried.append((at, error(math.exp(at))))
        (before, was), (now, found) = tried[-2:]
        if abs(found) < _PACE_TOLERANCE:
            break
        slope = (found - was) / (now - before) if now != before else 1.0
        at = now - found / min(max(slope, _LEAST_SLOPE), _MOST_SLOPE)
    return math.exp(min(tried, key=lambda one: abs(one[1]))[0])


def _at_pace(model: LiveModel, pace: float) -> LiveModel:
    """Return the model with the times of its iterations multiplied."""
    cost = model.fit.cost
    iteration = replace(
        cost,
        base_s=cost.base_s * pace,
        per_sequence_s=cost.per_sequence_s * pace,
        per_context_token_s=cost.per_context_token_s * pace,
        per_prefill_token_s=cost.per_prefill_token_s * pace,
        prefill_base_s=cost.prefill_base_s * pace,
    )
    return replace(model, engine=replace(model.engine, iteration=iteration), pace=pace)


def _mean_jct(times: Iterable[Seconds]) -> Seconds:
    return statistics.fmean(times)
