"""The exchange of scripts/bench_agents with aiperf: its export, and the traces for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.asgi import Message, Receive, Send
from scripts.bench import agents_loads
from scripts.bench.agents_arms import AgentArm
from scripts.bench.agents_player import Play
from scripts.bench.aiperf import AiperfPlan, TraceFacts, read_export, scaled_traces
from scripts.bench.arrival_priority import (
    BY_ARRIVAL,
    PARENT_HEADER,
    PRIORITY_HEADER,
    ArrivalPriority,
)
from scripts.bench.load import Target

FACTS = {"t": TraceFacts(2, 100), "u": TraceFacts(1, 100)}


def exported_record(
    session: str, turn: int, start_s: float, end_s: float, *, root: str = "", **changes: Any
) -> dict[str, Any]:
    """Return one record of an aiperf 0.13 export."""
    metadata = {
        "conversation_id": session[0],
        "source_trace_id": (root or session)[0],
        "turn_index": turn,
        "x_correlation_id": session,
        "root_correlation_id": root or session,
        "agent_depth": 1 if root else 0,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        "request_start_ns": 10**18 + int(start_s * 1e9),
        "request_end_ns": 10**18 + int(end_s * 1e9),
    }
    metrics = {
        "usage_prompt_tokens": {"value": 100, "unit": "tokens"},
        "usage_prompt_cache_read_tokens": {"value": 25 * turn, "unit": "tokens"},
        "usage_completion_tokens": {"value": 4, "unit": "tokens"},
    }
    fields = {key: changes.pop(key) for key in set(changes) & set(metadata)}
    return {"metadata": metadata | fields, "metrics": metrics, **changes}


def test_session_ends_with_the_answer_to_its_last_recorded_turn() -> None:
    """Calls of a sub-agent belong to the session of its agent."""
    play = read_export(
        [
            exported_record("t1", 0, 1.0, 2.0),
            exported_record("t1", 1, 4.0, 5.0),
            exported_record("s1", 0, 5.0, 6.0, root="t1"),
            exported_record("t1", 2, 8.0, 10.0),
            exported_record("t2", 0, 10.5, 11.0),
        ],
        FACTS,
    )

    assert {"t#0": 9.0} == play.completion_s
    assert 5 == len(play.turns)
    assert (25 + 50) / 500 == play.cached_share
    assert 10.0 == play.elapsed_s
    assert () == play.errors


def test_failed_calls_are_errors_and_cancelled_calls_are_not() -> None:
    failed = {"type": "HTTPError", "message": "503"}
    play = read_export(
        [
            exported_record("u1", 0, 0.0, 1.0),
            exported_record("u1", 1, 2.0, 3.0, error=failed),
            exported_record("u2", 0, 3.0, 4.0, error={"message": "cancelled"}, was_cancelled=True),
        ],
        FACTS,
    )

    assert {} == play.completion_s
    (error,) = play.errors
    assert error.startswith("u#0 turn 1: ")


def test_warm_up_calls_are_excluded_from_the_results() -> None:
    prepared = exported_record("t1", 0, 0.0, 1.0, benchmark_phase="warmup")

    assert ("aiperf made no call in its time",) == read_export([prepared], FACTS).errors


def test_recorded_traces_are_scaled_in_whole_kv_blocks(tmp_path: Path) -> None:
    source, scaled = tmp_path / "source", tmp_path / "scaled"
    source.mkdir()
    scaled.mkdir()
    call = {"in": 100, "out": 3, "hash_ids": [1, 2]}
    inner = {"type": "subagent", "tool_tokens": 7, "requests": [{**call, "in": 200}]}
    trace = {"id": "t", "block_size": 2, "tool_tokens": 10, "requests": [call, inner, call]}
    (source / "t.json").write_text(json.dumps(trace))

    facts = scaled_traces(source, 8.0, scaled)

    assert {"t": TraceFacts(1, 1_624)} == facts
    written = json.loads((scaled / "t.json").read_text())
    assert (16, 80) == (written["block_size"], written["tool_tokens"])
    assert (800, 24, [1, 2]) == tuple(written["requests"][0].values())
    assert (56, 1_600) == (
        written["requests"][1]["tool_tokens"],
        written["requests"][1]["requests"][0]["in"],
    )
    with pytest.raises(ConfigError, match="less than one token"):
        scaled_traces(source, 0.25, scaled)


class AiperfRuns:
    """Stands in for aiperf: records its runs, each with one session of a single turn."""

    def __init__(self) -> None:
        self.runs: list[tuple[tuple[Target, ...], AiperfPlan, str, Path, dict[str, str]]] = []

    def run_aiperf(
        self,
        targets: tuple[Target, ...],
        model: str,
        plan: AiperfPlan,
        salt: str,
        directory: Path,
        headers: dict[str, str],
    ) -> list[dict[str, Any]]:
        self.runs.append((targets, plan, salt, directory, headers))
        number = len(self.runs)
        return [exported_record(f"v{number}", 0, 1.0 * number, 1.0 * number + 0.5)]


@pytest.fixture
def aiperf_runs(monkeypatch: pytest.MonkeyPatch) -> AiperfRuns:
    runs = AiperfRuns()
    monkeypatch.setattr(agents_loads, "run_aiperf", runs.run_aiperf)
    monkeypatch.setattr(agents_loads, "materialise_model", lambda path, cache_dir: path)
    return runs


async def play_with_aiperf(tmp_path: Path, arm: AgentArm, tenants: int, agents: int) -> Play:
    traces, files = tmp_path / "recorded", tmp_path / "files"
    traces.mkdir()
    files.mkdir()
    trace = {"id": "v", "block_size": 2, "requests": [{"in": 100, "out": 3}]}
    (traces / "v.json").write_text(json.dumps(trace))
    load = agents_loads.AiperfLoad(traces, 1.0, 12.0, 0.5, files, tenants)
    config = AppConfig.parse({"model": {"name": "m", "path": "none"}})
    return await load.play(arm, config, agents, "seed")


async def test_every_tenant_has_its_own_run_of_aiperf(
    tmp_path: Path, aiperf_runs: AiperfRuns
) -> None:
    """Runs of two tenants share no sessions, cache salts or files."""
    ours = AgentArm("ours", (Target(1, ""),), is_ours=True)
    play = await play_with_aiperf(tmp_path, ours, tenants=3, agents=8)
    runs = sorted(aiperf_runs.runs, key=lambda run: run[4]["x-justitia-tenant"])

    assert ["tenant-0", "tenant-1", "tenant-2"] == [run[4]["x-justitia-tenant"] for run in runs]
    assert {"agent"} == {run[4]["x-justitia-class"] for run in runs}
    assert [3, 3, 2] == [run[1].agents for run in runs]
    assert 3 == len({run[1].seed for run in runs})
    assert 3 == len({run[2] for run in runs}) == len({run[3] for run in runs})
    assert {"v#0", "v#1", "v#2"} == set(play.completion_s)
    assert 2.5 == play.elapsed_s


@pytest.mark.parametrize(
    ("arm", "headers"), [("pinned", {}), ("pinned-priority", {PRIORITY_HEADER: BY_ARRIVAL})]
)
async def test_first_session_of_each_tenant_uses_a_different_engine_server(
    tmp_path: Path, aiperf_runs: AiperfRuns, arm: str, headers: dict[str, str]
) -> None:
    """Aiperf pins the first session of each run to the first server that it is given."""
    one, other = Target(1, ""), Target(2, "")
    await play_with_aiperf(tmp_path, AgentArm(arm, (one, other), is_ours=False), 3, 2)

    assert {(one, other), (other, one)} == {run[0] for run in aiperf_runs.runs}
    assert [headers] * 2 == [run[4] for run in aiperf_runs.runs]


class PassedBodies:
    """ASGI application that records the bodies of its calls."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
        self.bodies.append(body)


async def send_call(app: ArrivalPriority, pieces: list[bytes], **headers: str) -> None:
    """Send a body in pieces, and disconnect."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None: ...

    await app({"type": "http", "headers": pairs}, receive, send)


async def test_engine_server_numbers_sessions_by_their_arrival() -> None:
    """A sub-agent has the priority of its agent."""
    passed = PassedBodies()
    app = ArrivalPriority(passed)
    asked = {PRIORITY_HEADER: BY_ARRIVAL}
    for session, parent in (("a", ""), ("b", ""), ("a1", "a"), ("a2", "a1"), ("b", ""), ("c", "")):
        named = {PARENT_HEADER: parent} if parent else {}
        await send_call(
            app, [b'{"max_to', b'kens": 5}'], **{"X-Session-ID": session}, **asked, **named
        )
    await send_call(app, [b'{"prompt":', b"[1]}"], **{"X-Session-ID": "d"})

    read = [json.loads(body) for body in passed.bodies[:-1]]
    assert [0, 1, 0, 0, 1, 4] == [body["priority"] for body in read]
    assert {5} == {body["max_tokens"] for body in read}
    assert b'{"prompt":[1]}' == passed.bodies[-1]
