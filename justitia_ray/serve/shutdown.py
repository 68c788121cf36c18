"""Ending applications from outside: Serve's part, then the detached scheduler that outlives it."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.config_file import check_file
from justitia_ray.serve.running import (
    Configs,
    Running,
    SchedulerName,
    find_running,
    serve_applications,
)
from justitia_ray.serve.scheduler_actor import end_scheduler
from justitia_ray.units import Seconds

_SERVE_NAMESPACE = "serve"
_POLL_S: Seconds = 0.2
_KILLED_WITHIN_S: Seconds = 20.0
"""How long Serve may take to notice that the processes are gone."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What to end; what is None does not narrow it."""

    name: str | None = None
    model: str | None = None
    configs: Mapping[str, Configs] | None = None
    """Applications of a file, by Serve's name for them."""

    def application(self, serve_name: str, configs: Configs | None) -> bool:
        """Return whether a Serve application is meant; all of its models go with it."""
        if self.configs is not None:
            return serve_name in self.configs
        if self.name is None:
            return True
        if configs is None:
            return serve_name == self.name
        return self._names_any(configs) and not self.names_a_part(configs)

    def names_a_part(self, configs: Configs | None) -> bool:
        """Return whether one of an application's several models is meant, without the others."""
        if configs is None or self.configs is not None or self.model is None:
            return False
        return len(configs) > 1 and self._names_any(configs)

    def scheduler(self, scheduler: SchedulerName) -> bool:
        """Return whether a scheduler is meant."""
        if self.configs is not None:
            return any(scheduler == SchedulerName.of(c) for c in chain(*self.configs.values()))
        return self.name in (None, scheduler.application) and self.model in (None, scheduler.model)

    def _names_any(self, configs: Configs) -> bool:
        return any(self.scheduler(SchedulerName.of(config)) for config in configs)


@dataclass(slots=True)
class Outcome:
    """What was done, in sentences."""

    ended: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What could not be ended, and why."""


def named_in(path: Path) -> Chosen:
    """Choose the applications of a Serve configuration file.

    Raises:
        ConfigError: If the file is wrong.
    """
    checked = check_file(path)
    if checked.errors:
        raise ConfigError(f"{path}: {checked.errors[0]}")
    return Chosen(configs={a.serve_name: a.configs for a in checked.applications})


def called(name: str | None, model: str | None) -> Chosen:
    """Choose by name and model, or everything."""
    return Chosen(name, model)


def shut_down(chosen: Chosen, address: str, wait_s: Seconds) -> Outcome:
    """End what was chosen. Blocks.

    Args:
        chosen: What to end.
        address: Of the Ray cluster, as `ray.init` takes it; not used if Ray is connected already.
        wait_s: How long calls in flight may take to end, in seconds; then they are cut.

    Raises:
        ConnectionError: If no Ray runs there.
    """
    outcome = Outcome()
    with _connected(address):
        running = find_running()
        applications = {
            serve_name: configs
            for serve_name, configs in running.applications.items()
            if chosen.application(serve_name, configs)
        }
        _delete_applications(applications, wait_s, outcome)
        schedulers = {s for s in running.schedulers if chosen.scheduler(s)}
        schedulers -= _in_use(chosen, running, outcome)
        stores = {SchedulerName.of(c): c for cs in applications.values() for c in cs or ()}
        schedulers |= set(stores)
        for scheduler in sorted(schedulers, key=lambda s: (s.namespace, s.actor_name)):
            _end(scheduler, stores.get(scheduler), outcome)
    return outcome


def _in_use(chosen: Chosen, running: Running, outcome: Outcome) -> set[SchedulerName]:
    """Return the schedulers of applications that are to lose a part only: they stay as they are."""
    in_use: set[SchedulerName] = set()
    for serve_name, configs in running.applications.items():
        if chosen.names_a_part(configs):
            in_use |= {SchedulerName.of(config) for config in configs or ()}
            outcome.left.append(
                f"application {serve_name!r} serves other models than {chosen.model!r} too: leave"
                " out --model to end it whole, or take that model out of `models` in its file,"
                " deploy the file, and end the scheduler that is left then"
            )
    return in_use


@contextmanager
def _connected(address: str) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(f"no Ray cluster can be reached at {address!r}: {reason}") from error
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # what was ended is said at the end
    try:
        yield
    finally:
        ray.shutdown()


def _delete_applications(applications: Collection[str], wait_s: Seconds, outcome: Outcome) -> None:
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
    """Return those of these applications that Serve still has after the wait."""
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
    """Kill what a deleted application still runs; return how many processes that were.

    By the names that Serve gives them: of an application that it deletes it tells no details.
    """
    killed = 0
    for found in ray.util.list_named_actors(all_namespaces=True):
        name, namespace = found["name"], found["namespace"]
        if namespace == _SERVE_NAMESPACE and name.startswith(f"SERVE_REPLICA::{serve_name}#"):
            with suppress(ValueError):  # it has just ended
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)
                killed += 1
    return killed


def _end(scheduler: SchedulerName, config: AppConfig | None, outcome: Outcome) -> None:
    text = f"scheduler {scheduler.application}/{scheduler.model}"
    try:
        if not end_scheduler(config if config is not None else scheduler.as_config()):
            return
    except (RayError, ConfigError) as error:
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
