"""Run a plan against several applications in turn: every repeat calls each, order alternating."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from justitia_ray.bench.cpu_time import SHARED, Role
from justitia_ray.bench.load import (
    Sample,
    Shape,
    Target,
    make_call,
    make_calls,
    run_closed_loop,
)
from justitia_ray.bench.serve_plan import Plan
from justitia_ray.bench.statistics import steady_tokens_per_s
from justitia_ray.units import Seconds

IDLE_STREAM = "idle streams"
IDLE_UNARY = "idle unary calls"
CONCURRENT = "concurrent streams"
SATURATED_UNARY = "saturating unary calls"
SATURATED_STREAM = "saturating streams"
CHUNKS = "saturating streams, chunks joined"
METRICS = "saturating unary calls, metrics"


@dataclass(frozen=True, slots=True)
class Block:
    """One arm under one load, once."""

    samples: tuple[Sample, ...]
    tokens_per_s: float | None
    """Output of all engines while all callers called; None if the load does not saturate."""
    cpu_ms: dict[str, float]
    """CPU time of each role for each call, in ms; the client's own is `client`."""

    @property
    def cpu_ms_per_call(self) -> float:
        """CPU time of the service for each call, in ms."""
        return sum(ms for role, ms in self.cpu_ms.items() if role != "client")


@dataclass(slots=True)
class Measured:
    """All blocks: by measure and arm, one for each repeat."""

    blocks: dict[str, dict[str, list[Block]]] = field(default_factory=dict)

    def add(self, measure: str, arm: str, block: Block) -> None:
        """Append a repeat."""
        self.blocks.setdefault(measure, {}).setdefault(arm, []).append(block)


@dataclass(frozen=True, slots=True)
class Arms:
    """Names of the applications that are compared."""

    ours: str
    theirs: str
    joined: str
    """Ours, with the chunks of a stream joined; may be `ours`."""
    unjoined: str
    """The same, with every chunk sent on as it comes."""

    @property
    def pair(self) -> tuple[str, str]:
        """With the queue and without."""
        return self.ours, self.theirs

    @property
    def chunk_pair(self) -> tuple[str, str]:
        """With chunks joined and without."""
        return self.joined, self.unjoined


class Bench:
    """Makes the calls of a plan."""

    def __init__(
        self,
        plan: Plan,
        model: str,
        arms: Arms,
        targets: Mapping[str, Target],
        read_cpu: Callable[[], dict[Role, Seconds]],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        """Prepare; `run` makes the calls.

        Args:
            plan: The loads.
            model: Name to call it by.
            arms: Whom to compare.
            targets: Where each arm answers.
            read_cpu: CPU time so far of the service's processes.
            seed: Of all sizes, prompts and pauses. All arms get the same calls.
            say: Takes a line of progress.
        """
        self._plan = plan
        self._model = model
        self._arms = arms
        self._targets = targets
        self._read_cpu = read_cpu
        self._seed = seed
        self._say = say

    async def run(self) -> Measured:
        """Warm every arm up, then measure.

        Raises:
            CallFailed: If a call fails.
        """
        plan, measured = self._plan, Measured()
        for arm in self._targets:
            await self._warm_up(arm)
        for repeat in range(plan.repeats):
            self._say(f"repeat {repeat + 1} of {plan.repeats}")
            turn = -1 if repeat % 2 else 1
            pair, chunk_pair = self._arms.pair[::turn], self._arms.chunk_pair[::turn]
            for measure, shape in ((IDLE_STREAM, plan.idle_stream), (IDLE_UNARY, plan.idle_unary)):
                for arm, block in (await self._idle(shape, pair, (measure, repeat))).items():
                    measured.add(measure, arm, block)
            for arm in pair:
                block = await self._concurrent(arm, (CONCURRENT, repeat))
                measured.add(CONCURRENT, arm, block)
            for measure, shape, order in (
                (SATURATED_UNARY, plan.saturating_unary, pair),
                (SATURATED_STREAM, plan.saturating_stream, pair),
                (CHUNKS, plan.saturating_stream, chunk_pair),
            ):
                for arm in order:
                    block = await self._saturated(arm, shape, (measure, repeat))
                    measured.add(measure, arm, block)
        return measured

    async def run_metrics(self, pair: tuple[str, str]) -> Measured:
        """Warm two arms up, then saturate one after the other.

        Args:
            pair: Names of the arms with metrics and without.

        Raises:
            CallFailed: If a call fails.
        """
        plan, measured = self._plan, Measured()
        for arm in pair:
            await self._warm_up(arm)
        for repeat in range(plan.repeats):
            self._say(f"repeat {repeat + 1} of {plan.repeats}")
            for arm in pair[:: -1 if repeat % 2 else 1]:
                block = await self._saturated(arm, plan.saturating_unary, (METRICS, repeat))
                measured.add(METRICS, arm, block)
        return measured

    async def _warm_up(self, arm: str) -> None:
        plan, rng = self._plan, random.Random(self._seed)
        for shape in (plan.saturating_unary, plan.concurrent):
            calls = make_calls(shape, plan.warm_up_calls, rng, self._model)
            await run_closed_loop(
                self._targets[arm], calls, plan.saturating_callers, plan.most_think_s, rng
            )

    async def _idle(
        self, shape: Shape, arms: Sequence[str], key: tuple[str, int]
    ) -> dict[str, Block]:
        """Call the arms in turn, one call at a time, whoever is first changing with each pair."""
        rng = self._rng(key)
        samples: dict[str, list[Sample]] = {arm: [] for arm in arms}
        async with AsyncExitStack() as stack:
            connections = {
                arm: await stack.enter_async_context(self._targets[arm].open()) for arm in arms
            }
            for i, call in enumerate(make_calls(shape, self._plan.idle_calls, rng, self._model)):
                for arm in arms if i % 2 == 0 else reversed(arms):
                    await asyncio.sleep(self._plan.idle_pause_s)
                    path = self._targets[arm].completions
                    samples[arm].append(await make_call(connections[arm], path, call))
        return {arm: Block(tuple(taken), None, {}) for arm, taken in samples.items()}

    async def _concurrent(self, arm: str, key: tuple[str, int]) -> Block:
        plan, rng = self._plan, self._rng(key)
        calls = make_calls(plan.concurrent, plan.concurrent_calls, rng, self._model)
        before, client = self._read_cpu(), time.process_time()
        samples = await run_closed_loop(
            self._targets[arm], calls, plan.concurrency, plan.most_think_s, rng
        )
        cpu_ms = self._cpu_ms(arm, before, client, len(calls))
        return Block(tuple(samples), None, cpu_ms)

    async def _saturated(self, arm: str, shape: Shape, key: tuple[str, int]) -> Block:
        plan, rng = self._plan, self._rng(key)
        calls = make_calls(shape, plan.saturating_calls, rng, self._model)
        before, client = self._read_cpu(), time.process_time()
        samples = await run_closed_loop(
            self._targets[arm], calls, plan.saturating_callers, 0.0, rng
        )
        cpu_ms = self._cpu_ms(arm, before, client, len(calls))
        tokens_per_s = steady_tokens_per_s(samples, plan.saturating_callers)
        return Block(tuple(samples), tokens_per_s, cpu_ms)

    def _rng(self, key: tuple[str, int]) -> random.Random:
        """Return the same numbers for every arm of a repeat."""
        return random.Random(f"{self._seed} {key}")

    def _cpu_ms(
        self, arm: str, before: dict[Role, Seconds], client_s: Seconds, calls: int
    ) -> dict[str, float]:
        used = {"client": time.process_time() - client_s}
        for (application, role), cpu_s in self._read_cpu().items():
            if application in (arm, SHARED):
                used[role] = cpu_s - before.get((application, role), 0.0)
        return {role: 1e3 * cpu_s / calls for role, cpu_s in used.items()}
