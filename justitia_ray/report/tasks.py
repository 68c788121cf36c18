"""What an arm does: a simulated run, a recorded run of hardware, or a timing of the core."""

import csv
import gzip
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.report.loads import Load
from justitia_ray.report.service import Served, served_requests
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import ApplicationResult, InferenceResult, RunResult
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
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that was measured on an A10G by the authors of VTC: `data/vtc_runs`."""

    path: Path
    name: str

    def run(self) -> RunResult:
        """Read it.

        Raises:
            ConfigError: If the file cannot be read.
        """
        try:
            with gzip.open(self.path, "rt", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            result = RunResult()
            for number, row in enumerate(rows):
                if row["latency_s"]:
                    _add_recorded(result, f"{number}", row)
        except (OSError, EOFError, KeyError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: must be a gzipped CSV file as of data/vtc_runs: {error!r}"
            ) from error
        return result

    def configuration(self) -> Mapping[str, Any]:
        """Return the name of the file."""
        return {"recording": self.name}


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """What was served of the requests of a run: all that the VTC paper's measures need of it.

    The whole of a run of thousands of requests is megabytes, and a report has hundreds of them.
    """

    of: Simulation | Recording

    def run(self) -> list[Served]:
        """Simulate or read.

        Raises:
            ConfigError: As the run does.
        """
        return served_requests(self.of.run())

    def configuration(self) -> Mapping[str, Any]:
        """Return that of the run."""
        return self.of.configuration()


@lru_cache(maxsize=2)
def _build(load: Load) -> list[WorkloadApplication]:
    """Runs of one load follow each other: most find it built."""
    return load.build()


def _add_recorded(result: RunResult, name: str, row: Mapping[str, str]) -> None:
    arrived_at_s = float(row["arrival_s"])
    finished_at_s = arrived_at_s + float(row["latency_s"])
    result.applications.append(
        ApplicationResult(
            application_id=name,
            application_class="request",
            tenant=row["client"],
            arrived_at_s=arrived_at_s,
            finished_at_s=finished_at_s,
            jct_s=finished_at_s - arrived_at_s,
            kv_token_time=0,
            predicted_kv_token_time=0,
            virtual_finish_time=None,
            gps_finished_at_s=None,
            outcome="finished",
        )
    )
    result.inferences.append(
        InferenceResult(
            application_id=name,
            inference_id="0",
            replica=0,
            submitted_at_s=arrived_at_s,
            dispatched_at_s=None,
            first_token_at_s=arrived_at_s + float(row["first_token_latency_s"]),
            finished_at_s=finished_at_s,
            prompt_tokens=int(row["prompt_tokens"]),
            output_tokens=int(row["output_tokens"]),
        )
    )
