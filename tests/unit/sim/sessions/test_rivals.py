"""Re-implemented schedulers: one published point of each, in a small setting, and their rules.

Baselines are those of the papers: vLLM with first come, first served, if nothing else is said.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from justitia_ray.sim.sessions.arms import ArmOptions
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings, play_sessions
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.rivals.cache_ttl import best_ttl_s
from justitia_ray.sim.sessions.rivals.gittins import gittins_rank, remaining_by_stage
from justitia_ray.sim.sessions.trace import Session
from tests.unit.sim.sessions.made import ENGINE, read_written, session_line, turn_line

_SLOW = replace(ENGINE, per_prompt_token_s=1e-3)
"""Replica that takes 6.4 s to compute a prompt that fills its memory."""


def _swe_agents(directory: Path) -> list[Session]:
    """Return 40 sessions of 11 turns with tools of 0.9 s, as in SWE-bench (arXiv 2511.02230)."""
    random = Random(1)
    return read_written(directory, *(_agent_line(f"s{k}", random, [0.9] * 11) for k in range(40)))


def _agent_line(name: str, random: Random, gaps_s: list[float], more: int = 100) -> dict[str, Any]:
    prompts = [600 + more * place for place in range(len(gaps_s))]
    reused = [0, *(prompt // 64 * 64 for prompt in prompts)]
    turns = zip(prompts, reused, gaps_s, strict=False)
    return session_line(
        name, *(turn_line(p, 20, r, random.expovariate(1 / gap)) for p, r, gap in turns)
    )


def _play_arm(
    arm: str,
    sessions: list[Session],
    load: float = 2.0,
    options: ArmOptions = (),
    engine: LongContextProfile = _SLOW,
) -> SessionResult:
    return play_sessions(sessions, SessionSettings(arm, engine, 1, load, 7, options))


def _mean_completion_s(result: SessionResult) -> float:
    return sum(row.served_s for row in result.sessions) / len(result.sessions)


def _cached_share(result: SessionResult) -> float:
    return result.cached_tokens / result.prompt_tokens


def _turns_per_minute(result: SessionResult) -> float:
    return 60 * result.turns / max(row.ended_at_s for row in result.sessions)


@pytest.mark.parametrize("options", [(("ttl_s", 2.0),), ()])
def test_cache_ttl_reproduces_its_published_completion_times(
    options: ArmOptions, tmp_path: Path
) -> None:
    """The paper reports completion times of 1/1.12 to 1/3.66, through short tool calls."""
    sessions = _swe_agents(tmp_path)
    pinned, ours = _play_arm("pinned", sessions), _play_arm("cache-ttl", sessions, options=options)

    assert 1.12 <= _mean_completion_s(pinned) / _mean_completion_s(ours) <= 3.66
    assert _cached_share(ours) > _cached_share(pinned) + 0.2


def test_thunder_agent_reproduces_its_published_throughput(tmp_path: Path) -> None:
    """The paper reports 1.48 to 3.58 times vLLM's throughput if contexts exceed the memory."""
    sessions = _swe_agents(tmp_path)
    pinned, ours = _play_arm("pinned", sessions), _play_arm("thunder-agent", sessions)

    assert 1.48 <= _turns_per_minute(ours) / _turns_per_minute(pinned) <= 3.58


def test_concur_reproduces_its_published_throughput(tmp_path: Path) -> None:
    """The paper reports up to 4.09 times the throughput, by a limit on running agents."""
    sessions = _swe_agents(tmp_path)
    pinned = _play_arm("pinned", sessions)
    ours = _play_arm("concur", sessions, options=(("hit_rate", 0.8),))

    assert 1.5 <= _turns_per_minute(ours) / _turns_per_minute(pinned) <= 4.09
    assert _cached_share(ours) > _cached_share(pinned) + 0.2


def test_mori_reproduces_its_published_throughput_over_thunder_agent(tmp_path: Path) -> None:
    """The paper reports 1.20 to 1.71 times the throughput, with host memory.

    Here both have no host memory, and ThunderAgent has its default settings.
    """
    random, sessions = Random(2), []
    for k in range(60):
        phase = random.randrange(6)
        gaps_s = [40.0 if (place + phase) % 6 == 0 else 0.3 for place in range(24)]
        sessions.append(_agent_line(f"s{k}", random, gaps_s, more=40))
    read_sessions = read_written(tmp_path, *sessions)
    thunder = _play_arm("thunder-agent", read_sessions, load=6.0)
    ours = _play_arm("mori", read_sessions, load=6.0, options=(("new", 0.5),))

    assert 1.20 <= _turns_per_minute(ours) / _turns_per_minute(thunder) <= 1.71


def test_gittins_policy_reproduces_the_published_gain_of_hermes(tmp_path: Path) -> None:
    """The paper reports a mean that falls by over 70 % for short applications behind long ones."""
    lines = [session_line(f"short{k}", turn_line(400, 20)) for k in range(120)]
    lines += [session_line(f"long{k}", turn_line(2_000, 4_000)) for k in range(8)]
    sessions, engine = read_written(tmp_path, *lines), replace(ENGINE, max_num_seqs=1)
    pinned = _play_arm("pinned", sessions, 100.0, engine=engine)
    ours = _play_arm("gittins", sessions, 100.0, (("by", "length"),), engine)

    assert _mean_completion_s(ours) < 0.3 * _mean_completion_s(pinned)


def test_gittins_rank_of_simple_distributions_is_exact() -> None:
    assert 5.0 == gittins_rank([5.0])
    assert pytest.approx(1.0 / 0.75) == gittins_rank([1.0, 1.0, 1.0, 100.0])
    assert pytest.approx((1.0 + 3 * 1.2) / 4) == gittins_rank([1.0, 1.2, 1.2, 1.2])


def test_gittins_policy_learns_remaining_work_by_stage() -> None:
    assert [[6.0, 4.0], [5.0], [3.0]] == remaining_by_stage([[1.0, 2.0, 3.0], [4.0]])


def test_cache_time_to_live_is_the_longest_gap_worth_keeping() -> None:
    assert 2.0 == best_ttl_s([1.0, 100.0, 2.0], saved_s=10.0, share=0.5)
    assert 100.0 == best_ttl_s([1.0, 100.0, 2.0], saved_s=100.0, share=0.5)
    assert 0.0 == best_ttl_s([50.0, 100.0], saved_s=10.0, share=1.0)


def test_true_costs_give_lower_completion_times_than_a_mean_cost(tmp_path: Path) -> None:
    """With one mean cost for all sessions the core cannot let short ones overtake long ones."""
    lines = [session_line(f"short{k}", turn_line(400, 20)) for k in range(40)]
    lines += [session_line(f"long{k}", turn_line(2_000, 1_000)) for k in range(6)]
    sessions, engine = read_written(tmp_path, *lines), replace(ENGINE, max_num_seqs=1)
    known, means = (
        _play_arm(arm, sessions, 100.0, engine=engine)
        for arm in ("justitia", "justitia-class-mean")
    )

    assert _mean_completion_s(known) < 0.7 * _mean_completion_s(means)
