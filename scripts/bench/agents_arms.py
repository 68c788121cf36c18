"""Arms of scripts/bench_agents: this service, and vLLM's own servers with and without a router."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds, Tokens
from scripts.bench.load import Target
from scripts.bench.machine import SHARED, Role, cpu_by_role
from scripts.bench.own_servers import vllm_router, vllm_server
from scripts.bench.preemptions import read_server_preemptions, read_service_preemptions
from scripts.bench.serve_arms import JUSTITIA, Arm, BenchArms, arm_args
from tests.harness.local_cluster import read_serve_config

_CACHED = (("enable_prefix_caching", True), ("enable_prompt_tokens_details", True))
OURS = replace(JUSTITIA, name="ours", vllm_args=_CACHED)
OURS_OFF = replace(
    JUSTITIA,
    name="ours-off",
    vllm_args=(("enable_prefix_caching", False), ("enable_prompt_tokens_details", True)),
)
"""Arm: this service without prefix caching."""
NO_WORKING_SET = replace(OURS, name="ours-no-working-set", policy_options=(("working_set", False),))
"""Arm: this service, where cached contexts of agents between two turns count as free memory."""
HELD = replace(OURS, name="ours-held", holds_contexts=True)
"""Arm: this service, whose engines evict the contexts of waiting applications last."""
HOST = replace(OURS, name="ours-host", host_kv_gib=32.0)
"""Arm: this service with a KV cache in host memory; needs a GPU, and has not yet run on one."""
UPDATED = replace(OURS, name="ours-updated")
"""Arm: the service of `ours` while a rolling update replaces its engines during the run."""
PINNED = Arm("pinned", None, vllm_args=_CACHED)
"""Arm: one vLLM server for each engine of the service; each session stays on one server."""
PRIORITY = Arm("pinned-priority", None)
"""Arm: the servers of `pinned`; calls of sessions that arrived earlier have a higher priority."""
CACHE_AWARE = Arm("router-cache-aware", None)
"""Arm: vLLM's cache-aware router in front of the servers of `pinned`."""
CONSISTENT_HASH = Arm("router-consistent-hash", None)
ARMS = {
    arm.name: arm
    for arm in (
        PINNED,
        PRIORITY,
        CACHE_AWARE,
        CONSISTENT_HASH,
        OURS,
        OURS_OFF,
        NO_WORKING_SET,
        HELD,
        HOST,
        UPDATED,
    )
}
_ROUTER = "router-"
_BARE = "bare"


@dataclass(frozen=True, slots=True)
class AgentArm:
    """Benchmark arm (a variant of the service, or a rival) whose servers are running."""

    name: str
    targets: tuple[Target, ...]
    is_ours: bool
    renew: Callable[[], None] | None = None
    """Function that replaces the engines in a rolling update; None in arms without an update."""
    servers: tuple[Target, ...] | None = None
    """Servers of vLLM behind a router; None if calls go to the servers directly."""

    @property
    def has_priorities(self) -> bool:
        """Whether calls of this arm carry a priority."""
        return self.name == PRIORITY.name

    async def read_preemptions(self) -> int:
        """Return the number of sequences that the arm's engines have preempted since their start.

        Raises:
            JustitiaError: If an engine's count cannot be read.
        """
        if self.is_ours:
            return await read_service_preemptions(self.targets[0])
        servers = self.targets if self.servers is None else self.servers
        return sum([await read_server_preemptions(server) for server in servers])


class AgentArms:
    """Context manager that starts arms side by side on one machine.

    Args:
        file: A Serve configuration file of this project; its first application is the arms'.
        arms: What to start.
        cache_fill_s: `replica.cache_fill_s` of the services, in place of the file's.
        at_once: Whether all start at once: faster, but engines that load on two cores leave Ray
            none to start in time.
    """

    def __init__(
        self,
        file: Path,
        arms: Sequence[Arm],
        *,
        cache_fill_s: Seconds | None = None,
        at_once: bool = False,
    ) -> None:
        application = read_serve_config(file)["applications"][0]
        self._is_updated = UPDATED in arms
        services = {OURS if arm == UPDATED else arm: None for arm in arms if arm.import_path}
        self._services = [replace(arm, cache_fill_s=cache_fill_s) for arm in services]
        self._bare = [arm for arm in arms if not arm.import_path]
        self._file = file
        self.engines = _count_engine_replicas(application)
        """Number of engines of each arm."""
        self.config = AppConfig.parse(application["args"])
        self.kv_tokens = self.engines * kv_tokens(self.config)
        """Total KV memory of each arm, in tokens."""
        self._servers = AppConfig.parse(arm_args(application["args"], PINNED))
        self._at_once = at_once
        self._stack = ExitStack()
        self._roles: dict[int, Role] = {}
        self.running: dict[str, AgentArm] = {}

    def __enter__(self) -> Self:
        """Start the servers of every arm.

        Raises:
            JustitiaError: If one fails.
        """
        services = self._services
        starts: list[Callable[[], AbstractContextManager[Any]]] = []
        if services:
            cluster = BenchArms(self._file, services, self.engines)
            starts.append(lambda: cluster)
        if self._bare:
            starts += [lambda: vllm_server(self._servers, 1)] * self.engines
        started = self._start(starts)
        if services:
            self.running |= {
                arm.name: AgentArm(arm.name, (cluster.running.targets[arm.name],), is_ours=True)
                for arm in services
            }
            if self._is_updated:
                self.running[UPDATED.name] = replace(
                    self.running[OURS.name],
                    name=UPDATED.name,
                    renew=lambda: cluster.renew_engines(OURS.name),
                )
            self._roles |= cluster.running.roles
            started = started[1:]
        servers = tuple(Target(server.port, "") for server in started)
        for server in started:
            self._roles |= {pid: (_BARE, role) for pid, role in server.roles.items()}
        with self._stack.pop_all() as stack:
            for arm in self._bare:
                targets = servers
                if arm.name.startswith(_ROUTER):
                    policy = arm.name.removeprefix(_ROUTER).replace("-", "_")
                    ports = [target.port for target in servers]
                    router = stack.enter_context(vllm_router(policy, ports))
                    self._roles |= {pid: (arm.name, role) for pid, role in router.roles.items()}
                    targets = (Target(router.port, ""),)
                self.running[arm.name] = AgentArm(arm.name, targets, is_ours=False, servers=servers)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def read_cpu(self, arm: str) -> dict[str, Seconds]:
        """Return the CPU time an arm has used, by role; processes that arms share are included."""
        service = OURS.name if arm == UPDATED.name else arm
        owners = (service, SHARED if self.running[arm].is_ours else _BARE)
        used: dict[str, Seconds] = {}
        for (owner, role), used_s in cpu_by_role(os.getpid(), self._roles).items():
            if owner in owners:
                used[role] = used.get(role, 0.0) + used_s
        return used

    def _start(self, starts: Sequence[Callable[[], AbstractContextManager[Any]]]) -> list[Any]:
        """Start all arms; leaving `self` stops them."""
        with ExitStack() as stack:

            def enter(start: Callable[[], AbstractContextManager[Any]]) -> Any:
                return stack.enter_context(start())

            if self._at_once:
                with ThreadPoolExecutor() as pool:
                    others = [pool.submit(enter, start) for start in starts[1:]]
                    # Ray installs signal handlers, which only the main thread may do.
                    started = [enter(start) for start in starts[:1]]
                    started += [future.result() for future in others]
            else:
                started = [enter(start) for start in starts]
            self._stack = stack.pop_all()
        return started


def kv_tokens(config: AppConfig) -> Tokens:
    """Return the KV memory of one engine in tokens, as configured.

    Raises:
        ConfigError: If it does not say.
    """
    engine = config.engine
    if engine.kind == "fake":
        return engine.fake.kv_tokens
    blocks = engine.vllm_args.get("num_gpu_blocks_override")
    size = engine.vllm_args.get("block_size", 16)
    if not isinstance(blocks, int) or not isinstance(size, int):
        raise ConfigError(
            "engine.vllm_args: num_gpu_blocks_override is needed, to know what fits into memory"
        )
    return (blocks - 1) * size  # vLLM keeps one block for itself


def _count_engine_replicas(application: Mapping[str, Any]) -> int:
    for deployment in application["deployments"]:
        if deployment["name"] == "Replica":
            return int(deployment.get("num_replicas", 1))
    return 1
