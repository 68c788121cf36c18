"""Agent sessions for scripts/bench_agents: scaled-down recordings, and synthetic sessions.

Each turn sends the whole conversation so far and adds to it. Lengths are exact token counts; the
player chooses the token ids.
"""

import gzip
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds, Tokens

SESSIONS_FILE = Path("sessions/sessions.jsonl.gz")
AGENT, SINGLE = "agent", "single"
"""Kinds of benchmark sessions: an agent with several turns, or a single call."""
_BLOCK: Tokens = 64
"""Block size of the recorded prefix-cache reuse, in tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Inference of an agent session, with its lengths and the gap before it."""

    gap_s: Seconds
    """Time between the previous answer (or the session's arrival) and this call, in seconds."""
    kept_tokens: Tokens
    """Length of the prefix that this prompt repeats from the previous prompt and its answer."""
    new_tokens: Tokens
    output_tokens: Tokens

    @property
    def prompt_tokens(self) -> Tokens:
        return self.kept_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class AgentSession:
    """Inferences of one agent; each is sent after the answer to the previous one."""

    name: str
    arrived_at_s: Seconds
    common_tokens: Tokens
    """Length of the prefix that the first prompts of all sessions in one run share, in tokens."""
    turns: tuple[Turn, ...]
    kind: str = AGENT
    """Application class of the session in the service; the report groups sessions by it."""

    @property
    def largest_context(self) -> Tokens:
        """Largest sum of prompt and answer tokens over the turns of the session."""
        return max(turn.prompt_tokens + turn.output_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors by which recorded sessions are scaled down."""

    lengths: float
    """Factor on the lengths of prompts, outputs and the shared prefix."""
    gaps: float
    """Factor on tool times and on pauses of the human user."""
    longest_gap_s: Seconds
    """Upper limit of a scaled gap, in seconds; longer gaps are cut."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter that chooses recorded sessions by their lengths before scaling."""

    turns: tuple[int, int] = (6, 40)
    most_prompt_tokens: Tokens = 100_000


def read_sessions(data_dir: Path, selection: Selection) -> list[Mapping[str, Any]]:
    """Return the selected recorded sessions, without the calls of their sub-agents.

    Raises:
        ConfigError: If the file is missing, or none is selected.
    """
    file = data_dir / SESSIONS_FILE
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            recorded = [json.loads(line) for line in lines]
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    least, most = selection.turns
    chosen = [
        session
        for session in recorded
        if least <= len(session["turns"]) <= most
        and max(turn["prompt_tokens"] for turn in session["turns"]) <= selection.most_prompt_tokens
    ]
    if not chosen:
        raise ConfigError(
            f"{file}: no session has {least} to {most} turns and prompts of at most"
            f" {selection.most_prompt_tokens} tokens"
        )
    return chosen


def scaled_session(
    recorded: Mapping[str, Any], name: str, arrived_at_s: Seconds, scale: Scale
) -> AgentSession:
    turns: list[Turn] = []
    before: Mapping[str, Any] | None = None
    for turn in recorded["turns"]:
        prompt = _scale_token_count(turn["prompt_tokens"], scale.lengths)
        if before is None:
            kept, gap_s = 0, 0.0
        else:
            repeats_all = turn["reused_tokens"] > before["prompt_tokens"] - 2 * _BLOCK
            context = turns[-1].prompt_tokens + turns[-1].output_tokens
            kept = context if repeats_all else int(turn["reused_tokens"] * scale.lengths)
            kept = min(kept, context, prompt - 1)
            gap_s = min(scale.gaps * (turn["gap_s"] or 0.0), scale.longest_gap_s)
        output = _scale_token_count(turn["output_tokens"], scale.lengths)
        turns.append(Turn(gap_s, kept, prompt - kept, output))
        before = turn
    common = _scale_token_count(recorded["tool_tokens"] + recorded["system_tokens"], scale.lengths)
    return AgentSession(name, arrived_at_s, min(common, turns[0].prompt_tokens - 1), tuple(turns))


def draw_recorded(
    recorded: Sequence[Mapping[str, Any]],
    count: int,
    scale: Scale,
    window_s: Seconds,
    rng: random.Random,
) -> list[AgentSession]:
    """Return `count` recorded sessions, scaled down, that arrive within the window.

    Every recorded session is played once before any is played again.
    """
    left: list[Mapping[str, Any]] = []
    drawn: list[AgentSession] = []
    for at_s in _arrivals(count, window_s, rng):
        left = left or rng.sample(recorded, len(recorded))
        drawn.append(scaled_session(left.pop(), f"s{len(drawn):03}", at_s, scale))
    return drawn


COMMON_TOKENS: Tokens = 256
OWN_TOKENS: Tokens = 250
OUTPUT_TOKENS: Tokens = 40
TOOL_TOKENS: Tokens = 80
TURNS = (3, 13)
TOOL_S = (0.25, 0.75)


def draw_synthetic(
    count: int,
    window_s: Seconds,
    rng: random.Random,
    tool_s: tuple[Seconds, Seconds] = TOOL_S,
) -> list[AgentSession]:
    """Return `count` similar agents, each with 3 to 13 turns and tool times of `tool_s`."""
    drawn: list[AgentSession] = []
    for at_s in _arrivals(count, window_s, rng):
        turns = [Turn(0.0, 0, COMMON_TOKENS + OWN_TOKENS, OUTPUT_TOKENS)]
        for _ in range(rng.randint(*TURNS) - 1):
            kept = turns[-1].prompt_tokens + OUTPUT_TOKENS
            turns.append(Turn(rng.uniform(*tool_s), kept, TOOL_TOKENS, OUTPUT_TOKENS))
        drawn.append(AgentSession(f"s{len(drawn):03}", at_s, COMMON_TOKENS, tuple(turns)))
    return drawn


SHARED_TOKENS: Tokens = 1_536
"""Length of the system prompt and tool definitions that similar agents share."""


def draw_common(count: int, rng: random.Random) -> list[AgentSession]:
    """Return `count` agents that arrive at once, share a long prefix and have two turns each."""
    first = Turn(0.0, 0, SHARED_TOKENS + 64, OUTPUT_TOKENS)
    drawn: list[AgentSession] = []
    for _ in range(count):
        later = Turn(rng.uniform(*TOOL_S), first.prompt_tokens + OUTPUT_TOKENS, 80, OUTPUT_TOKENS)
        drawn.append(AgentSession(f"s{len(drawn):03}", 0.0, SHARED_TOKENS, (first, later)))
    return drawn


SINGLES_EACH = 4
"""Number of single calls that `draw_mixed` adds for each agent."""
SINGLE_TOKENS: tuple[Tokens, Tokens] = (600, 1_200)


def draw_mixed(
    count: int,
    window_s: Seconds,
    singles_s: Seconds,
    rng: random.Random,
    tool_s: tuple[Seconds, Seconds] = TOOL_S,
) -> list[AgentSession]:
    """Return `count` agents of `draw_synthetic` and `SINGLES_EACH` single calls for each.

    Each single call has a prompt of its own and arrives at a random time within `singles_s`.
    """
    drawn = draw_synthetic(count, window_s, rng, tool_s)
    for number, at_s in enumerate(_arrivals(SINGLES_EACH * count, singles_s, rng)):
        only = Turn(0.0, 0, rng.randint(*SINGLE_TOKENS), OUTPUT_TOKENS)
        drawn.append(AgentSession(f"{SINGLE}{number:03}", at_s, 0, (only,), SINGLE))
    return drawn


def agents_that_fit(kv_tokens: Tokens, sessions: Iterable[AgentSession]) -> float:
    """Return the number of agents that fit into the KV memory with their largest contexts."""
    contexts = [session.largest_context for session in sessions]
    return kv_tokens * len(contexts) / sum(contexts)


def _scale_token_count(tokens: Tokens, factor: float) -> Tokens:
    return max(1, round(tokens * factor))


def _arrivals(count: int, window_s: Seconds, rng: random.Random) -> list[Seconds]:
    return sorted(rng.uniform(0.0, window_s) for _ in range(count))
