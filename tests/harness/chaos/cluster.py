"""Ray cluster that a chaos run can break; its GCS and its store have Redis servers to kill."""

import copy
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError, StoreError
from justitia_ray.store.embedded import dying_with_parent, find_redis_server
from justitia_ray.units import Seconds
from tests.harness.chaos.crowd import QUOTAS
from tests.harness.chaos.target import ChaosTarget
from tests.harness.key_ring import GATEWAY, gateway_keys
from tests.harness.local_cluster import LocalCluster, read_serve_config
from tests.harness.local_front import environment, free_port
from tests.harness.ray_code import repository_environment

_UP_WITHIN_S: Seconds = 20.0
_POLL_S: Seconds = 0.02


class ChaosRedis:
    """Redis server of a test on a loopback port."""

    def __init__(self, directory: Path, port: int) -> None:
        """Set directory and port of the server; `start` starts it.

        Args:
            directory: Made if it is missing.
            port: A free one.
        """
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    @property
    def pid(self) -> int | None:
        """Process id of the running server; None if it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server, and block until it answers.

        Raises:
            StoreError: If it does not come up.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [
            *dying_with_parent(),
            str(find_redis_server()),
            *("--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
            *("--appendonly", "yes", "--save", "", "--daemonize", "no"),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + _UP_WITHIN_S
        while not self._is_answering():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise StoreError(f"the Redis server on {self.address} did not come up")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Kill the server if it runs; its data stay on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def delete_data(self) -> None:
        shutil.rmtree(self._directory)

    def suspend(self) -> None:
        """Suspend the server: it accepts connections and does not answer."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def demote(self) -> None:
        """Make the server a replica of a missing master: it answers reads and refuses writes."""
        self._run_command(b"REPLICAOF 127.0.0.1 1\r\n")

    def promote(self) -> None:
        """Make the server a master again; its data are kept."""
        self._run_command(b"REPLICAOF NO ONE\r\n")

    def _is_answering(self) -> bool:
        try:
            return self._run_command(b"PING\r\n").startswith(b"+PONG")
        except OSError:
            return False

    def _run_command(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
            connection.sendall(command)
            return connection.recv(16)


ONE_ORDER = {"policy": "justitia", "policy_options": {"fairness": "application"}}
"""Scheduling settings under which tenants do not matter, so that the virtual finish times of all
applications can be compared.
"""

_CPUS = 16
"""CPUs declared to Ray, which uses the number for reservations only."""
_GCS = "gcs_server"


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """Number of processes of each Serve deployment."""

    replicas: int
    ingresses: int = 2
    predictors: int = 1


class ChaosCluster(LocalCluster):
    """Cluster with the application of a Serve file; a test can kill each of its processes.

    Ray's GCS is fault tolerant here: it stores its tables in Redis and listens on a fixed port, so
    that a restarted one is found.
    """

    def __init__(self, file: Path, size: ClusterSize, args: Mapping[str, Any]) -> None:
        """Read the Serve file; entering the `with` block starts the cluster.

        Args:
            file: A Serve configuration file of this project.
            size: In place of the file's; with `autoscaling` in the arguments, not of the replicas.
            args: Arguments of the application, merged into the file's at every depth.
        """
        super().__init__(_CPUS, haproxy=False)
        home = Path(self.data_dir)
        self.store = ChaosRedis(home / "store", free_port())
        self._gcs_store = ChaosRedis(home / "gcs", free_port())
        self._gcs: subprocess.Popen[bytes] | None = None
        self._gcs_is_down = False
        self._gcs_command: list[str] = []
        self._gcs_environment: dict[str, str] = {}
        self.values = read_serve_config(file)
        application = self.values["applications"][0]
        application["runtime_env"] = repository_environment()
        arguments = application["args"]
        merge_values(arguments, args)
        keys = gateway_keys(home)
        self.api_key = keys.secrets[GATEWAY]
        """API key whose calls may name any tenant."""
        arguments["access"] = {"keys_file": str(keys.file)}
        arguments["store"] = {"redis_url": self.store.url, "data_dir": self.data_dir}
        wanted = {
            "Ingress": size.ingresses,
            "Predictor": size.predictors,
            "Replica": size.replicas,
        }
        config = AppConfig.parse(arguments)
        builder = "build"
        if config.autoscaling is not None:
            builder = "build_loading"
            wanted["Replica"] = config.autoscaling.min_replicas
        application["import_path"] = f"tests.harness.chaos.app:{builder}"
        self.target = ChaosTarget(application["name"], config, wanted)
        for name, count in wanted.items():
            self._deployment_values(name)["num_replicas"] = count
        if config.autoscaling is not None:
            del self._deployment_values("Replica")["num_replicas"]
        self._deployment_values("Ingress")["user_config"] = ONE_ORDER | QUOTAS

    def __enter__(self) -> Self:
        """Start both Redis servers, Ray and the application.

        Raises:
            JustitiaError: If something does not come up.
        """
        try:
            self.store.start()
            self._gcs_store.start()
            gcs = {
                "RAY_REDIS_ADDRESS": self._gcs_store.address,
                "RAY_GCS_SERVER_PORT": str(free_port()),
                "RAY_external_storage_namespace": "chaos",
            }
            with environment(gcs):
                return super().__enter__()
        except BaseException:
            self._kill_servers()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.store.resume()
        if self._gcs_is_down:  # Ray's shutdown needs the GCS
            self.start_gcs()
        with ExitStack() as ending:
            ending.callback(self._kill_servers)
            ending.callback(super().__exit__, kind, error, traceback)
            self.target.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def scale(self, replicas: int) -> None:
        """Ask Serve for a number of replicas, without waiting."""
        self.target.wanted["Replica"] = replicas
        self._deployment_values("Replica")["num_replicas"] = replicas
        self._apply_configuration()

    def change_version(self, *, everything: bool) -> None:
        """Redeploy all deployments or only the replicas, without waiting."""
        application = self.values["applications"][0]
        if everything:
            section = application["args"].setdefault("replica", {})
            section["chunk_interval_s"] = section.get("chunk_interval_s", 0.0) + 0.001
        else:
            options = self._deployment_values("Replica").setdefault("ray_actor_options", {})
            options["num_cpus"] = round(options.get("num_cpus", 0.2) + 0.01, 2)
        self._apply_configuration()

    def kill_gcs(self) -> None:
        """Kill the GCS, Ray's cluster controller.

        Raises:
            JustitiaError: If this process has started none.
        """
        for child in psutil.Process().children():
            if child.name() == _GCS and child.status() != psutil.STATUS_ZOMBIE:
                self._gcs_command, self._gcs_environment = child.cmdline(), child.environ()
                child.kill()
                child.wait()
                self._gcs_is_down = True
                return
        raise JustitiaError("this process has started no GCS")

    def start_gcs(self) -> None:
        """Start the GCS again with its own command line, as a supervisor would."""
        self._gcs = subprocess.Popen(
            [*dying_with_parent(), *self._gcs_command],
            env=self._gcs_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._gcs_is_down = False

    def _apply_configuration(self) -> None:
        values = copy.deepcopy(self.values) | {"http_options": self._http_options}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values), _blocking=False)

    def _deployment_values(self, name: str) -> dict[str, Any]:
        application = self.values["applications"][0]
        found: dict[str, Any] = next(d for d in application["deployments"] if d["name"] == name)
        return found

    def _kill_servers(self) -> None:
        if self._gcs is not None:  # `ray.shutdown` ends only processes that `ray.init` has started.
            self._gcs.kill()
            self._gcs.wait()
        self.store.kill()
        self._gcs_store.kill()


def gcs_answers() -> bool:
    """Return whether Ray's GCS and Serve's controller answer."""
    with suppress(Exception):  # Any error means that the GCS or the controller does not answer.
        named = ray.util.list_named_actors(all_namespaces=True)  # only the GCS has this list
        return bool(named and serve.status().applications)
    return False


def merge_values(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge `changes` into nested settings; other keys stay."""
    for key, change in changes.items():
        if isinstance(change, Mapping):
            merge_values(into.setdefault(key, {}), change)
        else:
            into[key] = change
