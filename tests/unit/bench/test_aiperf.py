"""The exchange of scripts/bench_agents with aiperf: its export, and the traces for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from scripts.bench.aiperf import TraceFacts, read_export, scaled_traces

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
    """Session t1 takes 9 s with the calls of its sub-agent; t2 starts but does not finish."""
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


def test_warm_up_calls_are_excluded_and_an_empty_run_is_an_error() -> None:
    prepared = exported_record("t1", 0, 0.0, 1.0, benchmark_phase="warmup")

    assert ("aiperf made no call in its time",) == read_export([prepared], FACTS).errors


def test_traces_are_scaled_in_whole_blocks(tmp_path: Path) -> None:
    """From scale 1/32 to 1/4 a block of 2 tokens becomes a block of 16, with the same hashes."""
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
