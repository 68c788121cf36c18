"""End applications from outside: first in Serve, then their detached schedulers.

Serve keeps the configuration file from which an application was deployed. An application from
`serve.run` is recognised by the names of its deployments, and a scheduler by the name of its actor.
After `serve delete`, only the scheduler may be left.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client  # `serve.status` has no arguments

from justitia_ray.config import AppArgs, AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.accounts.handle import end_accounts
from justitia_ray.serve.ops.config_file import IMPORT_PATH
from justitia_ray.serve.scheduler.handle import end_scheduler
from justitia_ray.units import Seconds

Configs = tuple[AppConfig, ...]
"""Configurations of an application, one for each of its models."""

_SCHEDULER_PREFIX = "scheduler/"
_DEPLOYMENTS = ("Ingress", "Replica", "Predictor")
"""Prefixes of the names of the deployments in every application of this package."""

_SERVE_NAMESPACE = "serve"
_POLL_S: Seconds = 0.2
_KILLED_WITHIN_S: Seconds = 20.0
"""Maximum seconds until Ray Serve notices that killed processes have exited."""


@dataclass(frozen=True, slots=True)
class SchedulerName:
    """Application, model and namespace in the name of a scheduler actor."""

    namespace: str
    application: str
    model: str

    @classmethod
    def of(cls, config: AppConfig) -> "SchedulerName":
        return cls(config.scheduler.namespace, config.name, config.model.name)

    @property
    def actor_name(self) -> str:
        """Name of the scheduler's actor in Ray."""
        return f"{_SCHEDULER_PREFIX}{self.application}/{self.model}"


def find_applications() -> dict[str, Configs | None]:
    """Return this package's applications on the connected cluster, by their names in Ray Serve.

    The configurations are None if Serve has no configuration file for the application.
    """
    applications: dict[str, Configs | None] = {}
    for serve_name, details in serve_applications().items():
        values = details.get("deployed_app_config") or {}
        if values.get("import_path") == IMPORT_PATH:
            applications[serve_name] = _configs_of(values.get("args", {}))
        elif _has_our_deployments(details["deployments"]):
            applications[serve_name] = None
    return applications


def find_schedulers() -> set[SchedulerName]:
    """Return this package's schedulers on the connected cluster."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    found = (scheduler_of(actor["namespace"], actor["name"]) for actor in actors)
    return {scheduler for scheduler in found if scheduler is not None and _is_scheduler(scheduler)}


def scheduler_of(namespace: str, actor_name: str) -> SchedulerName | None:
    """Parse the name of an actor; None if it is not the name of a scheduler."""
    application, _, model = actor_name.removeprefix(_SCHEDULER_PREFIX).partition("/")
    if not actor_name.startswith(_SCHEDULER_PREFIX) or not application or not model:
        return None
    return SchedulerName(namespace, application, model)


def serve_applications() -> dict[str, Any]:
    """Return Ray Serve's details of each application, by the application's name."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return {} if client is None else dict(client.get_serve_details()["applications"])


def _configs_of(args: dict[str, Any]) -> Configs | None:
    try:
        return tuple(placed.config for placed in AppArgs.parse(args).each_model())
    except ConfigError:
        return None  # Another version deployed the application; its scheduler is found by name.


def _has_our_deployments(names: Iterable[str]) -> bool:
    """Return whether an application has exactly the kinds of deployments of this package."""
    return {name.partition("-")[0] for name in names} == set(_DEPLOYMENTS)


def _is_scheduler(scheduler: SchedulerName) -> bool:
    """Return whether an actor has a scheduler's methods; other programs may use similar names."""
    try:
        actor = ray.get_actor(scheduler.actor_name, namespace=scheduler.namespace)
    except ValueError:
        return False  # The actor has ended in the meantime.
    return hasattr(actor, "retire") and hasattr(actor, "cancel_application")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selection of applications and schedulers to end; a field that is None selects all."""

    name: str | None = None
    model: str | None = None
    configs: Mapping[str, Configs] | None = None
    """Configurations of the applications in a file, by their names in Ray Serve."""

    def application(self, serve_name: str, configs: Configs | None) -> bool:
        """Return whether an application in Ray Serve is selected with all of its models."""
        if self.configs is not None:
            return serve_name in self.configs
        if self.name is None:
            return True
        if configs is None:
            return serve_name == self.name
        return self._has_schedulers_of(configs) and not self.names_a_part(configs)

    def names_a_part(self, configs: Configs | None) -> bool:
        """Return whether only some models of an application are selected."""
        if configs is None or self.configs is not None or self.model is None:
            return False
        return len(configs) > 1 and self._has_schedulers_of(configs)

    def scheduler(self, scheduler: SchedulerName) -> bool:
        """Return whether a scheduler is selected."""
        if self.configs is not None:
            return any(scheduler == SchedulerName.of(c) for c in chain(*self.configs.values()))
        return self.name in (None, scheduler.application) and self.model in (None, scheduler.model)

    def _has_schedulers_of(self, configs: Configs) -> bool:
        return any(self.scheduler(SchedulerName.of(config)) for config in configs)


@dataclass(slots=True)
class ShutdownOutcome:
    """Result of a shutdown, as sentences for the operator."""

    ended: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Parts of the service that could not be ended, each with the reason."""


def shut_down(chosen: Chosen, address: str, wait_s: Seconds) -> ShutdownOutcome:
    """End the selected applications and schedulers. Blocks.

    Args:
        chosen: Selection of applications and schedulers to end.
        address: Address of the Ray cluster, as for `ray.init`; not used if Ray is connected
            already.
        wait_s: Time for running calls to end, in seconds; then they are cut off.

    Raises:
        ConnectionError: If no Ray cluster runs at the address.
    """
    outcome = ShutdownOutcome()
    with _connected_to_ray(address):
        running, schedulers = find_applications(), find_schedulers()
        applications = {
            serve_name: configs
            for serve_name, configs in running.items()
            if chosen.application(serve_name, configs)
        }
        _delete_applications(applications, wait_s, outcome)
        there = schedulers
        schedulers = {s for s in schedulers if chosen.scheduler(s)}
        schedulers -= _schedulers_in_use(chosen, running, outcome)
        stores = {SchedulerName.of(c): c for cs in applications.values() for c in cs or ()}
        schedulers |= set(stores)
        for scheduler in sorted(schedulers, key=lambda s: (s.namespace, s.actor_name)):
            _end_scheduler(scheduler, stores.get(scheduler), outcome)
        left = {(s.namespace, s.application) for s in there - schedulers}
        for namespace, application in sorted({(s.namespace, s.application) for s in schedulers}):
            if (namespace, application) not in left:
                _end_accounts(application, namespace, outcome)
    return outcome


def _schedulers_in_use(
    chosen: Chosen, running: Mapping[str, Configs | None], outcome: ShutdownOutcome
) -> set[SchedulerName]:
    """Return the schedulers that keep running because the rest of their application does."""
    in_use: set[SchedulerName] = set()
    for serve_name, configs in running.items():
        if chosen.names_a_part(configs):
            in_use |= {SchedulerName.of(config) for config in configs or ()}
            outcome.left.append(
                f"application {serve_name!r} serves other models than {chosen.model!r} too: leave"
                " out --model to end it whole, or take that model out of `models` in its file,"
                " deploy the file, and end the scheduler that is left then"
            )
    return in_use


@contextmanager
def _connected_to_ray(address: str) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(f"no Ray cluster can be reached at {address!r}: {reason}") from error
    # A failure is reported at the end of the shutdown.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def _delete_applications(
    applications: Collection[str], wait_s: Seconds, outcome: ShutdownOutcome
) -> None:
    for serve_name in applications:
        serve.delete(serve_name, _blocking=False)
    left = _wait_until_gone(applications, wait_s)
    killed = {serve_name: _kill_processes(serve_name) for serve_name in left}
    left = _wait_until_gone(left, _KILLED_WITHIN_S)
    for serve_name in applications:
        if serve_name in left:
            outcome.left.append(f"Serve still has application {serve_name!r}")
        elif serve_name in killed:
            outcome.ended.append(
                f"ended application {serve_name!r}; {killed[serve_name]} of its processes had"
                f" not ended after {wait_s:g} s and were killed"
            )
        else:
            outcome.ended.append(f"ended application {serve_name!r}")


def _wait_until_gone(names: Collection[str], wait_s: Seconds) -> list[str]:
    """Wait for applications to be deleted; return those that Ray Serve still has."""
    deadline = time.monotonic() + wait_s
    left = list(names)
    while left:
        there = serve_applications()
        left = [serve_name for serve_name in left if serve_name in there]
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    return left


def _kill_processes(serve_name: str) -> int:
    """Kill processes that a deleted application still runs; return how many were killed.

    The processes are found by their actor names, because Serve reports no details of an application
    that it deletes.
    """
    killed = 0
    for found in ray.util.list_named_actors(all_namespaces=True):
        name, namespace = found["name"], found["namespace"]
        if namespace == _SERVE_NAMESPACE and name.startswith(f"SERVE_REPLICA::{serve_name}#"):
            with suppress(ValueError):  # the process has just ended
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)
                killed += 1
    return killed


def _end_accounts(application: str, namespace: str, outcome: ShutdownOutcome) -> None:
    """End the quota accounts of an application that has no models left."""
    try:
        if end_accounts(application, namespace):
            outcome.ended.append(f"ended the accounts of {application}; what was used stays stored")
    except RayError as error:
        outcome.left.append(f"the accounts of {application} could not be ended: {error}")


def _end_scheduler(
    scheduler: SchedulerName, config: AppConfig | None, outcome: ShutdownOutcome
) -> None:
    text = f"scheduler {scheduler.application}/{scheduler.model}"
    try:
        if not end_scheduler(scheduler.actor_name, scheduler.namespace):
            return
    except RayError as error:
        outcome.left.append(f"{text} could not be ended: {error}")
        return
    if config is None:
        outcome.ended.append(f"ended {text}, and its embedded Redis if it had one")
    elif config.store.durability == "none":
        outcome.ended.append(f"ended {text}; it kept no data")
    elif config.store.redis_url is None:
        outcome.ended.append(f"ended {text} and its embedded Redis; data stay in {config.data_dir}")
    else:
        outcome.ended.append(f"ended {text}; data stay in its Redis")
