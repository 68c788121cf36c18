"""Recorded sessions: lengths of prompts and outputs, what of a prompt the turn before had, gaps.

The trace has no tokens. A block of a prompt is named by its session and its position, for as long
as the session goes on from what it has said; where a turn keeps less than the prompt before it had,
its context is another one from there on. What a session begins with (tools and system prompt) is
shared by all sessions for which both are equally long. Outputs are named apart: the trace counts
the last answer as new in the next prompt.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from justitia_ray.engine_model.contents import Span
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import first_mistake
from justitia_ray.units import Seconds, Tokens

SESSIONS_FILE = Path("sessions") / "sessions.jsonl.gz"
"""Place in a data directory."""

_GRAIN: Tokens = 64
"""Tokens of the blocks in which the trace counts reuse."""

_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class _RecordedTurn:
    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: _Count
    reused_tokens: _Count
    gap_s: Annotated[float, Field(ge=0)] | None


@dataclass(frozen=True, slots=True)
class _RecordedSession:
    session: str
    tool_tokens: _Count
    system_tokens: _Count
    turns: list[_RecordedTurn]


_SESSION = TypeAdapter(_RecordedSession)


class Chain:
    """A name of blocks that follow on each other."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a session."""

    prompt_tokens: Tokens
    output_tokens: Tokens
    gap_s: Seconds
    """Time since the answer before."""
    path: tuple[tuple[Chain, Tokens], ...]
    """The chains of its prompt, and the position, in tokens, up to which each goes."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session: turns that follow on each other."""

    name: str
    turns: tuple[Turn, ...]

    @property
    def gaps_s(self) -> Seconds:
        """Time in which it waits for tools and people."""
        return sum(turn.gap_s for turn in self.turns[1:])

    def until(self, most_tokens: Tokens) -> "Session":
        """Return the session up to before its first turn that exceeds a context."""
        for place, turn in enumerate(self.turns):
            if turn.prompt_tokens + turn.output_tokens > most_tokens:
                return Session(self.name, self.turns[:place])
        return self


class TurnContent:
    """The content of a turn's sequence."""

    __slots__ = ("_block_size", "_turn")

    def __init__(self, turn: Turn, block_size: Tokens) -> None:
        self._turn = turn
        self._block_size = block_size

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Return the spans of the full blocks from one position to before another, in order."""
        for chain, end_tokens in self._turn.path:
            end = end_tokens // self._block_size
            if start >= stop:
                return
            if end > start:
                yield Span(chain, start, min(end, stop))
                start = end
        if start < stop:
            yield Span(self, start, stop)  # from the prompt's last block on, its own alone


def read_sessions(path: Path, longest_gap_s: Seconds = float("inf")) -> list[Session]:
    """Read recorded sessions.

    Args:
        path: A file of JSON lines, compressed with gzip if its name ends so.
        longest_gap_s: Longer gaps become as long as this; unknown ones are none.

    Raises:
        ConfigError: If it cannot be read or a line is wrong; names line, field and value.
    """
    beginnings: dict[tuple[Tokens, Tokens], Chain] = {}
    sessions = []
    for number, line in enumerate(_lines(path), 1):
        try:
            recorded = _SESSION.validate_python(json.loads(line))
        except ValidationError as error:
            raise ConfigError(f"{path}: line {number}: {first_mistake(error, {})}") from error
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path}: line {number}: is not JSON: {error}") from error
        sizes = recorded.tool_tokens, recorded.system_tokens
        beginning = beginnings.setdefault(sizes, Chain())
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
    recorded: _RecordedSession, beginning: Chain, longest_gap_s: Seconds
) -> tuple[Turn, ...]:
    path: list[tuple[Chain, Tokens]] = [(beginning, recorded.tool_tokens + recorded.system_tokens)]
    chain, before = Chain(), 0
    turns = []
    for turn in recorded.turns:
        kept = min(turn.reused_tokens, before)
        if before and kept < before // _GRAIN * _GRAIN:
            # Another context from there on: what was said after it is not said any more.
            path = [*_cut([*path, (chain, before)], kept)]
            chain = Chain()
        whole = (*_cut(path, turn.prompt_tokens), (chain, turn.prompt_tokens))
        gap_s = min(turn.gap_s or 0.0, longest_gap_s)
        turns.append(Turn(turn.prompt_tokens, max(1, turn.output_tokens), gap_s, whole))
        before = turn.prompt_tokens
    return tuple(turns)


def _cut(path: Iterable[tuple[Chain, Tokens]], at: Tokens) -> Iterator[tuple[Chain, Tokens]]:
    for chain, end in path:
        yield chain, min(end, at)
        if end >= at:
            return
