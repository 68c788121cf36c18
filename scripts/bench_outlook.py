"""Measure the accuracy of predicted starts on fake engines short of memory, and of seats."""

import argparse
import asyncio
import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from justitia_ray.errors import JustitiaError
from justitia_ray.lab.outlook import PredictedStart
from justitia_ray.units import Seconds
from scripts.bench.outlook import CELLS, Cell, play, score_rows, table
from scripts.bench.output import print_machine, progress_printer, write_json
from tests.harness.local_cluster import LocalCluster, read_serve_config

_FILE = Path("deployments/local-fake.yaml")
_DECLARED_CPUS = 16
_ANSWERED_WITHIN_S: Seconds = 300.0


class OutlookCluster(LocalCluster):
    """Cluster with one application and one fake engine for each cell; a context manager."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(_DECLARED_CPUS)
        self.values = read_serve_config(_FILE)
        [application] = self.values["applications"]
        self.model: str = application["args"]["model"]["name"]
        self.values["applications"] = [
            self._application_values(application, cell) for cell in cells
        ]

    def _application_values(self, template: dict[str, Any], cell: Cell) -> dict[str, Any]:
        application = copy.deepcopy(template)
        application |= {"name": cell.name, "route_prefix": f"/{cell.name}"}
        args = application["args"]
        args["name"] = cell.name
        args["engine"] = {"kind": "fake", "fake": dict(cell.fake)}
        args["store"] = {"data_dir": f"{self.data_dir}/{cell.name}"}
        # Long timeouts: a client that shares two cores with the cluster may be silent for seconds.
        args["scheduler"] = {"replica_timeout_s": 30, "lease_timeout_s": 60}
        for deployment in application["deployments"]:
            if deployment["name"] in ("Replica", "Ingress"):
                deployment["num_replicas"] = 1
        return application


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    cells = [CELLS[name] for name in options.cells]
    about = print_machine(("ray",))
    say = progress_printer()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    found: dict[str, list[Any]] = {cell.name: [] for cell in cells}
    try:
        with OutlookCluster(cells) as cluster:
            for repeat in range(options.repeats):
                for cell in cells:
                    say(f"{cell.name}, repeat {repeat + 1}: {cell.about}")
                    told = asyncio.run(
                        _play_cell(
                            cluster, cell, options.calls, options.seed + repeat, f"{repeat}-"
                        )
                    )
                    scored = score_rows(told)
                    print(f"\n{table(scored)}\n", flush=True)
                    found[cell.name].append([row.as_json() for row in scored])
    except JustitiaError as error:
        print(f"scripts/bench_outlook: {error}", file=sys.stderr)
        return 1
    results = {"machine": about, "seed": options.seed, "calls": options.calls}
    write_json(options.json, {**results, "cells": found})
    return 0


async def _play_cell(
    cluster: OutlookCluster, cell: Cell, calls: int, seed: int, prefix: str
) -> list[PredictedStart]:
    url = f"http://127.0.0.1:{cluster.port}/{cell.name}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=_ANSWERED_WITHIN_S) as http:
        return await play(http, cluster.model, cell, calls, seed, prefix)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench_outlook", description=__doc__)
    parser.add_argument(
        "--cell",
        dest="cells",
        action="append",
        choices=tuple(CELLS),
        help="cell to measure; repeatable (default: both)",
    )
    parser.add_argument(
        "--calls", type=int, default=300, help="calls of a cell and repeat (default 300)"
    )
    parser.add_argument("--quick", action="store_true", help="60 calls")
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="repeats on one scheduler, which keeps what it has learned (default 1)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the first load (default 1)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    options.cells = options.cells or list(CELLS)
    if options.quick:
        options.calls = 60
    for name in ("calls", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1 is needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
