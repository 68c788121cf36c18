"""Conversion of recorded lengths to KV blocks that sessions share, keep and lose."""

import gzip
from pathlib import Path

import pytest

from justitia_ray.engine_model.block_pool import BlockPool, Holding
from justitia_ray.errors import ConfigError
from justitia_ray.sim.sessions.trace import Session, TurnContent, read_sessions
from tests.unit.sim.data_directory import REAL, needs_real_data
from tests.unit.sim.sessions.made import read_written, session_line, turn_line


def cached_after(*before: tuple[Session, int], session: Session, place: int) -> int:
    """Return the cached tokens of a turn's prompt after other turns have run."""
    pool = BlockPool(10_000)
    for earlier, k in before:
        content, holding = TurnContent(earlier.turns[k], 16), Holding()
        tokens = earlier.turns[k].prompt_tokens + earlier.turns[k].output_tokens
        pool.allocate(holding, tokens // 16)
        pool.cache(holding, content, tokens // 16)
        pool.free(holding)
    wanted = session.turns[place]
    return 16 * pool.find(TurnContent(wanted, 16), (wanted.prompt_tokens - 1) // 16).blocks


def test_turn_finds_the_previous_prompt_but_not_the_answer(tmp_path: Path) -> None:
    """The recorded trace counts the last answer as new tokens."""
    (session,) = read_written(
        tmp_path, session_line("a", turn_line(650, 100), turn_line(900, 20, 640))
    )

    assert 640 == cached_after((session, 0), session=session, place=1)


def test_turn_with_a_shortened_context_finds_only_its_beginning(tmp_path: Path) -> None:
    """The agent may have dropped old tool results."""
    (session,) = read_written(
        tmp_path,
        session_line(
            "a",
            turn_line(650, 100),
            turn_line(900, 20, 448),
            turn_line(1_000, 20, 896),
            turn_line(1_000, 1, 640),
        ),
    )

    assert 448 == cached_after((session, 0), session=session, place=1)
    assert 896 == cached_after((session, 0), (session, 1), session=session, place=2)
    assert 448 == cached_after((session, 0), session=session, place=2)
    assert 640 == cached_after((session, 1), (session, 2), session=session, place=3)


def test_sessions_share_prefixes_of_equal_length(tmp_path: Path) -> None:
    first, same, other = read_written(
        tmp_path,
        session_line("a", turn_line(650, 20)),
        session_line("b", turn_line(900, 20)),
        session_line("c", turn_line(900, 20), tools=336),
    )

    assert 320 == cached_after((first, 0), session=same, place=0)
    assert 0 == cached_after((first, 0), session=other, place=0)


def test_session_is_cut_before_its_first_turn_that_does_not_fit(tmp_path: Path) -> None:
    (session,) = read_written(
        tmp_path, session_line("a", turn_line(100, 5), turn_line(190, 11), turn_line(50, 5))
    )

    assert 1 == len(session.until(200).turns)
    assert session is session.until(201)


def test_unknown_gaps_are_zero_and_long_ones_are_cut(tmp_path: Path) -> None:
    (session,) = read_written(
        tmp_path,
        session_line(
            "a", turn_line(9, 5, gap_s=7.0), turn_line(9, 5, gap_s=None), turn_line(9, 5, gap_s=9e4)
        ),
    )

    assert [0.0, 0.0, 600.0] == [turn.gap_s for turn in session.turns]  # the first ends no gap
    assert 600.0 == session.gaps_s  # the gap before the first turn is not counted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: is not JSON"),
        ('{"session": "a"}', "tool_tokens"),
        ('{"session": "a", "tool_tokens": -1, "system_tokens": 0, "turns": []}', "tool_tokens"),
    ],
)
def test_error_names_the_wrong_line_of_a_trace(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=said):
        read_sessions(path)


def test_unreadable_trace_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl.gz"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sessions(path)
    path.write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sessions(path)


@needs_real_data
@pytest.mark.slow
def test_simulated_cached_tokens_of_recorded_sessions_equal_the_recording() -> None:
    """Of all recorded prompt tokens, 96 % were already in the previous prompt."""
    path = REAL / "sessions" / "sessions.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    sessions = read_sessions(path)
    turns = [turn for session in sessions for turn in session.turns]

    assert (471, 31_932) == (len(sessions), len(turns))
    assert all(turn.path[-1][1] == turn.prompt_tokens for turn in turns)
    longest = max(sessions, key=lambda session: len(session.turns))
    kept = [
        cached_after((longest, k), session=longest, place=k + 1)
        for k in range(len(longest.turns) - 1)
    ]
    prompts = sum(turn.prompt_tokens for turn in longest.turns[1:])
    assert 0.9 < sum(kept) / prompts < 1.0
