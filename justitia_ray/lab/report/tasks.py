"""Tasks of an arm: a simulated run, a recorded run of hardware; and the loads that they run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray.lab.told import simulate_told
from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.sim.calibration.measured import TimedRequest, read_run
from justitia_ray.sim.client_service import served_requests
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds

PolicyOptions: TypeAlias = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class SuiteLoad:
    """A named suite of `justitia workload`."""

    suite: str
    seed: int
    data_dir: Path
    count: int | None = None
    window_s: Seconds | None = None
    mix: str | None = None

    def build(self) -> list[WorkloadApplication]:
        """Build it.

        Raises:
            ConfigError: If the suite does not go by an option, or the data directory lacks files.
        """
        options = SuiteOptions(
            count=self.count,
            window_s=self.window_s,
            seed=self.seed,
            data_dir=self.data_dir,
            mix=self.mix,
        )
        return build_suite(self.suite, options)

    def configuration(self) -> Mapping[str, Any]:
        """Return the suite and its options; where the data lay is no part of them."""
        options = {"count": self.count, "window_s": self.window_s, "mix": self.mix}
        given = {name: value for name, value in options.items() if value is not None}
        return {"suite": self.suite, "seed": self.seed, **given}


@dataclass(frozen=True, slots=True)
class ChangedLoad:
    """A suite that one number changes: how far it is cut, stretched or put together."""

    suite: SuiteLoad
    change: Callable[[SuiteLoad, float], list[WorkloadApplication]]
    """Builds the suite, changed; a function of a module, which other processes find."""
    by: float

    def build(self) -> list[WorkloadApplication]:
        """Build it; the same each time."""
        return self.change(self.suite, self.by)

    def configuration(self) -> Mapping[str, Any]:
        """Return the suite, and the number under the name of the change."""
        return {**self.suite.configuration(), self.change.__name__: self.by}


ExperimentLoad: TypeAlias = SuiteLoad | ChangedLoad


def requests_per_minute(suite: SuiteLoad, most: float) -> list[WorkloadApplication]:
    """Return the first requests of each tenant in each minute from the start (VTC, Sec. 2.2)."""
    kept = []
    counted = Counter[tuple[str, int]]()
    for application in suite.build():
        window = (application.tenant, int(application.arrived_at_s // 60))
        counted[window] += 1
        if counted[window] <= most:
            kept.append(application)
    return kept


PAPER_KV_TOKENS = 459 * 16
"""KV memory of Justitia's testbed: 459 blocks of 16 tokens (v1, Sec. III-A)."""
PAPER_ENGINE = EngineProfile(kv_tokens=PAPER_KV_TOKENS)
"""Constant iterations of 30 ms on that memory."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run of the simulator."""

    load: ExperimentLoad
    policy: str
    options: PolicyOptions = ()
    engine: EngineProfile = PAPER_ENGINE
    replicas: int = 1
    prediction: str = "oracle"
    seed: int = 0
    report_interval_s: Seconds = 0.0
    sample_kv: bool = False
    is_served: bool = True
    """Whether noisy costs are charged as the service charges: more, and raised by later stages."""

    def run(self) -> RunResult:
        """Simulate; without the rows of the inferences, of which there are thousands.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        return replace(self.run_whole(), inferences=[])

    def run_whole(self) -> RunResult:
        """Simulate.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        return simulate(built(self.load), self.settings())

    def settings(self) -> RunSettings:
        """Return the settings of the run."""
        return RunSettings(
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
class ToldRun:
    """A run of justitia whose guard is told the ends of the same load under `vtc`."""

    of: SimulatedRun
    """The run of the guard that has to foretell them; all else is the same."""

    def run(self) -> RunResult:
        """Simulate `vtc`, then the guard that is told; the rows are without inferences.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        under_vtc = replace(self.of, policy="vtc", options=()).run()
        ends = {
            row.application_id: row.finished_at_s
            for row in under_vtc.applications
            if row.finished_at_s is not None
        }
        told = simulate_told(built(self.of.load), self.of.settings(), ends)
        return replace(told, inferences=[])

    def configuration(self) -> Mapping[str, Any]:
        """Return that of the run, and where its deadlines come from."""
        return {**self.of.configuration(), "deadlines": "told: the ends of a run under vtc"}


@dataclass(frozen=True, slots=True)
class AloneRuns:
    """Each application of a load alone on an empty replica: no scheduler ends it sooner."""

    load: ExperimentLoad
    engine: EngineProfile = PAPER_ENGINE

    def run(self) -> RunResult:
        """Simulate each; the rows are those of one run, without inferences.

        Raises:
            ConfigError: If the load is wrong.
        """
        settings = RunSettings(self.engine, "fcfs")
        rows = [simulate([one], settings).applications[0] for one in built(self.load)]
        return RunResult(rows)

    def configuration(self) -> Mapping[str, Any]:
        """Return load and engine."""
        return {"load": self.load.configuration(), "engine": asdict(self.engine)}


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
    """Served requests of a simulated run: all that the VTC paper's measures need.

    The whole of a run of thousands of requests is megabytes, and a report has hundreds of them.
    """

    of: SimulatedRun

    def run(self) -> Sequence[TimedRequest]:
        """Simulate.

        Raises:
            ConfigError: As the simulation does.
        """
        return served_requests(self.of.run_whole())

    def configuration(self) -> Mapping[str, Any]:
        """Return that of the run."""
        return self.of.configuration()


@lru_cache(maxsize=2)
def built(load: ExperimentLoad) -> list[WorkloadApplication]:
    """Return a load, built once: runs of one load follow each other."""
    return load.build()
