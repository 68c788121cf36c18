"""Agents after a restart of the scheduler and of the engines, in virtual time."""

import pytest

from tests.agent_world import AgentWorld, Result, agent

RESTARTS_AT = 3.0
FIT = 10
"""Number of contexts of 1,000 tokens that fit the memory; 32 agents have begun."""


def _run_agents(*, working_set: bool, restarts_at: float | None = RESTARTS_AT) -> Result:
    world = AgentWorld(options={"working_set": working_set}, restarts_at=restarts_at)
    return world.run([agent(f"a{number}", 0.05 * number) for number in range(32)])


def _agents_started_soon(result: Result) -> int:
    """Return the number of agents that run a turn within ten seconds of the restart."""
    soon = [names for at, names in result.running if RESTARTS_AT <= at < RESTARTS_AT + 10.0]
    return len(frozenset[str]().union(*soon))


@pytest.mark.slow
def test_restarted_scheduler_starts_no_more_agents_than_contexts_fit() -> None:
    """All contexts are lost, and every agent submits its call again at the same time."""
    assert _agents_started_soon(_run_agents(working_set=True)) <= FIT
    assert _agents_started_soon(_run_agents(working_set=False)) > 1.5 * FIT


@pytest.mark.slow
def test_scheduler_restart_costs_at_most_the_recomputation_of_lost_contexts() -> None:
    """Computing ten agents' contexts takes 4 s; the run of 66 s becomes 3 s longer."""
    before = _run_agents(working_set=True, restarts_at=None)
    after = _run_agents(working_set=True)

    assert len(after.ended_at) == 32
    assert max(after.ended_at.values()) < max(before.ended_at.values()) + 6.0
    assert after.cached_share > 0.9 * before.cached_share
