"""How well the shadow of VTC foretells: its deadlines, over what VTC really does.

A workload runs twice, with true costs: under `vtc`, and under justitia, with a shadow on the side
that changes nothing.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from justitia_ray.core.clock.foretold import ForetoldVtc, Shadow
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation, simulate
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, ClientId, Seconds


class ForetellingJustitia(JustitiaPolicy):
    """Justitia, with a shadow of VTC that it feeds and does not ask."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._vtc = ForetoldVtc()
        self._ended: dict[ApplicationId, Shadow] = {}
        """Shadows of applications that have ended; they go on until they are through."""

    def deadlines(self) -> dict[ApplicationId, Seconds]:
        """Return the deadline of each ended application whose last start VTC has reached."""
        iteration_s = self._vtc.pace.iteration_s
        return {
            name: shadow.passed_at + shadow.stages[-1].output_tokens * iteration_s
            for name, shadow in self._ended.items()
            if shadow.passed_at is not None
        }

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the shadow of an inference."""
        self._vtc.submitted(application, inference, self.context.now())
        return super().submitted(application, inference)

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the pace of a lease."""
        self._vtc.dispatched(inference, self.context.now())
        return super().dispatched(application, inference)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Tell the shadow of service."""
        self._vtc.served(deliveries, self.context.now())
        return super().served(deliveries)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Tell the shadow of true sizes."""
        self._vtc.ended(application, inference, self.context.now())
        return super().ended(application, inference)

    def application_ended(self, application: Application) -> None:
        """Keep the shadow, which goes on by itself."""
        name = application.application_id
        if (shadow := self._vtc.clock.shadows.get(name)) is not None:
            self._ended[name] = shadow
        self._vtc.application_ended(application, self.context.now())
        super().application_ended(application)


class _ForetellingSimulation(Simulation):
    def deadlines(self) -> Mapping[ApplicationId, Seconds]:
        """Return the deadlines that the run's policy has foretold."""
        policy = self._core.ledger.policy
        return policy.deadlines() if isinstance(policy, ForetellingJustitia) else {}


class Spread(NamedTuple):
    """Median of some ratios, and the range of nine tenths of them."""

    applications: int
    p5: float
    median: float
    p95: float


def foretold_over_vtc(
    applications: Sequence[WorkloadApplication], engine: EngineProfile, replicas: int = 1
) -> dict[str, list[float]]:
    """Return the foretold over the real completion time under VTC of each application, by class.

    Raises:
        ConfigError: If an inference exceeds the KV memory of a replica.
    """
    real = {
        row.application_id: row
        for row in simulate(
            applications, RunSettings(engine, "vtc", replicas=replicas)
        ).applications
    }
    path = f"{ForetellingJustitia.__module__}:{ForetellingJustitia.__qualname__}"
    run = _ForetellingSimulation(applications, RunSettings(engine, path, replicas=replicas))
    run.run(lambda ended: None)
    ratios: dict[str, list[float]] = {}
    for name, deadline in run.deadlines().items():
        row = real[name]
        if row.jct_s:
            ratio = (deadline - row.arrived_at_s) / row.jct_s
            ratios.setdefault(row.application_class, []).append(ratio)
    return ratios


def spread(ratios: Iterable[float]) -> Spread:
    """Return how at least two ratios are spread."""
    known = sorted(ratios)
    cuts = statistics.quantiles(known, n=20, method="inclusive")
    return Spread(len(known), cuts[0], statistics.median(known), cuts[-1])
