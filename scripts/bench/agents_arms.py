"""The arms of scripts/bench_agents: this service, and bare vLLM servers with pinned sessions."""

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
from scripts.bench.own_servers import vllm_server
from scripts.bench.serve_arms import JUSTITIA, Arm, BenchArms, arm_args
from tests.harness.local_cluster import read_serve_config

_CACHED = (("enable_prefix_caching", True), ("enable_prompt_tokens_details", True))
OURS = replace(JUSTITIA, name="ours", vllm_args=_CACHED)
OURS_OFF = replace(
    JUSTITIA,
    name="ours-off",
    vllm_args=(("enable_prefix_caching", False), ("enable_prompt_tokens_details", True)),
)
"""The service as most of its files have it, without prefix caching."""
PINNED = Arm("pinned", None, server=vllm_server, vllm_args=_CACHED)
"""vLLM's own servers, one for each engine of the service; each session stays with one of them."""
ARMS = {arm.name: arm for arm in (PINNED, OURS, OURS_OFF)}


@dataclass(frozen=True, slots=True)
class AgentArm:
    """An arm that runs."""

    name: str
    targets: tuple[Target, ...]
    is_ours: bool


class AgentArms:
    """Arms that stand side by side on one machine, to be entered.

    Args:
        file: A Serve configuration file of this project; its first application is the arms'.
        arms: What to start.
        at_once: Whether all start at once: faster, but engines that load on two cores leave Ray
            none to start in time.
    """

    def __init__(self, file: Path, arms: Sequence[Arm], *, at_once: bool = False) -> None:
        application = read_serve_config(file)["applications"][0]
        self._arms = arms
        self._file = file
        self.engines = _engines(application)
        """Engines of each arm."""
        self.config = AppConfig.parse(application["args"])
        self.kv_tokens = self.engines * kv_tokens(self.config)
        """KV memory of each arm."""
        self._servers = AppConfig.parse(arm_args(application["args"], PINNED))
        self._at_once = at_once
        self._stack = ExitStack()
        self._roles: dict[int, Role] = {}
        self.running: dict[str, AgentArm] = {}

    def __enter__(self) -> Self:
        """Start every arm.

        Raises:
            JustitiaError: If one fails.
        """
        services = [arm for arm in self._arms if arm.import_path]
        starts: list[Callable[[], AbstractContextManager[Any]]] = []
        if services:
            cluster = BenchArms(self._file, services, self.engines)
            starts.append(lambda: cluster)
        if PINNED in self._arms:
            starts += [lambda: vllm_server(self._servers, 1)] * self.engines
        started = self._start(starts)
        if services:
            self.running |= {
                arm.name: AgentArm(arm.name, (cluster.running.targets[arm.name],), is_ours=True)
                for arm in services
            }
            self._roles |= cluster.running.roles
            started = started[1:]
        if PINNED in self._arms:
            targets = tuple(Target(server.port, "") for server in started)
            for server in started:
                self._roles |= {pid: (PINNED.name, role) for pid, role in server.roles.items()}
            self.running[PINNED.name] = AgentArm(PINNED.name, targets, is_ours=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def read_cpu(self, arm: str) -> dict[str, Seconds]:
        """Return the CPU time so far of an arm, by role; of all on Ray, with what they share."""
        shares = self.running[arm].is_ours
        return {
            role: used_s
            for (owner, role), used_s in cpu_by_role(os.getpid(), self._roles).items()
            if owner == arm or (shares and owner == SHARED)
        }

    def _start(self, starts: Sequence[Callable[[], AbstractContextManager[Any]]]) -> list[Any]:
        """Enter all of them, the first in this thread; all end with `self`."""
        with ExitStack() as stack:

            def enter(start: Callable[[], AbstractContextManager[Any]]) -> Any:
                return stack.enter_context(start())

            if self._at_once:
                with ThreadPoolExecutor() as pool:
                    others = [pool.submit(enter, start) for start in starts[1:]]
                    # Ray handles signals, which only the main thread may ask for.
                    started = [enter(start) for start in starts[:1]]
                    started += [future.result() for future in others]
            else:
                started = [enter(start) for start in starts]
            self._stack = stack.pop_all()
        return started


def kv_tokens(config: AppConfig) -> Tokens:
    """Return the KV memory of one engine, as its configuration says.

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
    return (blocks - 1) * size  # vLLM keeps one for itself


def _engines(application: Mapping[str, Any]) -> int:
    for deployment in application["deployments"]:
        if deployment["name"] == "Replica":
            return int(deployment.get("num_replicas", 1))
    return 1
