"""Exits of an engine process that count as the engine's failure, and exits caused from outside."""

import signal
from pathlib import Path

import pytest

from justitia_ray.serve.engines.exit_causes import count_oom_kills, ended_by_itself


@pytest.mark.parametrize(
    "exit_code", [None, 1, 3, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS]
)
def test_engine_exit_with_an_error_is_the_engines_own_failure(exit_code: int | None) -> None:
    """An engine may report a failure (exit code None) while its process still runs."""
    assert ended_by_itself(exit_code, out_of_memory=False)


@pytest.mark.parametrize("exit_code", [0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT])
def test_termination_signal_is_an_outside_cause_of_an_engine_exit(exit_code: int) -> None:
    assert not ended_by_itself(exit_code, out_of_memory=False)


def test_out_of_memory_kill_is_the_engines_own_failure() -> None:
    assert ended_by_itself(-signal.SIGKILL, out_of_memory=True)
    assert not ended_by_itself(-signal.SIGTERM, out_of_memory=True)


def test_out_of_memory_kills_of_the_container_are_preferred_to_the_machines(
    tmp_path: Path,
) -> None:
    of_container, of_machine = tmp_path / "memory.events", tmp_path / "vmstat"
    counters = (of_container, of_machine)
    assert 0 == count_oom_kills(counters)
    of_machine.write_text("nr_free_pages 7\noom_kill 5\ndrop_slab 0\n")
    assert 5 == count_oom_kills(counters)
    of_container.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert 2 == count_oom_kills(counters)
