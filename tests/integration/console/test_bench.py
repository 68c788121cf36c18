"""The benchmark of the console page runs once, with few applications and for half a second."""

import json
from pathlib import Path

import pytest

from scripts import bench_console_page
from tests.debian_programs import debian_program

pytestmark = pytest.mark.slow


def test_bench_console_page_counts_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian_program("chromium", "chromium")
    monkeypatch.setattr(bench_console_page, "_WARM_UP_S", 0.2)
    file = tmp_path / "found.json"
    few = ("--applications", "20", "--replicas", "2", "--seconds", "0.5")

    assert 0 == bench_console_page.main([*few, "--json", str(file)])

    found = json.loads(file.read_text(encoding="utf-8"))["found"]
    # After two minutes, 15 of 20 applications have run.
    assert found["pieces"] > 300
    assert found["fps"] > 0
    assert found["cpu"] > 0
