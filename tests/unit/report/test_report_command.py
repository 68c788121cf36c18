"""`justitia report`: exit status, and one sentence for a user's mistake."""

from pathlib import Path

import pytest

from justitia_ray.cli import main as command
from justitia_ray.cli import report
from tests.unit.report import small


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments in miniature, one of which fails."""
    experiments = (small.experiment(), small.experiment("broken", small.Broken))
    monkeypatch.setattr(report, "EXPERIMENTS", experiments)


def _run(tmp_path: Path, *arguments: str) -> int:
    fixed = ["report", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--workers", "1"]
    return command.main([*fixed, *arguments])


def test_report_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual end: status 0, and where the page is."""
    assert 0 == _run(tmp_path, "--only", "small")
    assert "report.html: 1 of 1 experiments" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()


def test_failed_experiment_is_told_and_the_rest_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script must notice that something is missing from the page."""
    assert 1 == _run(tmp_path)

    told = capsys.readouterr()
    assert "broken failed: 1x · justitia, seed 101: ValueError: no luck" in told.err
    assert "report.html: 1 of 2 experiments" in told.out


def test_quick_report_says_so_on_the_page(tmp_path: Path) -> None:
    """Its numbers are not those of the full report, and must not be quoted as such."""
    _run(tmp_path, "--only", "small", "--quick")

    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "A quick report" in page
    assert "seeds 101, 102." in page


def test_seeds_are_counted_from_the_first_reported_one(tmp_path: Path) -> None:
    """Defaults were tuned on seeds below 101: reported ones must be others."""
    _run(tmp_path, "--only", "small", "--seeds", "3")

    assert "seeds 101, 102, 103." in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "--seeds must be a whole number of at least 1, got 0"),
        (["--workers", "-1"], "--workers must be a whole number of at least 1, got -1"),
        (["--only", "none"], "--only none: must be one of small, broken"),
        (["--data", "/nowhere"], "--data must be a directory, got '/nowhere'"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    """Option, value and what is allowed; nothing is written."""
    assert 2 == _run(tmp_path, *arguments)
    assert f"justitia report: {sentence}\n" == capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of made-up runs would be taken for one of recorded ones."""
    monkeypatch.delenv("JUSTITIA_DATA", raising=False)

    assert 2 == command.main(["report", "--out", str(tmp_path / "out")])
    assert (
        "justitia report: --data must name the data directory, or JUSTITIA_DATA; neither is set\n"
        == capsys.readouterr().err
    )
