"""How often time and key would identify the application of a call outside its conversation."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from scripts.bench.recognition_beside import (
    KINDS,
    AssignedShares,
    SideCallKind,
    Timeline,
    assigned_shares,
    mean_shares,
    read_timelines,
    session_rules_table,
    timelines_of,
)

LATEST, ONLY = ("latest", 1.0), ("only", 1.0)
BUSY = Timeline([(0.0, 100.0, True)])
"""Session with one call, which is in flight all the time."""
FIRST, _, MEMORY = KINDS


def recorded_turn(
    api_s: float, gap_s: float | None = 1.0, stop: str = "tool_use"
) -> dict[str, Any]:
    return {"api_s": api_s, "gap_s": gap_s, "stop": stop}


def test_session_begins_a_new_application_after_a_gap_of_ten_minutes() -> None:
    one, other = timelines_of(
        [recorded_turn(2.0, 5.0), recorded_turn(3.0, None, "end_turn"), recorded_turn(4.0, 600.0)]
    )

    assert (5.0, 4.0) == (one.length_s, other.length_s)
    assert ((0.0,), (5.0,)) == (one.moments["session"], one.moments["turn"])
    assert () == other.moments["turn"]


def test_application_is_quiet_since_the_end_of_its_last_call() -> None:
    line = Timeline([(0.0, 2.0, False), (5.0, 9.0, True)])

    assert [0.0, 1.0, 0.0] == [line.seconds_since_call(at) for at in (1.0, 3.0, 6.0)]
    assert [1.0, 1.0, 1.0] == [line.since_s(at) for at in (1.0, 3.0, 6.0)]
    assert float("inf") == line.seconds_since_call(-0.1) == line.since_s(-0.1)


def test_only_session_of_an_api_key_gets_all_its_calls() -> None:
    found = assigned_shares([BUSY], MEMORY, sessions=1, draws=100)

    assert AssignedShares(1.0, 1.0) == found[LATEST] == found[ONLY]


def test_first_call_of_a_session_is_wrongly_joined_to_a_busy_session() -> None:
    """A first call repeats no text, so timing alone joins it to a session that is busy."""
    found = assigned_shares([BUSY], FIRST, sessions=2, draws=100)

    assert AssignedShares(1.0, 0.0) == found[ONLY]
    assert 0.0 == found[LATEST].right


def test_call_during_two_busy_sessions_joins_no_session_or_the_latest() -> None:
    late = SideCallKind("late", (0.5,), "turn")
    found = assigned_shares([BUSY], late, sessions=2, draws=4_000)

    assert AssignedShares(0.0, 0.0) == found[ONLY]
    assert 1.0 == found[LATEST].joined
    assert 0.995 == pytest.approx(found[LATEST].right, abs=0.005)


def test_recognition_results_of_session_kinds_are_weighted_by_calls() -> None:
    found = mean_shares([(1, AssignedShares(1.0, 0.0)), (3, AssignedShares(0.5, 0.5))])

    assert AssignedShares(0.625, 0.375) == found
    assert "60.0% of 62%" == str(found)
    assert "none" == str(AssignedShares(0.0, 0.0))


def test_recognition_table_has_each_kind_of_session_and_the_total(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "sessions.jsonl.gz"
    path.parent.mkdir()
    session = {"turns": [recorded_turn(2.0), recorded_turn(3.0, stop="end_turn")]}
    path.write_bytes(gzip.compress(json.dumps(session).encode()))
    table = session_rules_table(read_timelines(tmp_path), draws=10)

    for name in (*(kind.name for kind in KINDS), "all"):
        assert any(line.startswith(name) for line in table.splitlines())


def test_unreadable_data_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sessions\.jsonl\.gz: cannot be read"):
        read_timelines(tmp_path)
