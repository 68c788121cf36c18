"""`justitia report`: exit status and error messages."""

from pathlib import Path

import pytest

from justitia_ray.cli import main as command
from justitia_ray.cli import report
from tests.unit.lab.report import small


@pytest.fixture(autouse=True)
def _replace_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = (small.small_experiment(), small.small_experiment("broken", small.FailingTask))
    monkeypatch.setattr(report, "EXPERIMENTS", experiments)


def _run_report(tmp_path: Path, *arguments: str) -> int:
    fixed = ["report", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "1"]
    return command.main([*fixed, *arguments])


@pytest.mark.slow
def test_report_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == _run_report(tmp_path, "--only", "small")
    assert "report.html: 1 of 1 experiments" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()


def test_failed_experiment_is_reported_and_other_experiments_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status tells scripts that the page is incomplete."""
    assert 1 == _run_report(tmp_path)

    told = capsys.readouterr()
    assert "broken failed: 1x · justitia, seed 101: ValueError: no luck" in told.err
    assert "report.html: 1 of 2 experiments" in told.out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--quick", "seeds 101, 102."),
        ("--seeds=3", "seeds 101, 102, 103."),
        ("--first-seed=301", "seeds 301, 302, 303, 304, 305."),
    ],
)
def test_report_page_names_its_seeds_and_quick_mode(tmp_path: Path, option: str, said: str) -> None:
    """Readers must see from which seeds figures come, and whether the run was a quick one."""
    _run_report(tmp_path, "--only", "small", option)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    assert said in page
    assert (option == "--quick") == ("A quick report" in page)
