"""Execution of the loads of scripts/bench_serve."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.units import Seconds
from scripts.bench.load import Sample, Target, make_call, make_calls, run_closed_loop
from scripts.bench.machine import SHARED, Role
from scripts.bench.serve_arms import Arm, RunningArms
from scripts.bench.serve_figures import Block
from scripts.bench.serve_loads import Load, arms_of, order_of
from scripts.bench.vllm_client import run_vllm_bench


@dataclass(slots=True)
class Measured:
    blocks: dict[str, dict[str, list[Block]]] = field(default_factory=dict)
    burn: list[dict[Role, float]] = field(default_factory=list)
    """CPU seconds per second that each role uses without calls, one value for each repeat."""

    def add_block(self, load: str, arm: str, block: Block) -> None:
        """Append the samples of one repeat."""
        self.blocks.setdefault(load, {}).setdefault(arm, []).append(block)


class Bench:
    def __init__(
        self,
        loads: Sequence[Load],
        arms: RunningArms,
        repeats: int,
        warm_up_calls: int,
        burn_s: Seconds,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the loads without sending calls.

        Args:
            loads: What to call.
            arms: The arms of these loads, which run.
            repeats: Of every load.
            warm_up_calls: To each arm; not counted.
            burn_s: Time without a call, in each repeat.
            seed: Of all sizes, prompts and pauses. All arms get the same calls.
            say: Takes a line of progress.
        """
        self._loads = loads
        self._arms = arms
        self._repeats = repeats
        self._warm_up_calls = warm_up_calls
        self._burn_s = burn_s
        self._seed = seed
        self._say = say
        self._model = arms.config.model.name

    async def run(self) -> Measured:
        """Warm up every arm, then measure.

        Raises:
            CallFailed: If a call fails.
        """
        measured = Measured()
        for arm in arms_of(self._loads):
            await self._warm_up_arms(arm)
        for repeat in range(self._repeats):
            self._say(f"repeat {repeat + 1} of {self._repeats}")
            burn = await self._measure_burn()
            measured.burn.append(burn)
            for load in self._loads:
                for name, block in (await self._run_load(load, repeat, burn)).items():
                    measured.add_block(load.name, name, block)
        return measured

    async def _warm_up_arms(self, arm: Arm) -> None:
        rng = random.Random(self._seed)
        for load in self._loads:
            if arm in load.all_arms and load.callers > 1 and not load.by_vllm:
                calls = make_calls(load.shape, self._warm_up_calls, rng, self._model)
                await run_closed_loop(self._target_of(arm), calls, load.callers, load.pause_s, rng)

    async def _measure_burn(self) -> dict[Role, float]:
        before, began_at = self._arms.read_cpu(), time.monotonic()
        await asyncio.sleep(self._burn_s)
        elapsed_s = time.monotonic() - began_at
        return {
            role: (cpu_s - before.get(role, 0.0)) / elapsed_s
            for role, cpu_s in self._arms.read_cpu().items()
        }

    async def _run_load(
        self, load: Load, repeat: int, burn: Mapping[Role, float]
    ) -> dict[str, Block]:
        arms = order_of(load.all_arms, repeat)
        if load.callers == 1 and not load.by_vllm:
            return await self._call_arms_in_turn(load, arms, repeat)
        return {arm.name: await self._call_one_arm(load, arm, repeat, burn) for arm in arms}

    async def _call_arms_in_turn(
        self, load: Load, arms: Sequence[Arm], repeat: int
    ) -> dict[str, Block]:
        rng = self._repeat_rng(load, repeat)
        samples: dict[str, list[Sample]] = {arm.name: [] for arm in arms}
        async with AsyncExitStack() as stack:
            connections = {
                arm: await stack.enter_async_context(self._target_of(arm).open()) for arm in arms
            }
            for i, call in enumerate(make_calls(load.shape, load.calls, rng, self._model)):
                for arm in arms if i % 2 == 0 else reversed(arms):
                    await asyncio.sleep(load.pause_s)
                    path = self._target_of(arm).completions
                    samples[arm.name].append(await make_call(connections[arm], path, call))
        return {name: Block(tuple(taken), 1) for name, taken in samples.items()}

    async def _call_one_arm(
        self, load: Load, arm: Arm, repeat: int, burn: Mapping[Role, float]
    ) -> Block:
        before, client_s, began_at = self._arms.read_cpu(), time.process_time(), time.monotonic()
        samples = await self._call_arm(load, arm, self._repeat_rng(load, repeat))
        await asyncio.sleep(load.settle_s)
        elapsed_s = time.monotonic() - began_at
        used = {"client": time.process_time() - client_s}
        for role, cpu_s in self._arms.read_cpu().items():
            if role[0] in (arm.name, SHARED):
                burned_s = burn.get(role, 0.0) * elapsed_s
                spent_s = cpu_s - before.get(role, 0.0) - burned_s
                used[role[1]] = used.get(role[1], 0.0) + spent_s
        return Block(
            tuple(samples),
            load.callers,
            {role: 1e3 * cpu_s / load.calls for role, cpu_s in used.items()},
        )

    async def _call_arm(self, load: Load, arm: Arm, rng: random.Random) -> list[Sample]:
        target = self._target_of(arm)
        if not load.by_vllm:
            calls = make_calls(load.shape, load.calls, rng, self._model)
            return await run_closed_loop(target, calls, load.callers, load.pause_s, rng)
        model = self._arms.config.model
        return await run_vllm_bench(
            target,
            model.name,
            materialise_model(model.path, model.cache_dir),
            (load.shape.prompt_tokens[0], load.shape.output_tokens[0]),
            load.calls,
            load.callers,
            rng.getrandbits(31),
        )

    def _target_of(self, arm: Arm) -> Target:
        return self._arms.targets[arm.name]

    def _repeat_rng(self, load: Load, repeat: int) -> random.Random:
        """Return a random generator that is equal for all arms of one repeat."""
        return random.Random(f"{self._seed} {load.name} {repeat}")
