"""What an arm does: a simulated run, a recorded run of hardware, or a timing of the core."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.report.loads import Load
from justitia_ray.sim.calibration.measured import TimedRequest, read_run
from justitia_ray.sim.client_service import served_requests
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds

PAPER_KV_TOKENS = 459 * 16
"""KV memory of Justitia's testbed: 459 blocks of 16 tokens (v1, Sec. III-A)."""
PAPER_ENGINE = EngineProfile(kv_tokens=PAPER_KV_TOKENS)
"""Constant iterations of 30 ms on that memory."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run of the simulator."""

    load: Load
    policy: str
    options: tuple[tuple[str, object], ...] = ()
    engine: EngineProfile = PAPER_ENGINE
    replicas: int = 1
    prediction: str = "oracle"
    seed: int = 0
    report_interval_s: Seconds = 0.0
    sample_kv: bool = False
    is_served: bool = True
    """Whether noisy costs are charged as the service charges: more, and raised by later stages."""
    needs_inferences: bool = False
    """Whether the rows of the inferences are wanted; thousands a run, so not by default."""

    def prepare(self) -> None:
        """Build the load, which the next run then finds built."""
        _build(self.load)

    def run(self) -> RunResult:
        """Simulate.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        settings = RunSettings(
            engine=self.engine,
            policy=self.policy,
            policy_options=dict(self.options),
            replicas=self.replicas,
            prediction=self.prediction,
            seed=self.seed,
            report_interval_s=self.report_interval_s,
            sample_kv=self.sample_kv,
            raises=self.is_served,
            charge_factor=CHARGE_FACTOR if self.is_served else 1.0,
        )
        result = simulate(_build(self.load), settings)
        return result if self.needs_inferences else replace(result, inferences=[])

    def configuration(self) -> Mapping[str, Any]:
        """Return load, policy, options, engine and the rest."""
        return {
            "load": self.load.configuration(),
            "policy": self.policy,
            "options": dict(self.options),
            "engine": asdict(self.engine),
            "replicas": self.replicas,
            "prediction": self.prediction,
            "report_interval_s": self.report_interval_s,
            "is_served": self.is_served,
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that was measured on an A10G by the authors of VTC: `data/vtc_runs`."""

    path: Path
    name: str

    def run(self) -> Sequence[TimedRequest]:
        """Read the requests that were served.

        Raises:
            ConfigError: If the file cannot be read.
        """
        return read_run(self.path).requests

    def configuration(self) -> Mapping[str, Any]:
        """Return the name of the file."""
        return {"recording": self.name}


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """What was served of a simulated run: all that the VTC paper's measures need of it.

    The whole of a run of thousands of requests is megabytes, and a report has hundreds of them.
    """

    of: Simulation

    def run(self) -> Sequence[TimedRequest]:
        """Simulate.

        Raises:
            ConfigError: As the simulation does.
        """
        return served_requests(self.of.run())

    def configuration(self) -> Mapping[str, Any]:
        """Return that of the run."""
        return self.of.configuration()


@lru_cache(maxsize=2)
def _build(load: Load) -> list[WorkloadApplication]:
    """Runs of one load follow each other: most find it built."""
    return load.build()
