"""A report is the same each time, whole or not there, and its figures are files too."""

from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.report.build import build_report
from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import Arm, Found, Scale, Task
from justitia_ray.report.figures import draw
from justitia_ray.report.runner import Failed, Progress, run_tasks
from tests.unit.report import small


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_same_seeds_give_the_same_files(tmp_path: Path) -> None:
    """Whoever runs it again must find the same bytes."""
    for name in ("one", "two"):
        build_report([small.experiment()], small.SCALE, tmp_path / name, workers=1)

    assert _files(tmp_path / "one") == _files(tmp_path / "two")


def test_files_of_a_report(tmp_path: Path) -> None:
    """Page, lines, and each figure as PNG and SVG; nothing unfinished stays behind."""
    build_report([small.experiment()], small.SCALE, tmp_path / "out", workers=1)

    names = ["figures/small.png", "figures/small.svg", "report.html", "results.jsonl"]
    assert names == list(_files(tmp_path / "out"))
    assert ["out"] == [path.name for path in tmp_path.iterdir()]


def test_figures_as_files_have_colours_of_their_own(tmp_path: Path) -> None:
    """A file is opened without the page, so without its theme."""
    build_report([small.experiment()], small.SCALE, tmp_path, workers=1)

    svg = (tmp_path / "figures" / "small.svg").read_text(encoding="utf-8")
    assert "#0072b2" in svg
    assert "var(--" not in svg


def test_directory_that_cannot_be_written_is_refused_before_the_runs(tmp_path: Path) -> None:
    """A quarter of an hour of runs must not end in an error that was there from the start."""
    (tmp_path / "out").write_text("mine")
    told: list[Progress] = []

    with pytest.raises(ConfigError, match="out: must be a directory"):
        build_report([small.experiment()], small.SCALE, tmp_path / "out", 1, told.append)

    assert [] == told
    assert "mine" == (tmp_path / "out").read_text()


def test_arms_that_cannot_be_named_fail_their_experiment_alone(tmp_path: Path) -> None:
    """A missing engine profile costs the experiments that need it, not the report."""

    def arms(scale: Scale, seed: int) -> dict[Arm, Task]:
        raise ConfigError("there is no engine profile")

    sections = build_report(
        [replace(small.experiment("first"), arms=arms), small.experiment()],
        small.SCALE,
        tmp_path,
        workers=1,
    )

    assert ["ConfigError: there is no engine profile", None] == [s.failure for s in sections]


def test_chart_that_cannot_be_drawn_fails_its_experiment_alone(tmp_path: Path) -> None:
    """A mistake in one figure must not cost the hour that all others took."""

    def charts(scale: Scale, found: Found) -> list[Chart]:
        return [Chart("bad", "Bad", "$\\nothing$", "y", [Series("s", [(0.0, 1.0)])])]

    sections = build_report(
        [replace(small.experiment("first"), charts=charts), small.experiment()],
        small.SCALE,
        tmp_path,
        workers=1,
    )

    assert [True, False] == [section.failure is not None for section in sections]
    assert "Failed:" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_equal_tasks_run_once() -> None:
    """Experiments share runs: a third of a full report's time would go into repeating them."""
    told: list[Progress] = []
    task = small.Computed(1, 2)
    found = run_tasks([task, small.Computed(1, 2), small.Computed(3, 4)], 1, told.append)

    assert {task: 1.2, small.Computed(3, 4): 3.4} == found
    assert [(1, 2), (2, 2)] == [(p.done, p.total) for p in told]


def test_processes_find_what_one_finds() -> None:
    """Tasks and what they raise cross a process boundary, into processes that know nothing yet."""
    tasks: list[Task] = [small.Computed(1, 2), small.Broken()]

    assert run_tasks(tasks, 1) == run_tasks(tasks, 2)


def test_a_task_that_raises_leaves_the_others_alone() -> None:
    """One bad run is told as one failure, in one line."""
    told: list[Progress] = []
    found = run_tasks([small.Broken(), small.Computed(1, 2)], 1, told.append)

    assert Failed("ValueError: no luck") == found[small.Broken()]
    assert 1.2 == found[small.Computed(1, 2)]
    assert "2/2 runs, 1 failed, 0 s left" == str(told[-1])


def test_progress_tells_the_time_left() -> None:
    """5 of 20 runs in 10 s: the other 15 take 30 s more if they go as fast."""
    assert "5/20 runs, 30 s left" == str(Progress(done=5, total=20, failed=0, elapsed_s=10.0))


def test_a_policy_looks_the_same_in_every_figure() -> None:
    """A reader who has learned that blue is justitia must not meet it as another one's colour."""
    points = [(0.0, 1.0), (1.0, 2.0)]
    for labels in (("vtc", "justitia"), ("justitia", "other"), ("vtc-noisy", "vtc")):
        series = [Series(label, points) for label in labels]
        svg = draw(Chart("c", "C", "x", "y", series)).svg.decode()
        for policy, colour in (("justitia", "#0072b2"), ("vtc", "#d55e00")):
            assert (policy in labels) == (f"stroke: {colour}" in svg), labels
