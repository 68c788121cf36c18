"""A report is repeatable, written completely or not at all, and has its figures as files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.build import RunProgress, build_report, run_tasks
from justitia_ray.lab.report.experiment import Arm, Chart, Failed, Found, Scale, Series, Task
from tests.unit.lab.report import small


def _files_by_path(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_same_seeds_write_identical_report_files(tmp_path: Path) -> None:
    """A second build must write the same bytes."""
    for name in ("one", "two"):
        build_report([small.small_experiment()], small.SCALE, tmp_path / name, workers=1)

    assert _files_by_path(tmp_path / "one") == _files_by_path(tmp_path / "two")
    names = ["figures/small.png", "figures/small.svg", "report.html", "results.jsonl"]
    assert names == list(_files_by_path(tmp_path / "one"))
    assert ["one", "two"] == sorted(path.name for path in tmp_path.iterdir())


def test_unwritable_directory_is_refused_before_the_runs(tmp_path: Path) -> None:
    """The error must not come after a quarter of an hour of runs."""
    (tmp_path / "out").write_text("mine")
    told: list[RunProgress] = []

    with pytest.raises(ConfigError, match="out: must be a directory"):
        build_report([small.small_experiment()], small.SCALE, tmp_path / "out", 1, told.append)

    assert [] == told
    assert "mine" == (tmp_path / "out").read_text()


def _raise_without_profile(scale: Scale, seed: int) -> dict[Arm, Task]:
    raise ConfigError("there is no engine profile")


def _charts_with_bad_label(scale: Scale, found: Found) -> list[Chart]:
    return [Chart("bad", "Bad", "$\\nothing$", "y", [Series("s", [(0.0, 1.0)])])]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"arms": _raise_without_profile}, "ConfigError: there is no engine profile"),
        ({"charts": _charts_with_bad_label}, "ValueError: "),
    ],
    ids=["arms that cannot be named", "a chart that cannot be drawn"],
)
def test_failing_experiment_does_not_affect_other_experiments(
    tmp_path: Path, broken: dict[str, Any], why: str
) -> None:
    """One missing profile must not cost the hour of the other experiments."""
    first = replace(small.small_experiment("first"), **broken)
    sections = build_report([first, small.small_experiment()], small.SCALE, tmp_path, workers=1)

    assert [True, False] == [section.failure is not None for section in sections]
    assert f"Failed: {why}" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_equal_experiment_tasks_run_once() -> None:
    """Repeating shared runs would take a third of a full report's time."""
    told: list[RunProgress] = []
    task = small.ComputedTask(1, 2)
    found = run_tasks([task, small.ComputedTask(1, 2), small.ComputedTask(3, 4)], 1, told.append)

    assert {task: 1.2, small.ComputedTask(3, 4): 3.4} == found
    assert [(1, 2), (2, 2)] == [(p.done, p.total) for p in told]


@pytest.mark.slow
def test_experiments_in_several_processes_give_equal_results() -> None:
    """Tasks and their exceptions are pickled, for processes that have imported nothing yet."""
    tasks: list[Task] = [small.ComputedTask(1, 2), small.FailingTask()]

    assert run_tasks(tasks, 1) == run_tasks(tasks, 2)


def test_failing_task_does_not_affect_other_tasks() -> None:
    told: list[RunProgress] = []
    found = run_tasks([small.FailingTask(), small.ComputedTask(1, 2)], 1, told.append)

    assert Failed("ValueError: no luck") == found[small.FailingTask()]
    assert 1.2 == found[small.ComputedTask(1, 2)]
    assert "2/2 runs, 1 failed, 0 s left" == str(told[-1])


def test_progress_message_contains_the_remaining_time() -> None:
    assert "5/20 runs, 30 s left" == str(RunProgress(done=5, total=20, failed=0, elapsed_s=10.0))
