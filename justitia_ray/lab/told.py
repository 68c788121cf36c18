"""The guard of justitia, told when VTC ends each application: what perfect foretelling would bring.

No scheduler can know these instants, which are those of a run of the same load under `vtc`. What
lies between this guard and the one that serves is owed to foretelling; what this one itself misses
is the price of the promise to end nobody later than VTC.
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
    """The guard's shadow of VTC, with deadlines that it is told.

    Critical paths and the pace are the shadow's own, and so is the margin. `urgent` is asked of
    every live application that waits: O(N).
    """

    def __init__(self, kv_tokens: Callable[[], float]) -> None:
        super().__init__(kv_tokens)
        self.ends: Mapping[ApplicationId, Seconds] = {}
        """When VTC ends each application; one that is not here is never urgent."""
        self._live: dict[ApplicationId, int] = {}
        """Sequences of live applications that have submitted anything."""

    def submitted(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count an inference, and look at its application from now on."""
        self._live[application.application_id] = application.sequence
        super().submitted(application, inference, now)

    def application_ended(self, application: Application, now: Seconds) -> None:
        """Look at an application no more."""
        self._live.pop(application.application_id, None)
        super().application_ended(application, now)

    def deadline(self, application_id: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when VTC ends it; None if that has not been told."""
        return self.ends.get(application_id)

    def urgent(
        self, now: Seconds, waits: Callable[[ApplicationId], bool] | None = None
    ) -> list[ApplicationId]:
        """Return the applications that are urgent now: by deadline, then by arrival.

        Args:
            now: The instant.
            waits: Tells whether an application has anything to start; None: all may have.
        """
        found = [
            (self.ends[name], sequence, name)
            for name, sequence in self._live.items()
            if (waits is None or waits(name)) and self.is_urgent(name, now)
        ]
        return [name for _, _, name in sorted(found)]


class ToldJustitia(GuardedPolicy):
    """Justitia between applications, whose guard goes by the ends that it is told."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.vtc = self._foretold = ToldVtc(context.kv_tokens)


class _ToldSimulation(Simulation):
    def __init__(
        self,
        applications: Sequence[WorkloadApplication],
        settings: RunSettings,
        ends: Mapping[ApplicationId, Seconds],
    ) -> None:
        super().__init__(applications, settings)
        policy = self._core.ledger.policy
        assert isinstance(policy, ToldJustitia)
        policy.vtc.ends = ends


def simulate_told(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    ends: Mapping[ApplicationId, Seconds],
) -> RunResult:
    """Return what justitia does if its guard is told when VTC ends each application.

    Args:
        applications: A workload, whose inferences each fit a replica.
        settings: Those of justitia with a guard, between applications.
        ends: The end of each application under VTC.

    Raises:
        ConfigError: If a setting is not allowed.
    """
    path = f"{ToldJustitia.__module__}:{ToldJustitia.__qualname__}"
    return _ToldSimulation(applications, replace(settings, policy=path), ends).run(lambda _: None)
