"""aiperf as a player for `scripts/bench_agents`: replays recorded sessions with tool gaps.

The results of a play are read from aiperf's export, one line per request. Sessions start at their
first turn; when a session ends, its lane plays the next one until the time is over.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.units import Seconds, Tokens
from scripts.bench.agents_player import Play, TurnSample
from scripts.bench.load import Target
from scripts.bench.tools import tool_path

TRACES = Path("sessions/weka_32")
TRACES_SCALE = 1 / 32
"""Ratio of the lengths in `TRACES` to the recorded lengths."""
_STARTS_WITHIN_S: Seconds = 240.0
"""Seconds that aiperf may take to start its processes and load its data beside engines on two
cores.
"""
_OUTPUT_CHARACTERS = 800
_NAMES_PARENTS = {"AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID": "true"}
"""Environment variable that makes calls of sub-agents name their parent session."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Environment variables under which aiperf mistakes a tokenizer directory for a hub name."""


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Length and size of one recorded session."""

    last_turn: int
    largest_context: Tokens


@dataclass(frozen=True, slots=True)
class AiperfPlan:
    """Parameters of an aiperf run, equal for all compared arms."""

    traces: Path
    agents: int
    """Number of concurrent sessions."""
    duration_s: Seconds
    longest_gap_s: Seconds
    seed: int
    tokenizer: str


def scaled_traces(source: Path, factor: float, directory: Path) -> dict[str, TraceFacts]:
    """Write the traces with their lengths multiplied; return each trace's facts by its id.

    Raises:
        ConfigError: If there is none, or the factor leaves no whole blocks.
    """
    facts = {}
    for file in sorted(source.glob("*.json")):
        trace = json.loads(file.read_text(encoding="utf-8"))
        if trace["block_size"] * factor < 1:
            raise ConfigError(f"--scale: blocks of {file} would have less than one token")
        _scale_lengths(trace, factor)
        (directory / file.name).write_text(json.dumps(trace), encoding="utf-8")
        own = [request for request in trace["requests"] if "in" in request]
        calls = [one for top in trace["requests"] for one in top.get("requests", (top,))]
        facts[trace["id"]] = TraceFacts(
            len(own) - 1, max(call["in"] + call["out"] for call in calls)
        )
    if not facts:
        raise ConfigError(f"{source}: there are no recorded sessions")
    return facts


def _scale_lengths(part: dict[str, Any], factor: float) -> None:
    for key in ("block_size", "tool_tokens", "system_tokens", "in", "out"):
        if key in part:
            part[key] = max(1, round(part[key] * factor))
    for request in part.get("requests", ()):
        _scale_lengths(request, factor)


def run_aiperf(
    targets: Sequence[Target],
    model: str,
    plan: AiperfPlan,
    salt: str,
    directory: Path,
    headers: Mapping[str, str],
) -> list[dict[str, Any]]:
    options = {
        "model": model,
        "endpoint-type": "chat",
        "tokenizer": plan.tokenizer,
        "custom-dataset-type": "weka-trace",
        "input-file": str(plan.traces),
        "scenario": "inferencex-agentx-mvp",
        "trajectory-start-min-ratio": "0",
        "trajectory-start-max-ratio": "0",
        "trace-idle-gap-cap-seconds": f"{plan.longest_gap_s:g}",
        "benchmark-duration": f"{plan.duration_s:g}",
        "concurrency": str(plan.agents),
        "random-seed": str(plan.seed),
        "session-header": "X-Session-ID",
        "extra-inputs": json.dumps(
            {
                "cache_salt": salt,
                # A random model's answer may have no text, which aiperf counts as an error.
                "temperature": 1,
                "ignore_eos": True,
                "skip_special_tokens": False,
            }
        ),
        "workers-max": "1",
        "record-processors": "1",
        "ui": "none",
        "artifact-dir": str(directory),
    }
    command = [str(tool_path("aiperf")), "profile", "--streaming", "--unsafe-override"]
    command += ["--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
    command += ["--allow-dataset-wrap"]
    for name, value in options.items():
        command += [f"--{name}", value]
    for target in targets:
        command += ["--url", f"http://{target.host}:{target.port}{target.route_prefix}"]
    for name, value in headers.items():
        command += ["--header", f"{name}:{value}"]
    limit_s = plan.duration_s + _STARTS_WITHIN_S
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * limit_s,
            env={name: value for name, value in os.environ.items() if name not in _OFFLINE}
            | _NAMES_PARENTS,
        )
    except subprocess.TimeoutExpired:
        raise JustitiaError(f"aiperf did not end within {2 * limit_s:.0f} s") from None
    export = directory / "profile_export.jsonl"
    if done.returncode or not export.exists():
        said = (done.stdout + done.stderr).strip()[-_OUTPUT_CHARACTERS:]
        raise JustitiaError(f"aiperf ended with status {done.returncode}: {said}")
    with export.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_export(records: Iterable[Mapping[str, Any]], facts: Mapping[str, TraceFacts]) -> Play:
    """Return one run's measurements from the files that aiperf exports, one file for each tenant.

    A session has ended when its last recorded turn is answered; the calls of its sub-agents belong
    to it. The calls with which aiperf warms up the lanes are excluded.
    """
    played = [one for one in records if one["metadata"]["benchmark_phase"] == "profiling"]
    played.sort(key=lambda one: int(one["metadata"]["request_start_ns"]))
    if not played:
        return Play({}, (), ("aiperf made no call in its time",))
    zero_ns = int(played[0]["metadata"]["request_start_ns"])
    names: dict[str, str] = {}
    times: dict[str, int] = {}
    began_at_s: dict[str, Seconds] = {}
    completion_s: dict[str, Seconds] = {}
    turns: list[TurnSample] = []
    errors: list[str] = []
    for record in played:
        about, metrics = record["metadata"], record["metrics"] or {}
        root = about.get("root_correlation_id") or about["x_correlation_id"]
        if root not in names:
            trace = about.get("source_trace_id") or about["conversation_id"]
            times[trace] = times.get(trace, -1) + 1
            names[root] = f"{trace}#{times[trace]}"
        session = names[root]
        sent_at_s = (int(about["request_start_ns"]) - zero_ns) / 1e9
        answered_at_s = (int(about["request_end_ns"]) - zero_ns) / 1e9
        began_at_s.setdefault(session, sent_at_s)
        if record.get("error"):
            if not about.get("was_cancelled"):  # aiperf cancels sessions when the time is over
                errors.append(f"{session} turn {about['turn_index']}: {record['error']}")
            continue
        turns.append(
            TurnSample(
                session,
                int(about["turn_index"]),
                sent_at_s,
                answered_at_s,
                _metric_value(metrics, "usage_prompt_tokens"),
                _metric_value(metrics, "usage_prompt_cache_read_tokens"),
                _metric_value(metrics, "usage_completion_tokens"),
            )
        )
        last = facts[session.rpartition("#")[0]].last_turn
        if not about["agent_depth"] and about["turn_index"] == last:
            completion_s[session] = answered_at_s - began_at_s[session]
    turns.sort(key=lambda turn: turn.answered_at_s)
    return Play(completion_s, tuple(turns), tuple(errors))


def _metric_value(metrics: Mapping[str, Any], name: str) -> int:
    return int(metrics.get(name, {}).get("value") or 0)
