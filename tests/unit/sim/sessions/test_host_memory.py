"""Host memory: what it holds, and the time of prompts that are loaded from it."""

from pathlib import Path

import pytest

from justitia_ray.sim.sessions.host_memory import HostMemory
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings, play_sessions
from justitia_ray.sim.sessions.trace import TextChain
from tests.unit.sim.sessions.made import (
    ENGINE,
    growing_session,
    read_written,
    session_line,
    turn_line,
)

_TOOLS, _FIRST, _SECOND, _COMPACTED = TextChain(), TextChain(), TextChain(), TextChain()


def test_prompt_is_found_in_host_memory_after_the_previous_turn() -> None:
    host = HostMemory(10_000)
    host.store(((_TOOLS, 300), (_FIRST, 2_000)))

    assert 2_000 == host.found(((_TOOLS, 300), (_FIRST, 2_500)))
    assert 300 == host.found(((_TOOLS, 300), (_SECOND, 900)))
    assert 1_200 == host.found(((_TOOLS, 300), (_FIRST, 1_200), (_COMPACTED, 1_500)))
    assert 0 == host.found(((_SECOND, 900),))


def test_least_recently_used_chains_are_evicted_from_host_memory() -> None:
    host = HostMemory(4_000)
    host.store(((_TOOLS, 300), (_FIRST, 2_000)))
    host.store(((_TOOLS, 300), (_SECOND, 2_000)))
    assert 300 + 1_700 + 1_700 == host.tokens
    host.store(((_TOOLS, 300), (_SECOND, 3_000)))

    assert 300 + 2_700 == host.tokens
    assert 300 == host.found(((_TOOLS, 300), (_FIRST, 2_500)))
    assert 3_000 == host.found(((_TOOLS, 300), (_SECOND, 3_000)))


def test_host_memory_of_size_zero_stores_no_blocks() -> None:
    host = HostMemory(0)
    host.store(((_TOOLS, 300),))

    assert 0 == host.found(((_TOOLS, 300),))


def test_evicted_prompt_is_loaded_instead_of_computed(tmp_path: Path) -> None:
    lines = [
        session_line("a", turn_line(3_200, 1), turn_line(3_264, 1, 3_200, gap_s=200.0), tools=0),
        session_line("b", turn_line(400, 1), turn_line(6_000, 1, gap_s=60.0), tools=16),
    ]
    sessions = read_written(tmp_path, *lines)
    plain, host = (play_sessions(sessions, _settings_with_host(host)) for host in (0.0, 2.0))

    assert 400 == plain.cached_tokens
    assert 3_200 == host.cached_tokens
    saved = (3_200 - 400) * (ENGINE.per_prompt_token_s - ENGINE.host_token_s)
    assert _total_served_s(plain) - _total_served_s(host) == pytest.approx(saved)


@pytest.mark.parametrize("arm", ["justitia", "pinned", "mori"])
def test_host_memory_raises_the_cached_share_under_every_arm(arm: str, tmp_path: Path) -> None:
    sessions = read_written(
        tmp_path, *(growing_session(f"s{k}", turns=12, more=150) for k in range(30))
    )
    plain, host = (
        play_sessions(sessions, _settings_with_host(host, arm, 3.0)) for host in (0.0, 2.0)
    )

    assert host.cached_tokens > plain.cached_tokens + 0.05 * plain.prompt_tokens
    assert _total_served_s(host) < _total_served_s(plain)


def _settings_with_host(host: float, arm: str = "pinned", load: float = 9.0) -> SessionSettings:
    return SessionSettings(arm, ENGINE, 1, load, 7, host=host)


def _total_served_s(result: SessionResult) -> float:
    return sum(row.served_s for row in result.sessions)
