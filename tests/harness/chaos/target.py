"""The application of a chaos run: its processes, samples of its scheduler, waits for recovery."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.serve.context import _get_global_client  # `serve.status` does not list processes.
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.accounts.handle import ACCOUNTS_PREFIX
from justitia_ray.units import ReplicaId, Seconds
from tests.harness.chaos.app import journal_file
from tests.harness.chaos.records import RunRecords, SchedulerSample
from tests.harness.probe import probe

_AGAIN_AFTER_S: Seconds = 0.1
_PROBED_WITHIN_S: Seconds = 15.0


@dataclass(frozen=True, slots=True)
class ServeProcess:
    """A process of the application, as Serve lists it."""

    deployment: str
    replica_id: ReplicaId
    pid: int
    """Process id; 0 before the process exists."""
    state: str
    """State of the process in Serve's words, such as RUNNING."""

    @property
    def running(self) -> bool:
        """Whether the process takes calls."""
        return self.state == "RUNNING"


class ChaosTarget:
    """The Serve application under fault injection, with access to its processes."""

    def __init__(self, name: str, config: AppConfig, wanted: Mapping[str, int]) -> None:
        """Store the names of the application; methods send the first requests.

        Args:
            name: Serve's name for it.
            config: Its arguments.
            wanted: How many processes each deployment is to have.
        """
        self.name = name
        self.config = config
        self.wanted = dict(wanted)
        self._handles: dict[str, DeploymentHandle] = {}

    @property
    def journal(self) -> Path:
        """Path of the journal in which replicas record the runs of inferences."""
        return journal_file(self.config)

    @cached_property
    def scheduler(self) -> ActorHandle:
        """Handle of the scheduler, which stays valid over restarts."""
        section = self.config.scheduler
        return ray.get_actor(self.config.scheduler_name, namespace=section.namespace)

    async def ask_scheduler(self, method: str, *arguments: Any) -> Any:
        """Call a method of the scheduler, or of its successor; wait while there is none."""
        while True:
            try:
                return await getattr(self.scheduler, method).remote(*arguments)
            except RayError:
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def status(self) -> dict[str, Any]:
        """Return the status of the leading scheduler; wait while there is none."""
        while True:
            found: dict[str, Any] = await self.ask_scheduler("status")
            if found["ready"]:
                return found
            await asyncio.sleep(_AGAIN_AFTER_S)

    @property
    def accounts(self) -> ActorHandle:
        """Handle of the quota accounts, which run while quotas are configured."""
        section = self.config.scheduler
        return ray.get_actor(f"{ACCOUNTS_PREFIX}{self.config.name}", namespace=section.namespace)

    async def accounts_are_ready(self) -> bool:
        """Return whether one process of the quota accounts leads."""
        try:
            status: dict[str, Any] = await self.accounts.status.remote()
        except (RayError, ValueError):
            return False
        return bool(status["ready"])

    def deployment_handle(self, deployment: str) -> DeploymentHandle:
        if deployment not in self._handles:
            self._handles[deployment] = serve.get_deployment_handle(deployment, self.name)
        return self._handles[deployment]

    def close(self) -> None:
        """Close the handles, or they would send metrics to the next test's cluster."""
        while self._handles:
            self._handles.popitem()[1].shutdown()

    async def probe(self, member: ServeProcess, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of one process, and return its answer.

        Raises:
            NoReplicaAnswers: If it does not answer soon: it may be gone.
        """
        handle = self.deployment_handle(member.deployment)
        return await probe(
            handle, member.replica_id, method, *arguments, within_s=_PROBED_WITHIN_S, **named
        )

    def list_processes(self, deployment: str) -> list[ServeProcess]:
        """Return a deployment's processes, ordered by id."""
        return self.wanted_and_listed(deployment)[1]

    def wanted_and_listed(self, deployment: str) -> tuple[int | None, list[ServeProcess]]:
        """Return (number of processes that Serve wants, its processes ordered by id).

        The number is None while a version is being built or the controller recovers. The call
        blocks, and waits for a controller that is being restarted.
        """
        while True:
            try:
                details = _get_global_client().get_serve_details()
            except RayError:
                time.sleep(_AGAIN_AFTER_S)
                continue
            break
        application = details["applications"].get(self.name, {})
        known = application.get("deployments", {}).get(deployment, {})
        members = [
            # A starting process has no id yet.
            ServeProcess(deployment, one["replica_id"], one.get("pid") or 0, one["state"])
            for one in known.get("replicas", ())
        ]
        return (
            known.get("target_num_replicas"),
            sorted(members, key=lambda member: member.replica_id),
        )

    def running(self, deployment: str) -> list[ServeProcess]:
        """Return the processes that take calls; Serve notices a death only after seconds."""
        return [
            member
            for member in self.list_processes(deployment)
            if member.running and psutil.pid_exists(member.pid)
        ]

    def is_whole(self) -> bool:
        """Return whether exactly the wanted number of processes runs."""
        return all(
            [member.running for member in self.list_processes(name)] == [True] * count
            for name, count in self.wanted.items()
        )


_EVERY_S: Seconds = 0.1


async def keep_sampling(target: ChaosTarget, records: RunRecords) -> None:
    """Sample the scheduler's status until cancelled; skip times without a scheduler."""
    while True:
        status = await target.ask_scheduler("status")
        size = status.get("size") or {}
        records.samples.append(
            SchedulerSample(
                time.monotonic(),
                status["epoch"],
                bool(status["ready"]),
                status["degraded"] is not None,
                status.get("saves", 0),
                {name: one["leases"] for name, one in status.get("replicas", {}).items()},
                status.get("waiting", 0),
                size.get("wanted"),
                size.get("load_s"),
            )
        )
        await asyncio.sleep(_EVERY_S)


RECOVERED_WITHIN_S: Seconds = 300.0
"""Seconds within which a killed process is restarted; an engine on busy cores takes longest."""
_POLL_S: Seconds = 0.05


async def wait_until(
    ask: Callable[[], Awaitable[bool]], what: str, within_s: Seconds = RECOVERED_WITHIN_S
) -> None:
    """Poll `ask` until it returns true.

    Raises:
        JustitiaError: If it does not in time; the message says what was waited for.
    """
    deadline = time.monotonic() + within_s
    while not await ask():
        if time.monotonic() > deadline:
            raise JustitiaError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(_POLL_S)


def run_in_thread(condition: Callable[..., bool], *arguments: Any) -> Callable[[], Awaitable[bool]]:
    """Return an asynchronous form of a blocking condition."""
    return partial(asyncio.to_thread, condition, *arguments)
