"""`justitia dashboard`: the dashboard file for Grafana."""

from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from tests.dashboard_queries import DASHBOARD_TEXT


def test_dashboard_is_written_to_the_file(tmp_path: Path) -> None:
    """A user of the wheel has no repository to copy the file from."""
    file = tmp_path / "justitia.json"

    assert 0 == main(["dashboard", "--out", str(file)])
    assert DASHBOARD_TEXT == file.read_text(encoding="utf-8")


def test_dashboard_without_a_file_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 0 == main(["dashboard"])
    assert DASHBOARD_TEXT == capsys.readouterr().out
