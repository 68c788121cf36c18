"""Recorded sessions: lengths of prompts and outputs, reuse of previous prompts, gaps.

The trace contains no tokens. So a block of a prompt is identified by session and position while the
session continues its context. If a turn keeps only a part of the previous prompt, its context is
new after this part. The start of a session (tools and system prompt) is shared by all sessions in
which both have the same lengths. Outputs are identified separately: the trace counts the last
answer as new in the next prompt.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from justitia_ray.engine_model.contents import Span
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import first_mistake
from justitia_ray.units import Seconds, Tokens

SESSIONS_FILE = Path("sessions") / "sessions.jsonl.gz"
"""Path of the recorded sessions inside a data directory."""

_GRAIN: Tokens = 64
"""Block size in tokens with which the trace counts how much of a prompt was cached."""

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class _RecordedTurn:
    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: _Count
    reused_tokens: _Count
    gap_s: Annotated[float, Field(ge=0)] | None
    stop: str = ""


@dataclass(frozen=True, slots=True)
class _RecordedSession:
    session: str
    tool_tokens: _Count
    system_tokens: _Count
    turns: list[_RecordedTurn]


_SESSION = TypeAdapter(_RecordedSession)


class TextChain:
    __slots__ = ()


ChainPath: TypeAlias = tuple[tuple[TextChain, Tokens], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a session: one inference."""

    prompt_tokens: Tokens
    output_tokens: Tokens
    gap_s: Seconds
    """Seconds since the last of the turns in `after` was answered."""
    path: ChainPath
    calls_tool: bool = False
    """Whether the turn's answer calls a tool. Then another turn follows, in most cases soon."""
    after: tuple[int, ...] = ()
    """Indices of the turns that must end before this turn is submitted; empty: the turn is
    submitted when its session begins.
    """
    continued_tokens: Tokens = 0
    """Length of the earlier prompt of the session that this prompt continues; 0: none."""
    prefixes: bytes = b""
    """Beginnings that the prompt shares with other prompts, as an ingress sends them to the
    scheduler (`core.prefixes`).
    """


@dataclass(frozen=True, slots=True)
class Session:
    """A session: turns, each after the turn before it, or as `Turn.after` tells."""

    name: str
    turns: tuple[Turn, ...]
    kind: str = "agent"
    """Application class."""
    begins_at_s: Seconds = 0.0
    """Time at which the session begins, unless sessions begin when others end."""

    @property
    def gaps_s(self) -> Seconds:
        """Total time in which a session of consecutive turns waits for tools and users."""
        return sum(turn.gap_s for turn in self.turns)

    @property
    def stages(self) -> tuple[int, ...]:
        """Number of turns on the longest path before each turn."""
        stages = list[int]()
        for turn in self.turns:
            stages.append(1 + max((stages[place] for place in turn.after), default=-1))
        return tuple(stages)

    def until(self, most_tokens: Tokens) -> "Session":
        """Return the turns before the first one that exceeds a context of `most_tokens`."""
        for place, turn in enumerate(self.turns):
            if turn.prompt_tokens + turn.output_tokens > most_tokens:
                return replace(self, turns=self.turns[:place])
        return self


class TurnContent:
    __slots__ = ("_block_size", "_turn")

    def __init__(self, turn: Turn, block_size: Tokens) -> None:
        self._turn = turn
        self._block_size = block_size

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        for chain, end_tokens in self._turn.path:
            end = end_tokens // self._block_size
            if start >= stop:
                return
            if end > start:
                yield Span(chain, start, min(end, stop))
                start = end
        if start < stop:
            yield Span(
                self, start, stop
            )  # The blocks after a prompt's last full block belong to one turn alone.


def read_sessions(path: Path, longest_gap_s: Seconds = float("inf")) -> list[Session]:
    """Read recorded sessions of agents from a file.

    Args:
        path: A file of JSON lines, compressed with gzip if its name ends in `.gz`.
        longest_gap_s: Length to which longer gaps are cut; unknown gaps count as 0.

    Raises:
        ConfigError: If the file cannot be read or a line is wrong; the message names line, field
            and value.
    """
    beginnings: dict[tuple[Tokens, Tokens], TextChain] = {}
    sessions = []
    for number, line in enumerate(_lines(path), 1):
        try:
            recorded = _SESSION.validate_python(json.loads(line))
        except ValidationError as error:
            raise ConfigError(f"{path}: line {number}: {first_mistake(error, {})}") from error
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}: line {number}: is not JSON: {error}") from error
        sizes = recorded.tool_tokens, recorded.system_tokens
        beginning = beginnings.setdefault(sizes, TextChain())
        turns = _turns(recorded, beginning, longest_gap_s)
        if turns:
            sessions.append(Session(recorded.session, turns))
    return sessions


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        if path.name.endswith(".gz"):
            content = gzip.decompress(content)
        return [line for line in content.decode().splitlines() if line.strip()]
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def _turns(
    recorded: _RecordedSession, beginning: TextChain, longest_gap_s: Seconds
) -> tuple[Turn, ...]:
    path: list[tuple[TextChain, Tokens]] = [
        (beginning, recorded.tool_tokens + recorded.system_tokens)
    ]
    chain, before = TextChain(), 0
    turns: list[Turn] = []
    for turn in recorded.turns:
        kept = min(turn.reused_tokens, before)
        if before and kept < before // _GRAIN * _GRAIN:
            # Only the part of the old context up to `kept` tokens is reused.
            path = [*_cut_path_at([*path, (chain, before)], kept)]
            chain = TextChain()
        whole = (*_cut_path_at(path, turn.prompt_tokens), (chain, turn.prompt_tokens))
        turns.append(
            Turn(
                turn.prompt_tokens,
                max(1, turn.output_tokens),
                min(turn.gap_s or 0.0, longest_gap_s) if turns else 0.0,
                whole,
                calls_tool=turn.stop == "tool_use",
                after=(len(turns) - 1,) if turns else (),
                continued_tokens=before,
            )
        )
        before = turn.prompt_tokens
    return tuple(turns)


def _cut_path_at(
    path: Iterable[tuple[TextChain, Tokens]], at: Tokens
) -> Iterator[tuple[TextChain, Tokens]]:
    for chain, end in path:
        yield chain, min(end, at)
        if end >= at:
            return
