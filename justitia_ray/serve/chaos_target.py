"""An application that is to be broken: its processes, as Serve and its scheduler know them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client  # `serve.status` leaves out the processes
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig
from justitia_ray.serve.chaos_app import journal_file
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.units import ReplicaId, Seconds

_AGAIN_AFTER_S: Seconds = 0.1


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the application that Serve runs."""

    deployment: str
    replica_id: ReplicaId
    pid: int
    running: bool


class ChaosTarget:
    """An application of `chaos_app`, on a cluster that this process is connected to."""

    def __init__(self, name: str, config: AppConfig, wanted: Mapping[str, int]) -> None:
        """Name it; nothing is asked before a method is called.

        Args:
            name: Serve's name for it.
            config: Its arguments.
            wanted: How many processes each deployment is to have.
        """
        self.name = name
        self.config = config
        self.wanted = dict(wanted)

    @property
    def journal(self) -> Path:
        """Where the replicas write down their runs."""
        return journal_file(self.config)

    @cached_property
    def scheduler(self) -> ReturningHandle:
        """The scheduler; the handle stays good over its restarts."""
        section = self.config.scheduler
        return ReturningHandle(
            ray.get_actor(self.config.scheduler_name, namespace=section.namespace)
        )

    async def ask_scheduler(self, method: str, *arguments: Any) -> Any:
        """Return its answer, or its successor's: waits for one while there is none."""
        while True:
            try:
                return await getattr(self.scheduler, method).remote(*arguments)
            except RayError:
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def status(self) -> dict[str, Any]:
        """Return the status of the scheduler in office: waits for one while there is none."""
        while True:
            found: dict[str, Any] = await self.ask_scheduler("status")
            if found["ready"]:
                return found
            await asyncio.sleep(_AGAIN_AFTER_S)

    def handle(self, deployment: str) -> DeploymentHandle:
        """Return a handle of a deployment."""
        return serve.get_deployment_handle(deployment, self.name)

    def replica_handle(self, replica_id: ReplicaId) -> DeploymentHandle:
        """Return a handle of one replica."""
        return self.handle("Replica").options(session_id=replica_id)

    def members(self, deployment: str) -> list[Member]:
        """Return the processes of a deployment that Serve has, in the order of their ids."""
        details = _get_global_client().get_serve_details()
        # While another version is being built Serve names none of them.
        deployments = details["applications"][self.name]["deployments"]
        found = deployments.get(deployment, {}).get("replicas", ())
        members = [
            # One that is being started has no process yet.
            Member(deployment, one["replica_id"], one.get("pid") or 0, one["state"] == "RUNNING")
            for one in found
        ]
        return sorted(members, key=lambda member: member.replica_id)

    def running(self, deployment: str) -> list[Member]:
        """Return those of them that take calls; Serve notices seconds later that one is dead."""
        return [
            member
            for member in self.members(deployment)
            if member.running and psutil.pid_exists(member.pid)
        ]

    def is_whole(self) -> bool:
        """Return whether Serve runs as many processes as it should, and none besides."""
        return all(
            [member.running for member in self.members(name)] == [True] * count
            for name, count in self.wanted.items()
        )
