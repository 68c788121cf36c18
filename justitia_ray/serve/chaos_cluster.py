"""A Ray cluster to break: GCS and store on Redis servers of their own."""

import copy
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from justitia_ray.config import parse_app_config
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.chaos_redis import ChaosRedis
from justitia_ray.serve.chaos_target import ChaosTarget
from justitia_ray.serve.local_cluster import LocalCluster, free_port, read_serve_config
from justitia_ray.store.redis_binary import dying_with_parent

_CPUS = 16
"""That Ray is told of: to reserve, not to use."""
_GCS = "gcs_server"


@dataclass(frozen=True, slots=True)
class Size:
    """How many processes each deployment has."""

    replicas: int
    ingresses: int = 2
    predictors: int = 1


class ChaosCluster(LocalCluster):
    """The application of a Serve file, journalled, on a cluster whose every part can be killed.

    Ray's GCS is fault tolerant here: it keeps its tables in a Redis, and listens on a port that is
    fixed, without which nobody would find the one that is started in its place.
    """

    def __init__(self, file: Path, size: Size, args: Mapping[str, Any]) -> None:
        """Read the file; nothing is started before the block is entered.

        Args:
            file: A Serve configuration file of this project.
            size: In place of the file's.
            args: Arguments of the application, merged into the file's at every depth.
        """
        super().__init__(_CPUS)
        home = Path(self.data_dir)
        self.store = ChaosRedis(home / "store", free_port())
        self._gcs_store = ChaosRedis(home / "gcs", free_port())
        self._gcs: subprocess.Popen[bytes] | None = None
        self._gcs_is_down = False
        self._gcs_command: list[str] = []
        self._gcs_environment: dict[str, str] = {}
        self.values = read_serve_config(file)
        application = self.values["applications"][0]
        application["import_path"] = "justitia_ray.serve.chaos_app:build"
        arguments = application["args"]
        merge(arguments, args)
        arguments["store"] = {"redis_url": self.store.url, "data_dir": self.data_dir}
        wanted = {
            "Ingress": size.ingresses,
            "Predictor": size.predictors,
            "Replica": size.replicas,
        }
        self.target = ChaosTarget(application["name"], parse_app_config(arguments), wanted)
        for name, count in wanted.items():
            self._deployment(name)["num_replicas"] = count

    def __enter__(self) -> Self:
        """Start both Redis servers, Ray and the application.

        Raises:
            JustitiaError: If something does not come up.
        """
        try:
            self.store.start()
            self._gcs_store.start()
            with _environment(
                RAY_REDIS_ADDRESS=self._gcs_store.address,
                RAY_GCS_SERVER_PORT=str(free_port()),
                RAY_external_storage_namespace="chaos",
            ):
                return super().__enter__()
        except BaseException:
            self._end_servers()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.store.resume()
        if self._gcs_is_down:  # nothing can be ended in order without it
            self.start_gcs()
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._end_servers()

    @property
    def url(self) -> str:
        """Where the application answers."""
        return f"http://127.0.0.1:{self.port}"

    def scale(self, replicas: int) -> None:
        """Ask Serve for so many replicas; does not wait."""
        self.target.wanted["Replica"] = replicas
        self._deployment("Replica")["num_replicas"] = replicas
        self._apply()

    def change_version(self, *, everything: bool) -> None:
        """Ask Serve for another version, of all deployments or of the replicas; does not wait."""
        application = self.values["applications"][0]
        if everything:
            section = application["args"].setdefault("replica", {})
            section["chunk_interval_s"] = section.get("chunk_interval_s", 0.03) + 0.001
        else:
            options = self._deployment("Replica").setdefault("ray_actor_options", {})
            options["num_cpus"] = round(options.get("num_cpus", 0.2) + 0.01, 2)
        self._apply()

    def kill_gcs(self) -> None:
        """Kill Ray's GCS.

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
        """Start the GCS again with its own command line, as whoever supervises it would."""
        self._gcs = subprocess.Popen(
            [*dying_with_parent(), *self._gcs_command],
            env=self._gcs_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._gcs_is_down = False

    def _apply(self) -> None:
        values = copy.deepcopy(self.values) | {"http_options": self._http_options}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(values), _blocking=False)

    def _deployment(self, name: str) -> dict[str, Any]:
        application = self.values["applications"][0]
        found: dict[str, Any] = next(d for d in application["deployments"] if d["name"] == name)
        return found

    def _end_servers(self) -> None:
        if self._gcs is not None:  # ray.shutdown ends only what ray.init has started
            self._gcs.kill()
            self._gcs.wait()
        self.store.kill()
        self._gcs_store.kill()


def gcs_answers() -> bool:
    """Return whether Ray's GCS and Serve's controller can be asked."""
    with suppress(Exception):  # whatever it is, they do not answer
        named = ray.util.list_named_actors(all_namespaces=True)  # only the GCS knows
        return bool(named and serve.status().applications)
    return False


def merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Change what is named in `changes`, at every depth, and keep the rest."""
    for key, change in changes.items():
        if isinstance(change, Mapping):
            merge(into.setdefault(key, {}), change)
        else:
            into[key] = change


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
