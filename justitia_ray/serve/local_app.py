"""The application on this machine, from a Serve configuration file.

Does what `serve run FILE` and `serve deploy FILE` do, in one process and on free ports, and ends
everything it started. The demo uses it.
"""

from pathlib import Path
from typing import Any

import ray

from justitia_ray.app_args import parse_app_args, parse_app_settings
from justitia_ray.config import AppConfig
from justitia_ray.serve.local_cluster import LocalCluster, read_serve_config

_LEAST_CPUS = 6


class LocalApp(LocalCluster):
    """The first application of a Serve configuration file, on a Ray cluster of its own."""

    def __init__(self, file: Path, *, num_replicas: int | None = None) -> None:
        """Read the file; nothing is started before the block is entered.

        Args:
            file: A Serve configuration file of this project.
            num_replicas: Of each model, in place of the file's.

        Raises:
            ConfigError: If the file cannot be read or holds something else.
        """
        super().__init__(max(_LEAST_CPUS, ray._private.utils.get_num_cpus()))
        self.values = read_serve_config(file)
        application = self.values["applications"][0]
        application["args"].setdefault("store", {})["data_dir"] = self.data_dir
        args = parse_app_args(application["args"])
        placed = args.each_model()
        self._model_names = args.model_names
        self.config: AppConfig = placed[0].config
        """Of its first model."""
        if num_replicas is not None:
            for place in placed:
                self._deployment(place.replicas)["num_replicas"] = num_replicas

    @property
    def url(self) -> str:
        """Where the application answers."""
        return f"http://127.0.0.1:{self.port}"

    def configure(self, **settings: Any) -> None:
        """Change the Ingress's `user_config`: nothing restarts, the queue stays.

        Raises:
            ConfigError: If a setting is not allowed.
            JustitiaError: If Serve does not take it.
        """
        merged = {**self._deployment("Ingress").get("user_config", {}), **settings}
        parse_app_settings(merged).each_model(self._model_names)
        self._deployment("Ingress")["user_config"] = merged
        self.deploy()

    def _deployment(self, name: str) -> dict[str, Any]:
        application = self.values["applications"][0]
        found: dict[str, Any] = next(d for d in application["deployments"] if d["name"] == name)
        return found
