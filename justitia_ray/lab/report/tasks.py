"""Tasks of an arm, simulated runs and recorded runs of hardware, and the loads that they run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray.lab.told import simulate_with_known_times
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
    """Workload of `justitia workload`, by the suite's name and options."""

    suite: str
    seed: int
    data_dir: Path
    count: int | None = None
    window_s: Seconds | None = None
    mix: str | None = None

    def build(self) -> list[WorkloadApplication]:
        """Return the applications of the workload, in order of arrival.

        Raises:
            ConfigError: If the suite does not support an option, or the data directory lacks files.
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
        options = {"count": self.count, "window_s": self.window_s, "mix": self.mix}
        given = {name: value for name, value in options.items() if value is not None}
        return {"suite": self.suite, "seed": self.seed, **given}


@dataclass(frozen=True, slots=True)
class ChangedLoad:
    """Workload that is changed after it is built: cut, stretched or merged, for instance."""

    suite: SuiteLoad
    change: Callable[[SuiteLoad, float], list[WorkloadApplication]]
    """Function that changes the workload; it must be picklable, so it stands at module level."""
    by: float

    def build(self) -> list[WorkloadApplication]:
        return self.change(self.suite, self.by)

    def configuration(self) -> Mapping[str, Any]:
        return {**self.suite.configuration(), self.change.__name__: self.by}


ExperimentLoad: TypeAlias = SuiteLoad | ChangedLoad


def requests_per_minute(suite: SuiteLoad, most: float) -> list[WorkloadApplication]:
    """Return the requests within a limit per tenant and minute, as in VTC, Sec. 2.2.

    Minutes are counted from the start.
    """
    kept = []
    counted = Counter[tuple[str, int]]()
    for application in suite.build():
        window = (application.tenant, int(application.arrived_at_s // 60))
        counted[window] += 1
        if counted[window] <= most:
            kept.append(application)
    return kept


PAPER_KV_TOKENS = 459 * 16
"""KV memory of the Justitia paper's testbed: 459 blocks of 16 tokens (v1, Sec. III-A)."""
PAPER_ENGINE = EngineProfile(kv_tokens=PAPER_KV_TOKENS)
"""Engine of the Justitia paper's testbed, with iterations of constantly 30 ms."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Simulated run of one policy on one workload."""

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
    """Whether costs are charged as in the service, which charges more than the prediction.
    """

    def run(self) -> RunResult:
        """Simulate a policy; return the result without the records of single inferences.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        return replace(self.run_with_inferences(), inferences=[])

    def run_with_inferences(self) -> RunResult:
        """Simulate a policy; return the result with the records of single inferences.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        return simulate(build_cached(self.load), self.settings())

    def settings(self) -> RunSettings:
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
class KnownTimesRun:
    """Simulated run of `justitia` that knows when each application ends under `vtc`."""

    of: SimulatedRun
    """Return a run of `justitia` with known times under VTC, otherwise equal to the given run."""

    def run(self) -> RunResult:
        """Simulate `vtc`, and then `justitia` that knows the completion times under `vtc`.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        under_vtc = replace(self.of, policy="vtc", options=()).run()
        ends = {
            row.application_id: row.finished_at_s
            for row in under_vtc.applications
            if row.finished_at_s is not None
        }
        told = simulate_with_known_times(build_cached(self.of.load), self.of.settings(), ends)
        return replace(told, inferences=[])

    def configuration(self) -> Mapping[str, Any]:
        return {**self.of.configuration(), "deadlines": "told: the ends of a run under vtc"}


@dataclass(frozen=True, slots=True)
class AloneRuns:
    """Each application alone on an empty replica, which gives its shortest completion time."""

    load: ExperimentLoad
    engine: EngineProfile = PAPER_ENGINE

    def run(self) -> RunResult:
        """Simulate each application alone on an empty replica.

        Raises:
            ConfigError: If the load is wrong.
        """
        settings = RunSettings(self.engine, "fcfs")
        rows = [simulate([one], settings).applications[0] for one in build_cached(self.load)]
        return RunResult(rows)

    def configuration(self) -> Mapping[str, Any]:
        return {"load": self.load.configuration(), "engine": asdict(self.engine)}


@dataclass(frozen=True, slots=True)
class Recording:
    """Run that VTC's authors measured on an A10G, from `data/vtc_runs`."""

    path: Path
    name: str

    def run(self) -> Sequence[TimedRequest]:
        """Return the requests that VTC's authors measured.

        Raises:
            ConfigError: If the file cannot be read.
        """
        return read_run(self.path).requests

    def configuration(self) -> Mapping[str, Any]:
        return {"recording": self.name}


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests of a simulated run, from which the VTC paper's measures are computed.

    A whole run of thousands of requests takes megabytes, and a report has hundreds of runs.
    """

    of: SimulatedRun

    def run(self) -> Sequence[TimedRequest]:
        """Simulate a run and return the requests that it served.

        Raises:
            ConfigError: If the load or a setting is wrong.
        """
        return served_requests(self.of.run_with_inferences())

    def configuration(self) -> Mapping[str, Any]:
        return self.of.configuration()


@lru_cache(maxsize=2)
def build_cached(load: ExperimentLoad) -> list[WorkloadApplication]:
    """Return the applications of a workload; the last two workloads are cached."""
    return load.build()
