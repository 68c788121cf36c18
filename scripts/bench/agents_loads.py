"""Loads of scripts/bench_agents: sessions played by its own player, and by aiperf."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from justitia_ray.config import AppConfig
from justitia_ray.protocol.endpoints import CLASS_HEADER, TENANT_HEADER
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.units import Seconds, Tokens
from scripts.bench.agents import AGENT, AgentSession, agents_that_fit
from scripts.bench.agents_arms import AgentArm
from scripts.bench.agents_player import AgentPlayer, Play, tenant_name
from scripts.bench.aiperf import AiperfPlan, TraceFacts, read_export, run_aiperf, scaled_traces
from scripts.bench.arrival_priority import BY_ARRIVAL, PRIORITY_HEADER

Draw = Callable[[int, random.Random], list[AgentSession]]
"""Function that draws a number of agent sessions."""
_SAMPLE = 200
"""Number of sessions drawn to estimate the mean size of a session."""


class AgentLoad(Protocol):
    """Load that every arm of a comparison receives identically."""

    def agents_that_fit(self, kv_tokens: Tokens, seed: str) -> float:
        """Return the number of agents whose largest contexts fit into the KV memory."""

    async def play(self, arm: AgentArm, config: AppConfig, agents: int, seed: str) -> Play:
        """Run a number of agents at once against an arm; the seed determines their sessions."""


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """Load of randomly drawn sessions, which `AgentPlayer` sends."""

    draw: Draw
    tenants: int = 1

    def agents_that_fit(self, kv_tokens: Tokens, seed: str) -> float:
        return agents_that_fit(kv_tokens, self.draw(_SAMPLE, random.Random(seed)))

    async def play(self, arm: AgentArm, config: AppConfig, agents: int, seed: str) -> Play:
        player = AgentPlayer(
            arm.targets,
            config.model.name,
            # The seed keeps runs on shared servers from hitting each other's cached prefixes.
            f"{seed.replace(' ', '-')}-{arm.name}",
            is_ours=arm.is_ours,
            has_priorities=arm.has_priorities,
            tenants=self.tenants,
        )
        return await player.play(self.draw(agents, random.Random(seed)))


class AiperfLoad:
    """Recorded sessions that aiperf replays concurrently for a fixed time.

    Each tenant has its own process of aiperf and an equal part of the sessions. The processes start
    together; each needs some seconds to load, so their first calls differ by that.

    Args:
        traces: Their files.
        scale: Of the lengths in the files.
        duration_s: Time of a play; what still runs then is cancelled.
        longest_gap_s: A longer tool time or pause is cut to this.
        directory: Takes the scaled traces, and what aiperf writes.
        tenants: Number of tenants, each with its own salt of the prefix cache.
    """

    def __init__(
        self,
        traces: Path,
        scale: float,
        duration_s: Seconds,
        longest_gap_s: Seconds,
        directory: Path,
        tenants: int = 1,
    ) -> None:
        self._directory = directory
        self._traces = directory / "traces"
        self._traces.mkdir()
        self._facts: Mapping[str, TraceFacts] = scaled_traces(traces, scale, self._traces)
        self._duration_s = duration_s
        self._longest_gap_s = longest_gap_s
        self._tenants = tenants
        self._plays = 0

    def agents_that_fit(self, kv_tokens: Tokens, seed: str) -> float:
        """Return the number of agents that fit, by the mean of their largest contexts."""
        contexts = [facts.largest_context for facts in self._facts.values()]
        return kv_tokens * len(contexts) / sum(contexts)

    async def play(self, arm: AgentArm, config: AppConfig, agents: int, seed: str) -> Play:
        """Run aiperf once for each tenant."""
        tokenizer = materialise_model(config.model.path, config.model.cache_dir)
        self._plays += 1
        name = f"{self._plays}-{arm.name}"
        runs = []
        for tenant, sessions in enumerate(_equal_parts(agents, self._tenants)):
            plan = AiperfPlan(
                self._traces,
                sessions,
                self._duration_s,
                self._longest_gap_s,
                random.Random(f"{seed} {tenant}" if tenant else seed).randrange(2**31),
                tokenizer,
            )
            # Aiperf pins its first session to the first server.
            place = tenant % len(arm.targets)
            runs.append(
                asyncio.to_thread(
                    run_aiperf,
                    arm.targets[place:] + arm.targets[:place],
                    config.model.name,
                    plan,
                    f"{seed} {name} {tenant}",
                    self._directory / f"{name}-{tenant}",
                    self._headers(arm, tenant),
                )
            )
        return read_export(chain.from_iterable(await asyncio.gather(*runs)), self._facts)

    def _headers(self, arm: AgentArm, tenant: int) -> dict[str, str]:
        if not arm.is_ours:
            return {PRIORITY_HEADER: BY_ARRIVAL} if arm.has_priorities else {}
        named = {TENANT_HEADER: tenant_name(tenant)} if self._tenants > 1 else {}
        return {CLASS_HEADER: AGENT} | named


def _equal_parts(count: int, parts: int) -> list[int]:
    """Divide a count into numbers that differ by at most 1, without zeros."""
    return [count // parts + (part < count % parts) for part in range(min(count, parts))]
