"""The experiment `sessions`, on a few small sessions: every arm, and the best of its settings."""

from pathlib import Path

import pytest

from justitia_ray.lab.report.experiment import Arm, Scale
from justitia_ray.lab.report.experiments import sessions
from justitia_ray.sim.sessions.arms import ARMS
from justitia_ray.sim.sessions.trace import SESSIONS_FILE
from tests.unit.sim.data_directory import write_lines
from tests.unit.sim.sessions.made import session_line, turn_line

_QUICK_GROUPS = {"2xh100-32b, 4 replicas, 0.9x", "2xh100-32b, 4 replicas, 3x"}


def _write_sessions(directory: Path) -> Scale:
    """Write sessions whose prompts take a tenth of a replica's memory each."""
    turns = [(30_000, 0), (31_000, 29_952), (32_000, 30_976)]
    lines = [session_line(f"s{k}", *(turn_line(p, 20, r) for p, r in turns)) for k in range(12)]
    path = directory / SESSIONS_FILE.with_suffix("")
    path.parent.mkdir()
    write_lines(path, *lines)
    return Scale((1,), directory, is_quick=True)


def test_each_arm_has_a_table_row_with_its_best_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = _write_sessions(tmp_path)
    monkeypatch.setattr(sessions, "SESSIONS_FILE", SESSIONS_FILE.with_suffix(""))
    arms = sessions.SESSIONS.arms(scale, 1)
    outcomes = {arm: task.run() for arm, task in arms.items()}
    found = sessions.SESSIONS.measure(outcomes)

    assert {Arm(group, arm) for group in _QUICK_GROUPS for arm in ARMS} == set(found)
    for arm, figures in found.items():
        assert (12, 36) == (figures["sessions"], figures["turns"])
        assert 0 <= (figures["setting"] or 0) < len(ARMS[arm.name].grid)
        assert 0 < (figures["mean_s"] or 0) <= (figures["worst_s"] or 0)
    charts = sessions.SESSIONS.charts(scale, [(1, outcomes)])
    assert ["sessions-2xh100-32b-4"] == [chart.name for chart in charts]
    assert list(ARMS) == [series.label for series in charts[0].series]


def test_best_setting_of_an_arm_has_the_least_mean_completion_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = _write_sessions(tmp_path)
    monkeypatch.setattr(sessions, "SESSIONS_FILE", SESSIONS_FILE.with_suffix(""))
    means = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(sessions, "_mean", lambda _: next(means))
    task = sessions.SESSIONS.arms(scale, 1)[Arm("2xh100-32b, 4 replicas, 3x", "cache-ttl")]

    assert 1 == task.run().setting
    assert [2.0, 10.0, 30.0] == [one["ttl_s"] for one in task.configuration()["tried"][:3]]
