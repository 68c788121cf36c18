"""The settings of scripts/bench_serve that call vLLM's own server: `vllm` and `gpu`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.config import AppConfig
from scripts.bench.load import Target
from scripts.bench.own_servers import vllm_server
from scripts.bench.serve import Bench
from scripts.bench.serve_arms import VLLM, RunningArms, arm_args
from scripts.bench.serve_loads import SETTINGS
from tests.harness.local_cluster import read_serve_config

pytestmark = pytest.mark.vllm

_FILE = Path(__file__).parents[2] / "deployments" / "local-cpu.yaml"


def test_vllm_bench_serve_measures_the_floor_of_its_column() -> None:
    """Neither command of vLLM's runs beside the CPU build as it is; what they run does."""
    args = read_serve_config(_FILE)["applications"][0]["args"]
    config = AppConfig.parse(arm_args(args, VLLM))
    load = SETTINGS["vllm"].loads(quick=True)[-1]
    on_gpu = SETTINGS["gpu"].loads(quick=True)
    short = [replace(each, arms=(), callers=2, calls=6) for each in (load, *on_gpu)]
    with vllm_server(config, 1) as server:
        running = RunningArms(
            config,
            {VLLM.name: Target(server.port, "")},
            {pid: (VLLM.name, role) for pid, role in server.roles.items()},
        )
        # Idle burn is taken off: so short a time of it would be chance.
        bench = Bench(short, running, 1, 0, 3.0, 1, lambda _: None)
        blocks = asyncio.run(bench.run()).blocks
        (block,) = blocks[load.name][VLLM.name]

    assert [32] * 6 == [sample.output_tokens for sample in block.samples]
    assert all(0 < sample.ttft_s <= sample.latency_s for sample in block.samples)
    assert 0 < block.cpu_ms["engine"]
    assert all(6 == len(blocks[each.name][VLLM.name][0].samples) for each in on_gpu)
