"""The applications that scripts/bench_serve compares, side by side on one Ray cluster.

They share the machine, the proxy and the raylet, so that measures can alternate between them; only
one is called at a time. `local_app` runs one application; this runs the variants of one.
"""

import copy
import json
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from justitia_ray.bench.load import Target
from justitia_ray.config import parse_app_config
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.local_app import free_port, read_serve_config
from justitia_ray.serve.scheduler_actor import end_scheduler
from justitia_ray.units import Seconds

_POLL_S: Seconds = 0.25
_DEPLOY_TIMEOUT_S: Seconds = 600.0
"""Three vLLM engines on two cores take a minute and a half."""
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


DIRECT_PATH = "justitia_ray.serve.direct_app:build"
"""The baseline: without the queue."""


class BenchArms:
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
        self._home = tempfile.TemporaryDirectory(prefix="justitia-")
        self._port = free_port()
        values = read_serve_config(file)
        application = values["applications"][0]
        values["http_options"] = {"host": "127.0.0.1", "port": self._port}
        values["applications"] = [self._variant(application, arm, num_replicas) for arm in arms]
        self._values = values
        self._arms = arms
        self.config = parse_app_config(application["args"])

    def target(self, arm: Arm) -> Target:
        """Return where an arm answers."""
        return Target(self._port, f"/{arm.name}")

    def schedulers(self) -> dict[int, str]:
        """Return the name of the arm of each scheduler actor, by pid."""
        pids = {}
        for arm in self._arms:
            url = f"http://127.0.0.1:{self._port}/{arm.name}/v1/status"
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
        ray.init(
            address="local",
            num_cpus=_DECLARED_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            serve.start(proxy_location="HeadOnly", http_options=self._values["http_options"])
            schema = ServeDeploySchema.model_validate(copy.deepcopy(self._values))
            _get_global_client().deploy_apps(schema, _blocking=False)
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _variant(self, application: dict[str, Any], arm: Arm, replicas: int) -> dict[str, Any]:
        values = copy.deepcopy(application)
        values |= {
            "name": arm.name,
            "route_prefix": f"/{arm.name}",
            "import_path": arm.import_path,
        }
        values["args"]["name"] = arm.name
        values["args"]["store"] = {"data_dir": self._home.name}
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

    def _wait(self) -> None:
        deadline = time.monotonic() + _DEPLOY_TIMEOUT_S
        waiting = {arm.name for arm in self._arms}
        while waiting:
            applications = serve.status().applications
            for name in sorted(waiting):
                status = applications.get(name)
                if status is None:
                    continue
                if status.status == ApplicationStatus.RUNNING:
                    waiting.remove(name)
                elif status.status == ApplicationStatus.DEPLOY_FAILED:
                    raise JustitiaError(f"{name} did not come up: {status.message}")
            if time.monotonic() > deadline:
                raise JustitiaError(
                    f"{', '.join(sorted(waiting))} did not come up within {_DEPLOY_TIMEOUT_S:g} s"
                )
            time.sleep(_POLL_S)

    def _end(self) -> None:
        try:
            serve.shutdown()
            for application in self._values["applications"]:
                end_scheduler(parse_app_config(application["args"]))
        finally:
            ray.shutdown()
            self._home.cleanup()
