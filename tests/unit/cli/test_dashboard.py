"""`justitia dashboard`: the file that Grafana imports."""

from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from justitia_ray.observability.dashboard import dashboard_text


def test_dashboard_is_written_to_the_file(tmp_path: Path) -> None:
    """Who installed the wheel has no repository to copy it from."""
    file = tmp_path / "justitia.json"

    assert 0 == main(["dashboard", "--out", str(file)])
    assert dashboard_text() == file.read_text(encoding="utf-8")


def test_dashboard_without_a_file_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It can be piped into whatever loads it."""
    assert 0 == main(["dashboard"])
    assert dashboard_text() == capsys.readouterr().out


def test_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's mistake is no traceback."""
    file = tmp_path / "missing" / "justitia.json"

    assert 2 == main(["dashboard", "--out", str(file)])
    assert (
        f"justitia dashboard: --out {file} cannot be written: No such file or directory\n"
        == capsys.readouterr().err
    )
