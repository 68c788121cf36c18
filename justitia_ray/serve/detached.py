"""Named, detached actors of an application: started on first use, and ended for good."""

import logging
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.observability.log_events import log_event
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")  # Processes that look up actors log here.

_RETIRE_S: Seconds = 30.0
"""Maximum seconds in which an actor may save its state before it is killed."""


def get_detached(
    actor_class: type[Any], name: str, config: AppConfig, max_concurrency: int
) -> ActorHandle:
    """Return the detached Ray actor with a name; start it if it does not run.

    Many processes may call this at once. The handle stays valid when the actor restarts.
    """
    section = config.scheduler
    remote = ray.remote(actor_class)
    return remote.options(
        name=name,
        namespace=section.namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=section.num_cpus,
        max_restarts=-1,
        max_task_retries=0,  # Ray must not repeat calls, as callers do so.
        max_concurrency=max_concurrency,
    ).remote(config.model_dump())


def end_detached(name: str, namespace: str, unsaved_event: str) -> bool:
    """Let a detached actor save and stop its Redis, then kill it; return whether it existed.

    Args:
        name: Name of the actor.
        namespace: Ray namespace of the actor.
        unsaved_event: Log event if the actor could not save its state.
    """
    try:
        actor = ray.get_actor(name, namespace=namespace)
    except ValueError:
        return False
    try:
        ray.get(actor.retire.remote(), timeout=_RETIRE_S)
    except RayError as error:
        log_event(logger, logging.WARNING, unsaved_event, reason=str(error))
    ray.kill(actor, no_restart=True)
    return True


def is_older(version: str) -> bool:
    """Return whether a version of the package is older than the version of this process."""
    return _version_numbers(version) < _version_numbers(__version__)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
