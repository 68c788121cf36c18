"""The guard of justitia with true completion times under VTC: the gain of perfect prediction.

The times are from a run of the same load under `vtc`, which no real scheduler knows. The difference
between this guard and the real guard is due to prediction. Targets that are still missed with this
guard cannot be reached by better predictions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, Seconds


class ToldVtc(ForetoldVtc):
    """Predicts completion times under VTC perfectly, because they are known from another run.

    Critical paths, iteration times and margin are computed by the shadow. `urgent` checks every
    live application that waits: O(N).
    """

    def __init__(self, kv_in_flight: Callable[[], float]) -> None:
        super().__init__(kv_in_flight)
        self.ends: Mapping[ApplicationId, Seconds] = {}
        """Time at which each application ends under VTC, from another simulated run."""
        self._live: dict[ApplicationId, int] = {}

    def submitted(self, application: Application, inference: Inference, now: Seconds) -> None:
        self._live[application.application_id] = application.sequence
        super().submitted(application, inference, now)

    def application_ended(self, application: Application, now: Seconds) -> None:
        self._live.pop(application.application_id, None)
        super().application_ended(application, now)

    def deadline(self, application_id: ApplicationId, now: Seconds) -> Seconds | None:
        return self.ends.get(application_id)

    def urgent(
        self, now: Seconds, waits: Callable[[ApplicationId], bool] | None = None
    ) -> list[ApplicationId]:
        """Return the applications that must run now to end no later than under VTC.

        Args:
            now: Time of the check.
            waits: Returns whether an application has an inference to start; None: all may have.
        """
        found = [
            (self.ends[name], sequence, name)
            for name, sequence in self._live.items()
            if (waits is None or waits(name)) and self.is_urgent(name, now)
        ]
        return [name for _, _, name in sorted(found)]


class JustitiaWithKnownTimes(GuardedPolicy):
    """The policy `justitia` that knows when each application would end under VTC."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.vtc = self._foretold = ToldVtc(context.kv_in_flight)


class _KnownTimesSimulation(Simulation):
    def __init__(
        self,
        applications: Sequence[WorkloadApplication],
        settings: RunSettings,
        ends: Mapping[ApplicationId, Seconds],
    ) -> None:
        super().__init__(applications, settings)
        policy = self._core.ledger.policy
        assert isinstance(policy, JustitiaWithKnownTimes)
        policy.vtc.ends = ends


def simulate_with_known_times(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    ends: Mapping[ApplicationId, Seconds],
) -> RunResult:
    """Simulate `justitia` with known completion times under VTC.

    Args:
        applications: A workload; each inference fits a replica.
        settings: Settings of justitia with a guard, between applications.
        ends: Time at which each application ends under VTC.

    Raises:
        ConfigError: If a setting is not allowed.
    """
    path = f"{JustitiaWithKnownTimes.__module__}:{JustitiaWithKnownTimes.__qualname__}"
    return _KnownTimesSimulation(applications, replace(settings, policy=path), ends).run(
        lambda _: None
    )
