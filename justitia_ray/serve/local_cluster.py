"""A Ray cluster of its own on this machine, with Serve applications on it, for one block."""

import copy
import logging
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from justitia_ray.config import parse_app_config
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.serve.config_file import read_mapping
from justitia_ray.serve.scheduler_actor import end_scheduler
from justitia_ray.units import Seconds

_POLL_S = 0.25


class LocalCluster:
    """Starts Ray, deploys `values` on a free port, and ends everything it started.

    What the applications store lies in a directory that goes with the block.
    """

    values: dict[str, Any]
    """The Serve configuration, to be set by subclasses; its `http_options` are replaced."""

    def __init__(self, num_cpus: int) -> None:
        """Choose a port; nothing is started before the block is entered.

        Args:
            num_cpus: CPUs that Ray is told of. It places by declared CPUs, and replicas, proxy and
                actors declare more than a small machine has.
        """
        self._num_cpus = num_cpus
        self._home = TemporaryDirectory(prefix="justitia-")
        self.port = free_port()

    @property
    def data_dir(self) -> str:
        """Where the applications are to store their state."""
        return self._home.name

    def __enter__(self) -> Self:
        """Start Ray and deploy.

        Raises:
            JustitiaError: If an application fails; the message is Serve's.
        """
        ray.init(
            address="local",
            num_cpus=self._num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(proxy_location="HeadOnly", http_options=self._http_options)
            self.deploy()
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

    def deploy(self, timeout_s: Seconds = 600.0) -> None:
        """Deploy the configuration, or what changed of it, and wait until all of it runs.

        Args:
            timeout_s: Three vLLM engines on two cores take a minute and a half.

        Raises:
            JustitiaError: If an application fails; the message is Serve's.
        """
        values = copy.deepcopy(self.values) | {"http_options": self._http_options}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values), _blocking=False)
        deadline = time.monotonic() + timeout_s
        waiting = [application["name"] for application in self.values["applications"]]
        while waiting := [name for name in waiting if not _is_up(name)]:
            if time.monotonic() > deadline:
                names = ", ".join(waiting)
                raise JustitiaError(f"{names} did not come up within {timeout_s:g} s")
            time.sleep(_POLL_S)

    @property
    def _http_options(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port}

    def _end(self) -> None:
        try:
            # Not `serve.shutdown()`: the controller would end itself in the middle of the call,
            # which Ray reports as a failure. It goes with the cluster.
            for application in self.values["applications"]:
                serve.delete(application["name"])
                end_scheduler(parse_app_config(application["args"]))
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


def _is_up(name: str) -> bool:
    status = serve.status().applications.get(name)
    if status is None:
        return False
    if status.status == ApplicationStatus.DEPLOY_FAILED:
        raise JustitiaError(f"{name} did not come up: {status.message}")
    return bool(status.status == ApplicationStatus.RUNNING)
