"""Separate Ray cluster on this machine with Serve applications, for the length of a block."""

import copy
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from justitia_ray.config import AppArgs, AppConfig, AppSettings
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.serve.accounts.handle import end_accounts
from justitia_ray.serve.ops.config_file import read_mapping
from justitia_ray.serve.scheduler.handle import end_scheduler
from justitia_ray.units import Seconds
from tests.harness.local_front import free_port, local_front
from tests.harness.ray_start import start_ray

_POLL_S = 1.0
"""Seconds between status requests: they take CPU time from engines that are loading."""
_LEAST_CPUS = 6
"""Smallest number of CPUs to declare to Ray."""


class LocalCluster:
    """Context manager that starts Ray and deploys a Serve configuration on a free port.

    Applications store their state in a directory that is removed at the end of the block.
    """

    values: dict[str, Any]
    """Serve configuration, set by subclasses; `http_options` in it are replaced."""

    def __init__(
        self,
        num_cpus: int,
        *,
        haproxy: bool = True,
        http_options: Mapping[str, Any] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """Choose a port; entering the `with` block starts the cluster.

        Args:
            num_cpus: CPUs that Ray is told of. It places by declared CPUs, and replicas, proxy and
                actors declare more than a small machine has.
            haproxy: Whether HAProxy is Serve's front where it can run; else the environment says.
            http_options: Of Serve, beside host and port.
            on_progress: Called several times a second while the block is entered, with what runs
                so far: `Ingress 1/1, Predictor 1/1, Replica 0/2`.
        """
        self._num_cpus = num_cpus
        self._haproxy = haproxy
        self._environment = ExitStack()
        self._more_http_options = dict(http_options or {})
        self._on_progress = on_progress
        self._home = TemporaryDirectory(prefix="justitia-")
        self.port = free_port()

    @property
    def data_dir(self) -> str:
        """Directory of the applications' state, removed at the end of the `with` block."""
        return self._home.name

    def __enter__(self) -> Self:
        """Start Ray, and deploy the applications.

        Raises:
            JustitiaError: If an application fails; the message is Serve's.
        """
        with ExitStack() as stack:
            if self._haproxy:
                stack.enter_context(local_front())
            start_ray(
                address="local",
                num_cpus=self._num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            self._environment = stack.pop_all()
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(proxy_location="HeadOnly", http_options=self._http_options)
            self.deploy(on_progress=self._on_progress)
        except BaseException:
            self._shut_down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shut_down()

    def deploy(
        self, timeout_s: Seconds = 600.0, *, on_progress: Callable[[str], None] | None = None
    ) -> None:
        """Deploy the Serve configuration, and wait until all applications run.

        Args:
            timeout_s: Three vLLM engines on two cores take a minute and a half.
            on_progress: Called several times a second with what runs so far.

        Raises:
            JustitiaError: If an application fails; the message is Serve's.
        """
        values = copy.deepcopy(self.values) | {"http_options": self._http_options}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values), _blocking=False)
        deadline = time.monotonic() + timeout_s
        waiting = [application["name"] for application in self.values["applications"]]
        while waiting := [name for name in waiting if not _is_running(name)]:
            if time.monotonic() > deadline:
                names = ", ".join(waiting)
                raise JustitiaError(f"{names} did not come up within {timeout_s:g} s")
            if on_progress is not None:
                on_progress(", ".join(_replica_counts(name) for name in waiting))
            time.sleep(_POLL_S)

    @property
    def _http_options(self) -> dict[str, Any]:
        return {**self._more_http_options, "host": "127.0.0.1", "port": self.port}

    def _shut_down(self) -> None:
        try:
            # `serve.shutdown()` ends the controller during the call; Ray reports that as a failure.
            for application in self.values["applications"]:
                serve.delete(application["name"])
                for place in AppArgs.parse(application["args"]).each_model():
                    config = place.config
                    end_scheduler(config.scheduler_name, config.scheduler.namespace)
                    end_accounts(config.name, config.scheduler.namespace)
        finally:
            ray.shutdown()
            self._home.cleanup()
            self._environment.close()


class LocalApp(LocalCluster):
    """First application of a Serve configuration file, on its own Ray cluster."""

    def __init__(
        self,
        file: Path,
        *,
        num_replicas: int | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """Read the Serve file; entering the `with` block starts the cluster.

        Args:
            file: A Serve configuration file of this project.
            num_replicas: Of each model, in place of the file's.
            on_progress: As for `LocalCluster`.

        Raises:
            ConfigError: If the file cannot be read or holds something else.
        """
        super().__init__(
            max(_LEAST_CPUS, ray._private.utils.get_num_cpus()), on_progress=on_progress
        )
        self.values = read_serve_config(file)
        application = self.values["applications"][0]
        application["args"].setdefault("store", {})["data_dir"] = self.data_dir
        args = AppArgs.parse(application["args"])
        placed = args.each_model()
        self._model_names = args.model_names
        self.config: AppConfig = placed[0].config
        """Settings of the application's first model."""
        if num_replicas is not None:
            for place in placed:
                self._deployment_values(place.replicas)["num_replicas"] = num_replicas

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def configure(self, **settings: Any) -> None:
        """Replace the ingress's `user_config` without restarting a process.

        Raises:
            ConfigError: If a setting is not allowed.
            JustitiaError: If Serve does not take it.
        """
        merged = {**self._deployment_values("Ingress").get("user_config", {}), **settings}
        AppSettings.parse(merged).each_model(self._model_names)
        self._deployment_values("Ingress")["user_config"] = merged
        self.deploy()

    def _deployment_values(self, name: str) -> dict[str, Any]:
        application = self.values["applications"][0]
        found: dict[str, Any] = next(d for d in application["deployments"] if d["name"] == name)
        return found


def read_serve_config(file: Path) -> dict[str, Any]:
    """Return a Serve configuration file of this project's application.

    Raises:
        ConfigError: If it cannot be read, is not YAML or names no application.
    """
    values = read_mapping(file)
    if not values.get("applications"):
        raise ConfigError(f"{file}: `applications` with at least one application is needed")
    return values


def _is_running(name: str) -> bool:
    status = serve.status().applications.get(name)
    if status is None:
        return False
    if status.status == ApplicationStatus.DEPLOY_FAILED:
        raise JustitiaError(f"{name} did not come up: {status.message}")
    return bool(status.status == ApplicationStatus.RUNNING)


def _replica_counts(name: str) -> str:
    """Return running and wanted replicas by deployment, e.g. `Ingress 1/1, Replica 0/2`."""
    status = serve.status().applications.get(name)
    if status is None or not status.deployments:
        return f"{name} is being built"
    return ", ".join(
        f"{deployment} {found.replica_states.get('RUNNING', 0)}/"
        f"{sum(found.replica_states.values())}"
        for deployment, found in sorted(status.deployments.items())
    )
