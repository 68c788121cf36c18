"""Accuracy of the shadow of VTC: predicted over true completion times under VTC.

A workload runs twice with true costs: under `vtc`, and under justitia with a shadow that does not
influence the order. The shadow knows the true later stages, or learns them from other applications.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.policies.guarded.shadow import Shadow
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.predictions import TABLE
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation, simulate
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, ClientId, Seconds

_AS_THE_PAPER = {"order": "finish", "guard_iterations": 0}
"""Options that make the policy `justitia` keep the paper's order without exceptions."""


class VtcPredictingJustitia(GuardedPolicy):
    """The policy `justitia`, which also predicts when each application would end under VTC."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._vtc = self._foretold = ForetoldVtc(context.kv_in_flight)
        self._ended: dict[ApplicationId, Shadow] = {}
        self._began: dict[tuple[ApplicationId, int], Seconds] = {}
        self.at_stages: dict[tuple[ApplicationId, int], Seconds] = {}
        """Completion time under VTC as predicted when each stage of an application began."""
        self.observed: list[Observation] = []
        """Ended applications, in the form from which a predictor learns."""

    def deadlines(self) -> dict[ApplicationId, Seconds]:
        """Return the predicted completion time under VTC of each application."""
        iteration_s = self._vtc.pace.iteration_s
        return {
            name: shadow.last_started_at + shadow.stages[-1].output_tokens * iteration_s
            for name, shadow in self._ended.items()
            if shadow.last_started_at is not None
        }

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        told = super().submitted(application, inference)
        name, now = application.application_id, self.context.now()
        if self._began.setdefault((name, inference.stage), now) == now:
            deadline = self._vtc.deadline(name, now)
            if deadline is not None:
                self.at_stages[name, inference.stage] = deadline
        return told

    def application_ended(self, application: Application) -> None:
        name = application.application_id
        counts = (application.inferences, application.output_tokens)
        self.observed.append(
            Observation(
                application.application_class,
                Sample(application.kv_token_time, *counts, None),
                application.stages.served(),
            )
        )
        if (shadow := self._vtc.clock.shadows.get(name)) is not None:
            self._ended[name] = shadow
        super().application_ended(application)


class _VtcPredictingSimulation(Simulation):
    @property
    def policy(self) -> VtcPredictingJustitia:
        policy = self._core.ledger.policy
        assert isinstance(policy, VtcPredictingJustitia)
        return policy


class Spread(NamedTuple):
    """Median of ratios, with their 5th and 95th percentiles."""

    applications: int
    p5: float
    median: float
    p95: float


def predicted_over_true_times(
    applications: Sequence[WorkloadApplication],
    engine: EngineProfile,
    replicas: int = 1,
    history: Sequence[Observation] | None = None,
) -> dict[str, list[float]]:
    """Return predicted over true completion times under VTC, by application class.

    Args:
        applications: A workload.
        engine: Engine of each replica.
        replicas: Number of replicas.
        history: Earlier applications from which stages and lengths are learned; None: the true
            values are used.

    Raises:
        ConfigError: If an inference exceeds the KV memory of a replica.
    """
    real = {
        row.application_id: row
        for row in simulate(
            applications, RunSettings(engine, "vtc", replicas=replicas)
        ).applications
    }
    ratios: dict[str, list[float]] = {}
    for name, deadline in (
        predict_vtc_times(applications, engine, replicas, history).deadlines().items()
    ):
        row = real[name]
        if row.jct_s:
            ratio = (deadline - row.arrived_at_s) / row.jct_s
            ratios.setdefault(row.application_class, []).append(ratio)
    return ratios


def error_of_learned_stages(
    applications: Sequence[WorkloadApplication],
    engine: EngineProfile,
    history: Sequence[Observation],
    replicas: int = 1,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the error that learned stages add to predicted times under VTC, by class.

    The distance is |ln| of the ratio of the two times from the application's arrival to its
    deadline. The first table is of deadlines predicted on arrival, the second of those predicted
    when later stages begin.
    """
    arrived = {a.application_id: (a.application_class, a.arrived_at_s) for a in applications}
    true = predict_vtc_times(applications, engine, replicas).at_stages
    first: dict[str, list[float]] = {}
    later: dict[str, list[float]] = {}
    for (name, stage), deadline in predict_vtc_times(
        applications, engine, replicas, history
    ).at_stages.items():
        application_class, at = arrived[name]
        by_truth = true.get((name, stage), at)
        if min(deadline, by_truth) > at:
            off = abs(math.log((deadline - at) / (by_truth - at)))
            (later if stage else first).setdefault(application_class, []).append(off)
    return first, later


def predict_vtc_times(
    applications: Sequence[WorkloadApplication],
    engine: EngineProfile,
    replicas: int = 1,
    history: Sequence[Observation] | None = None,
) -> VtcPredictingJustitia:
    """Simulate a run of `justitia` that predicts completion times under VTC; return its policy."""
    path = f"{VtcPredictingJustitia.__module__}:{VtcPredictingJustitia.__qualname__}"
    settings = RunSettings(engine, path, _AS_THE_PAPER, replicas=replicas)
    if history is not None:
        costs = {a.application_id: a.cost() for a in applications}
        settings = replace(settings, prediction=TABLE, predicted_costs=costs, history=history)
    run = _VtcPredictingSimulation(applications, settings)
    run.run(lambda ended: None)
    return run.policy


def spread(ratios: Iterable[float]) -> Spread:
    """Return median, 5th and 95th percentile of at least two ratios."""
    known = sorted(ratios)
    cuts = statistics.quantiles(known, n=20, method="inclusive")
    return Spread(len(known), cuts[0], statistics.median(known), cuts[-1])
