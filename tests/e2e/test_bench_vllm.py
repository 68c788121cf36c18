"""Benchmarks with vLLM's own server: settings of bench_serve, an arm of bench_agents."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.config import AppConfig
from scripts.bench.agents import AgentSession, Turn
from scripts.bench.agents_arms import PINNED, AgentArm
from scripts.bench.agents_loads import AiperfLoad
from scripts.bench.agents_player import AgentPlayer
from scripts.bench.engine_steps import StepGrid, measure_steps
from scripts.bench.load import Target
from scripts.bench.own_servers import OwnServer, vllm_router, vllm_server
from scripts.bench.serve import Bench
from scripts.bench.serve_arms import VLLM, RunningArms, arm_args
from scripts.bench.serve_loads import SETTINGS
from tests.harness.local_cluster import read_serve_config

pytestmark = [pytest.mark.long, pytest.mark.vllm]

_FILE = Path(__file__).parents[2] / "deployments" / "local-cpu.yaml"


@pytest.fixture(scope="module")
def config() -> AppConfig:
    """Server settings; prefix caching is on, although no call of `bench_serve` benefits from it."""
    args = read_serve_config(_FILE)["applications"][0]["args"]
    return AppConfig.parse(arm_args(args, PINNED))


@pytest.fixture(scope="module")
def server(config: AppConfig) -> Iterator[OwnServer]:
    with vllm_server(config, 1) as running:
        yield running


def test_vllm_bench_serve_measures_vllms_own_server(config: AppConfig, server: OwnServer) -> None:
    """VLLM's command line fails with the CPU build; the Python functions behind it work."""
    load = SETTINGS["vllm"].loads(quick=True)[-1]
    on_gpu = SETTINGS["gpu"].loads(quick=True)
    short = [replace(each, arms=(), callers=2, calls=6) for each in (load, *on_gpu)]
    running = RunningArms(
        config,
        {VLLM.name: Target(server.port, "")},
        {pid: (VLLM.name, role) for pid, role in server.roles.items()},
    )
    # A short test cannot tell the server's idle CPU use from noise.
    bench = Bench(short, running, 1, 0, 3.0, 1, lambda _: None)
    blocks = asyncio.run(bench.run()).blocks
    (block,) = blocks[load.name][VLLM.name]

    assert [32] * 6 == [sample.output_tokens for sample in block.samples]
    assert all(0 < sample.ttft_s <= sample.latency_s for sample in block.samples)
    assert 0 < block.cpu_ms["engine"]
    assert all(6 == len(blocks[each.name][VLLM.name][0].samples) for each in on_gpu)


def test_benchmark_sessions_hit_the_prefix_cache_with_their_earlier_turns(
    config: AppConfig, server: OwnServer
) -> None:
    """The cache holds whole blocks of the previous turn, and the common prefix of all sessions."""
    block = 32
    turns = (Turn(0.0, 0, 100, 40), Turn(0.0, 140, 30, 20), Turn(0.0, 190, 30, 20))
    sessions = [AgentSession("s0", 0.0, 70, turns), AgentSession("s1", 0.0, 70, turns[:1])]

    # The second session starts after the prompt of the first has been computed.
    async def replay_both_sessions() -> list[int]:
        cached = []
        for session in sessions:
            target = Target(server.port, "")
            player = AgentPlayer([target], config.model.name, "p", is_ours=False)
            play = await player.play([session])
            assert () == play.errors
            cached += [turn.cached_tokens for turn in play.turns]
        return cached

    # The last token of an answer is computed when the next turn sends it as input.
    expected = [0, 139 // block * block, 189 // block * block, 70 // block * block]
    assert expected == asyncio.run(replay_both_sessions())


@pytest.mark.parametrize("policy", ["cache_aware", "consistent_hash"])
def test_vllm_router_distributes_calls_to_its_servers(
    config: AppConfig, server: OwnServer, policy: str
) -> None:
    turns = (Turn(0.0, 0, 100, 8), Turn(0.0, 108, 30, 8))
    sessions = [AgentSession(f"s{i}", 0.0, 64, turns) for i in range(3)]

    with vllm_router(policy, [server.port]) as router:
        player = AgentPlayer([Target(router.port, "")], config.model.name, policy, is_ours=False)
        play = asyncio.run(player.play(sessions))

    assert () == play.errors
    assert {"s0", "s1", "s2"} == set(play.completion_s)
    assert 0 < play.cached_share


def three_turn_trace(name: str) -> dict[str, object]:
    """Return a recorded session of three turns, each of which repeats the previous turn."""
    blocks = (10, 14, 18)
    requests = [
        {
            "t": 0.3 * turn,
            "type": "n",
            "model": "m",
            "in": 16 * count,
            "out": 6,
            "hash_ids": [*range(1, count + 1)],
            "input_types": ["text"],
            "output_types": ["tool_use"],
            "stop": "tool_use",
            "api_time": 0.1,
            "think_time": 0.0,
        }
        for turn, count in enumerate(blocks)
    ]
    return {
        "id": name,
        "models": ["m"],
        "block_size": 16,
        "hash_id_scope": "local",
        "tool_tokens": 32,
        "system_tokens": 32,
        "requests": requests,
    }


@pytest.mark.parametrize(("arm", "tenants"), [("pinned", 1), ("pinned-priority", 2)])
@pytest.mark.asyncio
async def test_aiperf_replays_sessions_and_exports_their_results(
    config: AppConfig, server: OwnServer, tmp_path: Path, arm: str, tenants: int
) -> None:
    traces, files = tmp_path / "recorded", tmp_path / "files"
    traces.mkdir()
    files.mkdir()
    for name in ("t0", "t1", "t2"):
        (traces / f"{name}.json").write_text(json.dumps(three_turn_trace(name)))
    running = AgentArm(arm, (Target(server.port, ""),), is_ours=False)
    load = AiperfLoad(traces, 1.0, 12.0, 0.5, files, tenants)

    play = await load.play(running, config, 2, "smoke")

    assert () == play.errors
    assert 0 <= await running.read_preemptions()
    assert play.completion_s
    assert 0.2 < play.cached_share < 1.0
    assert all(0 < turn.output_tokens for turn in play.turns)


def test_benchmark_times_engine_steps_with_and_without_cached_tokens(
    config: AppConfig, server: OwnServer
) -> None:
    grid = StepGrid((64,), (128,), (32,), ((2, 64),), decoded=8, repeats=1)

    rows = asyncio.run(measure_steps(Target(server.port, ""), config.model.name, grid, 1))

    prefill, cached, extend, decode = rows
    assert ("prefill", 64, 0) == (prefill.kind, prefill.new_tokens, prefill.cached_tokens)
    assert ("cached", 32, 32) == (cached.kind, cached.new_tokens, cached.cached_tokens)
    assert ("extend", 32, 128) == (extend.kind, extend.new_tokens, extend.cached_tokens)
    assert ("decode", 2, 8) == (decode.kind, decode.sequences, decode.steps)
