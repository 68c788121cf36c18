"""A Ray cluster and the application on this machine, from a Serve configuration file.

Does what `serve run FILE` and `serve deploy FILE` do, in one process and on free ports, and ends
everything it started. The demo, the benchmarks and the tests use it.
"""

import copy
import logging
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from justitia_ray.config import AppConfig, parse_app_config, parse_scheduling_config
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.serve.config_file import read_mapping
from justitia_ray.serve.scheduler_actor import end_scheduler
from justitia_ray.units import Seconds

_POLL_S = 0.25
_LEAST_CPUS = 6
"""Ray places by declared CPUs; replicas, proxy and actors declare more than two cores have."""


class LocalApp:
    """The first application of a Serve configuration file, on a Ray cluster of its own."""

    def __init__(self, file: Path, *, num_replicas: int | None = None) -> None:
        """Read the file; nothing is started before the block is entered.

        Args:
            file: A Serve configuration file of this project.
            num_replicas: In place of the file's.

        Raises:
            ConfigError: If the file cannot be read or holds something else.
        """
        self._values = read_serve_config(file)
        self._home = tempfile.TemporaryDirectory(prefix="justitia-")
        self._port = free_port()
        self._values["http_options"] = {"host": "127.0.0.1", "port": self._port}
        application = self._values["applications"][0]
        application["args"].setdefault("store", {})["data_dir"] = self._home.name
        self.config: AppConfig = parse_app_config(application["args"])
        if num_replicas is not None:
            self._deployment("Replica")["num_replicas"] = num_replicas

    @property
    def url(self) -> str:
        """Where the application answers."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        """Start Ray and deploy.

        Raises:
            JustitiaError: If a deployment fails; the message is Serve's.
        """
        ray.init(
            address="local",
            num_cpus=max(_LEAST_CPUS, ray._private.utils.get_num_cpus()),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            options = self._values["http_options"]
            serve.start(proxy_location="HeadOnly", http_options=options)
            self._deploy()
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

    def configure(self, **settings: Any) -> None:
        """Change the Ingress's `user_config`: nothing restarts, the queue stays.

        Raises:
            ConfigError: If a setting is not allowed.
            JustitiaError: If Serve does not take it.
        """
        merged = {**self._deployment("Ingress").get("user_config", {}), **settings}
        parse_scheduling_config(merged)
        self._deployment("Ingress")["user_config"] = merged
        self._deploy()

    def _deployment(self, name: str) -> dict[str, Any]:
        application = self._values["applications"][0]
        found: dict[str, Any] = next(d for d in application["deployments"] if d["name"] == name)
        return found

    def _deploy(self, timeout_s: Seconds = 600.0) -> None:
        schema = ServeDeploySchema.model_validate(copy.deepcopy(self._values))
        _get_global_client().deploy_apps(schema, _blocking=False)
        deadline = time.monotonic() + timeout_s
        while True:
            status = serve.status().applications.get(self.config.name)
            if status is not None and status.status == ApplicationStatus.RUNNING:
                return
            failed = status is not None and status.status == ApplicationStatus.DEPLOY_FAILED
            if failed or time.monotonic() > deadline:
                message = status.message if status is not None else "nothing was deployed"
                raise JustitiaError(f"the application did not come up: {message}")
            time.sleep(_POLL_S)

    def _end(self) -> None:
        try:
            # Not `serve.shutdown()`: the controller would end itself in the middle of the call,
            # which Ray reports as a failure. It goes with the cluster.
            serve.delete(self.config.name)
            end_scheduler(self.config)
        finally:
            ray.shutdown()
            self._home.cleanup()


def read_serve_config(file: Path) -> dict[str, Any]:
    """Return a Serve configuration file that names this project's application.

    Raises:
        ConfigError: If it cannot be read, is not YAML or names no application.
    """
    values = read_mapping(file)
    if not values.get("applications"):
        raise ConfigError(f"{file}: `applications` with at least one application is needed")
    return values


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
