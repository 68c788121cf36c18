"""What of this project runs on a Ray cluster: Serve's applications, and their schedulers.

Serve knows an application that came from a configuration file by that file. One that came from
`serve.run` is known by its LeaseRouter, and its scheduler by its name. A scheduler may also be all
that is left, of an application that was deleted with `serve delete`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.serve.context import _get_global_client  # `serve.status` leaves out the arguments

from justitia_ray.app_args import parse_app_args
from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.errors import ConfigError
from justitia_ray.serve.config_file import IMPORT_PATH

Configs = tuple[AppConfig, ...]
"""Of an application: one for each of its models."""

_PREFIX = "scheduler/"
_ROUTER = "justitia_ray.serve.lease_router.LeaseRouter"


@dataclass(frozen=True, slots=True)
class SchedulerName:
    """A scheduler actor by name."""

    namespace: str
    application: str
    model: str

    @classmethod
    def of(cls, config: AppConfig) -> "SchedulerName":
        """Return the name of an application's scheduler."""
        return cls(config.scheduler.namespace, config.name, config.model.name)

    @property
    def actor_name(self) -> str:
        """What Ray calls it."""
        return f"{_PREFIX}{self.application}/{self.model}"

    def as_config(self) -> AppConfig:
        """Return as much of a configuration as it takes to end it."""
        return parse_app_config(
            {
                "name": self.application,
                "model": {"name": self.model, "path": "unknown"},
                "scheduler": {"namespace": self.namespace},
            }
        )


@dataclass(frozen=True, slots=True)
class Running:
    """What of this project runs on a cluster."""

    applications: Mapping[str, Configs | None]
    """By Serve's name for them; None where Serve has no configuration file."""
    schedulers: frozenset[SchedulerName]


def find_running() -> Running:
    """Look what of this project runs on the connected cluster."""
    applications: dict[str, Configs | None] = {}
    for serve_name, details in serve_applications().items():
        values = details.get("deployed_app_config") or {}
        if values.get("import_path") == IMPORT_PATH:
            applications[serve_name] = _configs_of(values.get("args", {}))
        elif any(_has_lease_router(d) for d in details["deployments"].values()):
            applications[serve_name] = None
    schedulers = set()
    for actor in ray.util.list_named_actors(all_namespaces=True):
        scheduler = scheduler_of(actor["namespace"], actor["name"])
        if scheduler is not None and _is_ours(scheduler):
            schedulers.add(scheduler)
    return Running(applications, frozenset(schedulers))


def scheduler_of(namespace: str, actor_name: str) -> SchedulerName | None:
    """Read an actor's name; None if it is not the name of a scheduler."""
    application, _, model = actor_name.removeprefix(_PREFIX).partition("/")
    if not actor_name.startswith(_PREFIX) or not application or not model:
        return None
    return SchedulerName(namespace, application, model)


def serve_applications() -> dict[str, Any]:
    """Return what Serve tells of each application, by its name for it."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return {} if client is None else dict(client.get_serve_details()["applications"])


def _configs_of(args: dict[str, Any]) -> Configs | None:
    try:
        return tuple(placed.config for placed in parse_app_args(args).each_model())
    except ConfigError:
        return None  # of another version: its scheduler is found by its name


def _has_lease_router(deployment: Mapping[str, Any]) -> bool:
    router = deployment["deployment_config"].get("request_router_config") or {}
    return bool(router.get("request_router_class") == _ROUTER)


def _is_ours(scheduler: SchedulerName) -> bool:
    """Return whether the actor has a scheduler's methods: other projects name actors as well."""
    try:
        actor = ray.get_actor(scheduler.actor_name, namespace=scheduler.namespace)
    except ValueError:
        return False  # ended meanwhile
    return hasattr(actor, "retire") and hasattr(actor, "poll_grants")
