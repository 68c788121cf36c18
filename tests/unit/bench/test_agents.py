"""The sessions of scripts/bench_agents: lengths, gaps, concurrency and requests."""

import asyncio
import gzip
import json
import random
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from justitia_ray.config import AppConfig, AppSettings
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.protocol.engine import EngineCall
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.serve.engines.fake_engine import FakeEngine
from scripts import bench_agents
from scripts.bench.agents import (
    AgentSession,
    Scale,
    Selection,
    Turn,
    agents_that_fit,
    draw_common,
    draw_mixed,
    draw_recorded,
    draw_synthetic,
    read_sessions,
    scaled_session,
)
from scripts.bench.agents_arms import ARMS, NO_WORKING_SET, AgentArm, AgentArms
from scripts.bench.agents_loads import OwnLoad
from scripts.bench.agents_player import AgentPlayer, Play, TurnSample
from scripts.bench.agents_report import (
    Pair,
    document,
    figures,
    session_kinds_table,
    table,
    turn_time_table,
    worst_completion_ratio,
)
from scripts.bench.agents_targets import PLAN, TARGETS, label, verdicts
from scripts.bench.load import Target
from scripts.bench.preemptions import read_server_preemptions, read_service_preemptions
from scripts.bench.serve_arms import arm_application
from tests.harness.local_cluster import read_serve_config

HALF = Scale(0.5, 0.25, 10.0)


def recorded_turn(prompt: int, reused: int, output: int, gap_s: float) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "reused_tokens": reused,
        "output_tokens": output,
        "gap_s": gap_s,
        "stop": "tool_use",
    }


RECORDED = {
    "tool_tokens": 300,
    "system_tokens": 100,
    "turns": [
        recorded_turn(1_000, 0, 100, 0.0),
        recorded_turn(1_300, 960, 80, 8.0),  # 448 is a multiple of the block size 64
        recorded_turn(900, 640, 60, 400.0),  # the context was cut
        recorded_turn(910, 896, 40, 4.0),
    ],
}


def test_scaled_session_keeps_the_proportions_of_its_prompt_lengths() -> None:
    session = scaled_session(RECORDED, "s", 1.5, HALF)

    assert [500, 650, 450, 455] == [turn.prompt_tokens for turn in session.turns]
    assert [50, 40, 30, 20] == [turn.output_tokens for turn in session.turns]
    assert [0.0, 2.0, 10.0, 1.0] == [turn.gap_s for turn in session.turns]
    assert 200 == session.common_tokens
    assert 1.5 == session.arrived_at_s


def test_scaled_prompt_repeats_the_previous_answer_where_the_recording_did() -> None:
    session = scaled_session(RECORDED, "s", 0.0, HALF)

    assert [0, 550, 320, 454] == [turn.kept_tokens for turn in session.turns]
    assert [500, 100, 130, 1] == [turn.new_tokens for turn in session.turns]


def test_sessions_are_chosen_by_number_of_turns_and_prompt_lengths(tmp_path: Path) -> None:
    short = {**RECORDED, "turns": RECORDED["turns"][:2]}  # type: ignore[index]
    (tmp_path / "sessions").mkdir()
    with gzip.open(tmp_path / "sessions" / "sessions.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps(one) + "\n" for one in (RECORDED, short))

    assert [RECORDED] == read_sessions(tmp_path, Selection((3, 9), 1_300))
    with pytest.raises(ConfigError, match="no session has 3 to 9 turns and prompts of at most"):
        read_sessions(tmp_path, Selection((3, 9), 1_299))


def test_missing_session_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sessions\.jsonl\.gz: cannot be read: No such file"):
        read_sessions(tmp_path, Selection())


def test_every_recorded_session_is_played_before_any_session_repeats() -> None:
    others = [{**RECORDED, "tool_tokens": tokens} for tokens in (0, 100, 200)]

    drawn = draw_recorded(others, 7, HALF, 4.0, random.Random(1))

    common = [session.common_tokens for session in drawn]
    assert {50, 100, 150} == set(common[:3]) == set(common[3:6])
    assert 7 == len({session.name for session in drawn})
    assert all(0.0 <= session.arrived_at_s <= 4.0 for session in drawn)


def test_synthetic_agent_sends_the_whole_conversation() -> None:
    drawn = draw_synthetic(200, 4.0, random.Random(1))

    assert {3, 13} <= {len(session.turns) for session in drawn} <= set(range(3, 14))
    for session in drawn:
        assert [506 + 120 * k for k in range(len(session.turns))] == [
            turn.prompt_tokens for turn in session.turns
        ]
        assert all(80 == turn.new_tokens for turn in session.turns[1:])
        assert all(0.25 <= turn.gap_s <= 0.75 for turn in session.turns[1:])


def test_agents_with_a_shared_prefix_start_at_once() -> None:
    agents = draw_common(3, random.Random(1))

    assert [0.0] * 3 == [agent.arrived_at_s for agent in agents]
    assert {(1_600, 1_720)} == {tuple(t.prompt_tokens for t in agent.turns) for agent in agents}
    assert {1_536} == {agent.common_tokens for agent in agents}


def test_single_calls_arrive_beside_the_agents() -> None:
    drawn = draw_mixed(3, 4.0, 30.0, random.Random(1))
    singles = [one for one in drawn if one.kind == "single"]

    assert draw_synthetic(3, 4.0, random.Random(1)) == [one for one in drawn if one not in singles]
    slow = draw_mixed(3, 4.0, 30.0, random.Random(1), (3.0, 8.0))
    gaps = [turn.gap_s for one in slow for turn in one.turns[1:]]
    assert 3.0 <= min(gaps) <= max(gaps) <= 8.0
    assert 12 == len(singles)
    assert all(1 == len(one.turns) and 600 <= one.largest_context <= 1_240 for one in singles)
    assert 4.0 < max(one.arrived_at_s for one in singles) <= 30.0


def test_report_separates_agents_and_single_calls() -> None:
    turns = (
        TurnSample("s000", 0, 0.0, 1.0, 100, 0, 10),
        TurnSample("s000", 1, 1.0, 2.0, 300, 200, 10),
        TurnSample("single000", 0, 0.0, 1.0, 50, 10, 10),
    )
    play = Play({"s000": 2.0, "single000": 1.0}, turns, ())
    found = figures(play)

    assert (2.0, 0.5) == (found["agent_mean_s"], found["agent_cached_share"])
    assert (1.0, 0.2) == (found["single_mean_s"], found["single_cached_share"])
    assert "ours" in session_kinds_table([Pair("mixed 1", 0, 1, {"ours": play})])
    alone = Play({"s000": 2.0}, turns[:2], ())
    assert "agent_mean_s" not in figures(alone)
    assert "" == session_kinds_table([Pair("synthetic 1", 0, 1, {"ours": alone})])


def test_number_of_sessions_that_fit_is_counted_by_the_largest_contexts() -> None:
    sessions = [
        AgentSession("a", 0.0, 0, (Turn(0.0, 0, 90, 10), Turn(0.0, 0, 40, 10))),
        AgentSession("b", 0.0, 0, (Turn(0.0, 0, 250, 50),)),
    ]

    assert 5.0 == agents_that_fit(1_000, sessions)


class CompletionServer:
    """HTTP server that answers completions as vLLM does, on one connection at a time."""

    def __init__(self, *, has_token_ids: bool = True, fails_at: int | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.ports: list[int] = []
        self.metric = b"vllm:num_preemptions_total"
        self.silent_s = 0.0
        """Seconds since a replica's last report; each reading of the status halves them."""
        self._has_token_ids = has_token_ids
        self._fails_at = fails_at

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET "):
                writer.write(_answer_bytes(self._counts(head.split()[1].decode())))
            else:
                await self._answer_post(head, reader, writer)
        writer.close()
        await writer.wait_closed()

    async def _answer_post(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.heads.append(head)
        self.bodies.append(body)
        self.ports.append(writer.get_extra_info("sockname")[1])
        failed = len(self.bodies) == self._fails_at
        answer = {} if b"/close" in head else await self.complete(body)
        status = b"500 Failed" if failed else b"200 OK"
        writer.write(_answer_bytes(json.dumps(answer).encode(), status))

    def preemptions(self) -> int:
        return len(self.bodies)

    def _counts(self, path: str) -> bytes:
        """Return the preemption count as vLLM's metrics or as this service's status."""
        if path == "/metrics":
            kinds = b"# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_created 9.0\n"
            return kinds + self.metric + b'{engine="0"} %.1f\n' % self.preemptions()
        assert path == "/ours/v1/status"
        self.silent_s /= 2.0
        replicas = {"a": {"silent_s": 0.0}, "b": {"silent_s": self.silent_s}}
        kv = {"preemptions": self.preemptions()}
        return json.dumps({"replicas": replicas, "kv": kv}).encode()

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        made, prompt = body["max_tokens"], len(body["prompt"])
        usage = {"prompt_tokens": prompt, "completion_tokens": made}
        ids = {"token_ids": [7] * made} if self._has_token_ids else {}
        return {
            "usage": {**usage, "prompt_tokens_details": {"cached_tokens": prompt // 2}},
            "choices": [{"text": "", **ids}],
        }


def _answer_bytes(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


class EngineServer(CompletionServer):
    """HTTP server in front of a fake engine."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__()
        self._engine = engine

    def preemptions(self) -> int:
        return self._engine.preemptions()

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        lease_id = str(len(self.bodies))
        call = EngineCall(lease_id, 0, COMPLETIONS, {}, json.dumps(body).encode())
        _, answer = [item async for item in self._engine.call(call)]
        self._engine.release(lease_id)
        assert isinstance(answer, bytes)
        completion: dict[str, Any] = json.loads(answer)
        return completion


@asynccontextmanager
async def run_servers(answers: CompletionServer, servers: int = 1) -> AsyncIterator[list[Target]]:
    started = [
        await asyncio.start_server(answers.serve_connection, "127.0.0.1", 0) for _ in range(servers)
    ]
    try:
        yield [Target(server.sockets[0].getsockname()[1], "/ours") for server in started]
    finally:
        for server in started:
            server.close()
            await server.wait_closed()


SESSION = AgentSession(
    "s0", 0.0, 6, (Turn(0.0, 0, 10, 4), Turn(0.0, 14, 3, 5), Turn(0.0, 12, 2, 1))
)
OTHER = AgentSession("s1", 0.0, 4, (Turn(0.0, 0, 9, 2),))


@pytest.mark.parametrize("has_token_ids", [True, False])
@pytest.mark.asyncio
async def test_benchmark_prompts_repeat_the_context_token_by_token(*, has_token_ids: bool) -> None:
    """A prefix cache only finds tokens that are equal from the first token on."""
    answers = CompletionServer(has_token_ids=has_token_ids)
    async with run_servers(answers) as targets:
        play = await AgentPlayer(targets, "m", "p", is_ours=False).play([SESSION])

    first, second, third = (body["prompt"] for body in answers.bodies)
    assert [10, 17, 14] == [len(first), len(second), len(third)]
    assert first == second[:10]
    assert ([7] * 4 == second[10:14]) is has_token_ids
    assert second[:12] == third[:12]
    assert second[12:14] != third[12:14]
    assert 41 == sum(turn.prompt_tokens for turn in play.turns)
    assert (5 + 8 + 7) / 41 == play.cached_share
    assert {"s0"} == set(play.completion_s)


@pytest.mark.asyncio
async def test_benchmark_sessions_share_a_prefix_only_within_a_run() -> None:
    answers = CompletionServer()
    async with run_servers(answers) as targets:
        for name in ("p", "q"):
            await AgentPlayer(targets, "m", name, is_ours=False).play([SESSION])
            await AgentPlayer(targets, "m", name, is_ours=False).play([OTHER])

    first, other, later = (answers.bodies[i]["prompt"] for i in (0, 3, 4))
    assert first[:4] == other[:4]
    assert first[4:6] != other[4:6]
    assert first[:4] != later[:4]


@pytest.mark.asyncio
async def test_sessions_alternate_between_servers_and_stay_on_one() -> None:
    answers = CompletionServer()
    async with run_servers(answers, 2) as targets:
        await AgentPlayer(targets, "m", "p", is_ours=False).play([SESSION, OTHER])

    by_port = {target.port: answers.ports.count(target.port) for target in targets}
    assert [3, 1] == list(by_port.values())


@pytest.mark.asyncio
async def test_benchmark_session_is_an_application_that_it_closes() -> None:
    answers = CompletionServer()
    async with run_servers(answers) as targets:
        await AgentPlayer(targets, "m", "p", is_ours=True).play([SESSION])

    assert all(b"x-justitia-application: p-s0\r\n" in head for head in answers.heads[:3])
    assert all(b"x-justitia-class: agent\r\n" in head for head in answers.heads[:3])
    assert answers.heads[3].startswith(b"POST /ours/v1/applications/p-s0/close ")


@pytest.mark.asyncio
async def test_client_sends_priorities_and_cache_salts_to_bare_servers() -> None:
    answers = CompletionServer()
    later = replace(OTHER, arrived_at_s=0.05)
    async with run_servers(answers) as targets:
        player = AgentPlayer(targets, "m", "p", is_ours=False, has_priorities=True, tenants=2)
        await player.play([later, SESSION])
        ours = AgentPlayer(targets, "m", "q", is_ours=True, tenants=2)
        await ours.play([replace(later, name="s2")])

    said = {(body["priority"], body["cache_salt"]) for body in answers.bodies[:4]}
    assert {(0, "tenant-0"), (1, "tenant-1")} == said
    assert all(b"X-Session-ID: p-s" in head for head in answers.heads[:4])
    assert all(b"x-justitia-tenant: tenant-0" in head for head in answers.heads[4:])
    assert not {"priority", "cache_salt"} & set(answers.bodies[4])


@pytest.mark.asyncio
async def test_failed_session_is_an_error_and_ends_no_other_session() -> None:
    answers = CompletionServer(fails_at=2)
    later = AgentSession("s1", 0.2, 4, OTHER.turns)
    async with run_servers(answers) as targets:
        play = await AgentPlayer(targets, "m", "p", is_ours=False).play([SESSION, later])

    assert {"s1"} == set(play.completion_s)
    (error,) = play.errors
    assert error.startswith("s0: status 500")


def two_session_play(arm_s: float, other_s: float) -> Play:
    turns = (
        TurnSample("s0", 0, 0.0, 30.0, 100, 25, 10),
        TurnSample("s1", 0, 0.0, 60.0, 100, 75, 10),
    )
    return Play({"s0": arm_s, "s1": other_s}, turns, ())


def test_report_compares_arms_session_by_session() -> None:
    pinned, ours = two_session_play(2.0, 4.0), two_session_play(3.0, 3.0)
    pairs = [Pair("synthetic 0.9", 0, 2, {"pinned": pinned, "ours": ours})]

    assert 3.0 == figures(pinned)["mean_s"]
    assert 2.0 == pinned.turns_per_minute
    assert 0.5 == pinned.cached_share
    assert 1.5 == worst_completion_ratio(ours, pinned)
    line = table(pairs, "pinned").splitlines()[2]
    assert "ours" in line
    assert "1.00 (1.00 to 1.00)" in line
    assert "1.50 (1.50 to 1.50)" in line
    assert ["pinned", "ours"] == [entry["arm"] for entry in document(pairs)]


def test_report_splits_a_turn_into_queue_replica_and_transport() -> None:
    turns = tuple(
        TurnSample(name, turn, 4.0 * turn, 4.0 * turn + 4.0, 100, 60, 10, replica, 1.0, 2.0)
        for turn, replicas in enumerate(("ab", "bb", "ab"))
        for name, replica in zip(("s0", "s1"), replicas, strict=True)
    )
    play = Play({}, turns, (), {"engine": 0.6, "ingress": 0.3})

    assert 2 == play.count_moved_turns
    line = turn_time_table([Pair("synthetic 0.9", 0, 2, {"ours": play})]).splitlines()[1]
    assert ["ours", "4.000", "1.000", "2.000", "1.000", "40", "2", "150", "50"] == line.split()[2:]


@pytest.mark.parametrize("arm", ["pinned", "ours"])
@pytest.mark.asyncio
async def test_preemptions_of_a_run_come_from_the_counters_of_the_engine(arm: str) -> None:
    """Four sessions of 500 tokens begin together in 1,600 tokens of KV memory, and outgrow it."""
    engine = FakeEngine("m", kv_tokens=1_600, block_size=16, iteration_s=0.0)
    await engine.start()
    turns = (Turn(0.0, 0, 300, 200),)

    def draw_sessions(count: int, rng: random.Random) -> list[AgentSession]:
        return [AgentSession(f"s{i}", 0.0, 4, turns) for i in range(count)]

    async with run_servers(EngineServer(engine)) as targets:
        arms = RunningArms(targets)
        arms.running = {arm: arms.running[arm]}
        options = bench_agents.parse_arguments(["--agents", "1", "4", "--repeats", "1"])
        loads = {"synthetic": OwnLoad(draw_sessions)}
        bench = bench_agents.AgentBench(
            cast(AgentArms, arms), loads, options, lambda _: None, lambda _: None, None
        )
        alone, together = await bench.run()
    counted = engine.preemptions()
    await engine.stop()

    assert 0 == alone.plays[arm].preemptions
    assert 0 < counted == together.plays[arm].preemptions
    shown = [one["figures"]["preemptions"] for one in document([alone, together])]
    assert [0, counted] == shown
    (head, _, row) = table([alone, together], "pinned").splitlines()
    place = len(head.partition("preemptions")[0]) + len("preemptions")
    assert row[:place].endswith(f" {counted} ({counted} to {counted})")


@pytest.mark.asyncio
async def test_benchmark_waits_until_every_replica_has_reported_again() -> None:
    """The status shows preemptions only as of each replica's last report."""
    answers = CompletionServer()
    answers.silent_s = 1.0
    async with run_servers(answers) as (target,):
        assert 0 == await read_service_preemptions(target)
        assert 0 == await read_server_preemptions(target)

    assert answers.silent_s < 1.0


@pytest.mark.asyncio
async def test_server_without_a_count_of_preemptions_is_an_error() -> None:
    answers = CompletionServer()
    answers.metric = b"vllm:num_requests_running"
    async with run_servers(answers) as (target,):
        with pytest.raises(JustitiaError, match="/metrics has no vllm:num_preemptions_total"):
            await read_server_preemptions(target)


def test_benchmark_targets_are_compared_with_medians_of_pairs() -> None:
    cached = two_session_play(1.0, 1.0)
    pairs = []
    for repeat, factor in enumerate((1.0, 1.1, 3.0)):
        turns = tuple(replace(turn, cached_tokens=turn.cached_tokens - 3) for turn in cached.turns)
        slower = Play({"s0": factor, "s1": factor}, turns, ())
        pairs.append(Pair("synthetic of 8", repeat, 8, {"pinned": cached, "ours": slower}))
        pairs.append(Pair("common of 48", repeat, 48, {"ours": cached, "pinned": cached}))

    assert [
        ("caching, 8 agents: mean over pinned, at most 1.10", True),
        ("caching, 8 agents: cached share over pinned, at least -2 points", False),
        ("caching, 48 agents, common: makespan over pinned, at most 1.10", True),
        ("working set, 8 agents: cached share, at least 80 %", False),
    ] == [(one.target, one.met) for one in verdicts(pairs, on_gpu=False)]
    on_gpu = verdicts(pairs, on_gpu=True)
    assert not on_gpu[0].met
    assert not [one for one in on_gpu if one.target.startswith("working set")]


def test_benchmark_targets_are_judged_at_every_number_of_agents() -> None:
    def play_of(seconds: float, preemptions: int) -> Play:
        turns = (TurnSample("s0", 0, 0.0, seconds, 100, 90, 10),)
        return Play({"s0": seconds}, turns, (), preemptions=preemptions)

    pairs = [
        Pair(
            label(name, agents),
            0,
            agents,
            {"ours": play_of(6.5, 3), "pinned": play_of(10.0, 9), "ours-off": play_of(20.0, 5)},
        )
        for name, agents in PLAN
    ]
    found = {one.target: one for one in verdicts(pairs, on_gpu=False)}

    assert {(target.load, target.agents) for target in TARGETS} == set(PLAN)
    assert len(TARGETS) == len(found)
    assert [
        "working set, 16 agents: mean over pinned, at most 0.95",
        "working set, 16 agents: p90 over pinned, at most 0.90",
        "working set, 16 agents: cached share, at least 80 %",
        "working set, 32 agents: mean over pinned, at most 0.70",
        "working set, 32 agents: p90 over pinned, at most 0.90",
        "working set, 32 agents: turns a minute over pinned, at least 1.30",
        "working set, 32 agents: cached share, at least 80 %",
        "working set, 64 agents: mean over pinned, at most 0.60",
        "working set, 64 agents: p90 over pinned, at most 0.90",
        "working set, 64 agents: cached share, at least 80 %",
    ] == [name for name in found if name.startswith("working set")][1:]
    assert ["working set, 64 agents: mean over pinned, at most 0.60"] == [
        name for name, one in found.items() if not one.met
    ]
    preempted = found["caching, 32 agents: preemptions over ours-off, at most +0"]
    assert "-2 (-2 to -2)" == preempted.figure
    for pair in pairs:
        del pair.plays["pinned"], pair.plays["ours-off"]
    assert ["working set, 8 agents: cached share, at least 80 %"] == [
        one.target for one in verdicts(pairs[:1], on_gpu=False)
    ]


class RunningArms:
    """Fake running arms whose calls all go to the same servers."""

    def __init__(self, targets: list[Target]) -> None:
        self.kv_tokens = 3_000
        self.config = AppConfig.parse({"model": {"name": "m", "path": "none"}})
        self.running = {
            "pinned": AgentArm("pinned", tuple(targets), is_ours=False),
            "ours": AgentArm("ours", tuple(targets[:1]), is_ours=True),
        }

    def read_cpu(self, arm: str) -> dict[str, float]:
        return {"engine": 1.0}


@pytest.mark.asyncio
async def test_every_arm_plays_every_load_in_alternating_order(tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    arguments = ["--agents", "2", "3", "--repeats", "2", "--steps", str(steps), "--window-s", "0"]
    options = bench_agents.parse_arguments(arguments)
    said: list[str] = []
    kept: list[int] = []
    one = AgentSession("s0", 0.0, 4, (Turn(0.0, 0, 60, 40),))

    def draw_sessions(count: int, rng: random.Random) -> list[AgentSession]:
        return [replace(one, name=f"s{i}") for i in range(count)]

    async with run_servers(CompletionServer(), 2) as targets:
        arms = cast(AgentArms, RunningArms(targets))
        bench = bench_agents.AgentBench(
            arms,
            {"synthetic": OwnLoad(draw_sessions)},
            options,
            said.append,
            lambda p: kept.append(len(p)),
            None,
        )
        pairs = await bench.run()

    played = [(pair.repeat, pair.load) for pair in pairs]
    names = ["synthetic of 2", "synthetic of 3"]
    assert [(0, names[0]), (0, names[1]), (1, names[0]), (1, names[1])] == played
    assert [["pinned", "ours"], ["pinned", "ours"], ["ours", "pinned"], ["ours", "pinned"]] == [
        list(pair.plays) for pair in pairs
    ]
    assert [1, 1, 2, 2, 3, 3, 4, 4] == kept
    assert all(
        pair.agents == len(play.completion_s) for pair in pairs for play in pair.plays.values()
    )
    assert {"prefill", "cached", "extend", "decode"} == {
        line.split(",")[0] for line in steps.read_text().splitlines()[1:]
    }


@pytest.mark.asyncio
async def test_benchmark_starts_no_load_after_its_deadline() -> None:
    options = bench_agents.parse_arguments(["--loads", "1", "--repeats", "1", "--agents", "1"])
    said: list[str] = []

    async with run_servers(CompletionServer()) as targets:
        arms = cast(AgentArms, RunningArms(targets))
        loads = {"synthetic": OwnLoad(lambda count, rng: draw_synthetic(count, 0.0, rng))}
        bench = bench_agents.AgentBench(arms, loads, options, said.append, lambda _: None, 0.0)
        pairs = await bench.run()

    assert [] == pairs
    assert ["the time is over after 0 of 1 pairs"] == said


def test_documented_benchmark_on_a_gpu_takes_ten_minutes() -> None:
    page = Path(bench_agents.__file__).with_name("README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`scripts/bench_agents (--engine gpu --load [^`]+)`", page)
    options = bench_agents.parse_arguments(shlex.split(command))
    application = read_serve_config(bench_agents.FILES[options.engine])["applications"][0]

    assert "random:llama-3-8b" == application["args"]["model"]["path"]
    assert (["sessions"], [0.5, 0.9, 3.0], 0.25) == (options.load, options.loads, options.scale)
    assert {"ours", "pinned"} == set(options.arms)
    assert options.budget_s + 100.0 <= 600.0


def test_configurations_of_the_benchmark_arms_are_valid() -> None:
    application = read_serve_config(bench_agents.FILES["cpu"])["applications"][0]
    options = {}
    for name, arm in ARMS.items():
        if arm.import_path:
            found = arm_application(application, arm, 2, "/data")
            AppConfig.parse(found["args"])
            (ingress,) = (one for one in found["deployments"] if one["name"] == "Ingress")
            assert found["args"]["engine"].get("hold_contexts", False) is (name == "ours-held")
            assert ("host_kv_gib" in found["args"]["engine"]) is (name == "ours-host")
            options[name] = AppSettings.parse(ingress["user_config"]).policy_options

    assert {"working_set": False} == options.pop(NO_WORKING_SET.name)
    assert {} == {name: one for name, one in options.items() if one}
