"""Small recorded sessions for tests, as files and as parsed sessions."""

from pathlib import Path
from typing import Any

from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.trace import Session, read_sessions
from tests.unit.sim.data_directory import write_lines

ENGINE = LongContextProfile(
    "small",
    kv_tokens=6_400,
    base_s=0.01,
    per_sequence_s=0.0,
    per_context_token_s=1e-6,
    per_prompt_token_s=1e-4,
    per_pair_s=0.0,
    host_token_s=1e-5,
    block_size=16,
    max_num_seqs=8,
    max_batched_tokens=2_048,
)
"""Replica on which computing 1,000 tokens takes ten iterations."""


def turn_line(
    prompt: int, output: int, reused: int = 0, gap_s: float | None = 1.0
) -> dict[str, Any]:
    """Return a turn in the format of a session trace."""
    return {
        "t_s": 0.0,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "reused_tokens": reused,
        "gap_s": gap_s,
        "stop": "tool_use",
    }


def session_line(name: str, *turns: dict[str, Any], tools: int = 320) -> dict[str, Any]:
    """Return a session in the format of a session trace."""
    return {"session": name, "tool_tokens": tools, "system_tokens": 0, "turns": list(turns)}


def read_written(
    directory: Path, *lines: dict[str, Any], longest_gap_s: float = 600.0
) -> list[Session]:
    """Write sessions to a file and read them back."""
    path = directory / "sessions.jsonl"
    write_lines(path, *lines)
    return read_sessions(path, longest_gap_s)


def growing_session(name: str, turns: int = 6, first: int = 600, more: int = 100) -> dict[str, Any]:
    prompts = [first + more * k for k in range(turns)]
    before = [0, *(prompt // 64 * 64 for prompt in prompts)]
    return session_line(name, *(turn_line(p, 20, r) for p, r in zip(prompts, before, strict=False)))
