"""`justitia dashboard`: the dashboard file for Grafana."""

from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from tests.dashboard_queries import DASHBOARD_TEXT


def test_dashboard_command_writes_a_file(tmp_path: Path) -> None:
    """A user of the wheel has no repository from which to copy the dashboard."""
    file = tmp_path / "justitia.json"

    assert 0 == main(["dashboard", "--out", str(file)])
    assert DASHBOARD_TEXT == file.read_text(encoding="utf-8")


def test_dashboard_command_without_a_file_prints_the_dashboard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 0 == main(["dashboard"])
    assert DASHBOARD_TEXT == capsys.readouterr().out
