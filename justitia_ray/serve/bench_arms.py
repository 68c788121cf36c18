"""The applications that scripts/bench_serve compares, side by side on one Ray cluster.

They share the machine, the proxy and the raylet, so that measures can alternate between them; only
one is called at a time. `local_app` runs one application; this runs the variants of one.
"""

import copy
import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from justitia_ray.bench.load import Target
from justitia_ray.config import parse_app_config
from justitia_ray.serve.local_cluster import LocalCluster, read_serve_config
from justitia_ray.units import Seconds

_DECLARED_CPUS = 16
"""Ray places by declared CPUs, and the variants declare more than two cores have."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of the application."""

    name: str
    import_path: str = "justitia_ray.serve.app:build"
    chunk_interval_s: Seconds | None = None
    """In place of the file's."""
    iteration_s: Seconds | None = None
    """Of the fake engine, in place of the file's."""
    metrics: bool = True


DIRECT_PATH = "justitia_ray.serve.direct_app:build"
"""The baseline: without the queue."""


class BenchArms(LocalCluster):
    """Several variants of the first application of a Serve configuration file, to be entered."""

    def __init__(self, file: Path, arms: tuple[Arm, ...], num_replicas: int) -> None:
        """Read the file; nothing is started before the block is entered.

        Args:
            file: A Serve configuration file of this project.
            arms: The variants.
            num_replicas: Engines of each.

        Raises:
            ConfigError: If the file cannot be read or holds something else.
        """
        super().__init__(_DECLARED_CPUS)
        values = read_serve_config(file)
        application = values["applications"][0]
        values["applications"] = [self._variant(application, arm, num_replicas) for arm in arms]
        self.values = values
        self._arms = arms
        self.config = parse_app_config(application["args"])

    def target(self, arm: Arm) -> Target:
        """Return where an arm answers."""
        return Target(self.port, f"/{arm.name}")

    def schedulers(self) -> dict[int, str]:
        """Return the name of the arm of each scheduler actor, by pid."""
        pids = {}
        for arm in self._arms:
            url = f"http://127.0.0.1:{self.port}/{arm.name}/v1/status"
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                pid = json.load(answer).get("pid")
            if pid is not None:
                pids[int(pid)] = arm.name
        return pids

    def __enter__(self) -> Self:
        """Start Ray and deploy all arms.

        Raises:
            JustitiaError: If one fails; the message is Serve's.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's default of 15 would let anything else on the machine into the figures.
        os.environ.setdefault("RAY_worker_niceness", "0")
        return super().__enter__()

    def _variant(self, application: dict[str, Any], arm: Arm, replicas: int) -> dict[str, Any]:
        values = copy.deepcopy(application)
        values |= {
            "name": arm.name,
            "route_prefix": f"/{arm.name}",
            "import_path": arm.import_path,
        }
        values["args"]["name"] = arm.name
        values["args"]["store"] = {"data_dir": self.data_dir}
        values["args"]["metrics"] = {"enabled": arm.metrics}
        if arm.chunk_interval_s is not None:
            section = values["args"].setdefault("replica", {})
            section["chunk_interval_s"] = arm.chunk_interval_s
        if arm.iteration_s is not None:
            fake = values["args"]["engine"].setdefault("fake", {})
            fake["iteration_s"] = arm.iteration_s
        for deployment in values["deployments"]:
            if deployment["name"] == "Replica":
                deployment["num_replicas"] = replicas
        if arm.import_path == DIRECT_PATH:
            values["deployments"] = [d for d in values["deployments"] if d["name"] != "Predictor"]
        return values
