"""Figures: which there are, from what, and the same each time."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.sim.figures import draw_figures
from tests.unit.sim.result_rows import run_of

FCFS = run_of({"a": (0.0, 5.0), "b": (0.0, 3.0), "c": (1.0, None)})
VTC = run_of({"a": (0.0, 4.0), "b": (0.0, 6.0), "c": (1.0, 8.0)})


def test_figures_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    """One to look at, one to put into a page."""
    note = draw_figures(tmp_path / "out", {"fcfs": FCFS, "vtc": VTC})

    assert note is None
    assert [
        "completion_times.png",
        "completion_times.svg",
        "ratios_to_vtc.png",
        "ratios_to_vtc.svg",
    ] == sorted(os.listdir(tmp_path / "out"))
    assert (tmp_path / "out" / "ratios_to_vtc.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("results", [{"vtc": VTC}, {"fcfs": FCFS}, {"fcfs": run_of({})}])
def test_ratios_need_vtc_and_another_policy(tmp_path: Path, results: dict[str, Any]) -> None:
    """A policy against itself is a line at 1; a run in which nothing finished is still drawn."""
    draw_figures(tmp_path, results)

    assert ["completion_times.png", "completion_times.svg"] == sorted(os.listdir(tmp_path))


def test_same_results_give_the_same_svg(tmp_path: Path) -> None:
    """A figure in a repository should change when the results do, and only then."""
    for name in ("one", "other"):
        draw_figures(tmp_path / name, {"fcfs": FCFS})
    one, other = (
        (tmp_path / name / "completion_times.svg").read_bytes() for name in ("one", "other")
    )

    assert one == other


def test_without_matplotlib_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are there all the same; figures are an extra."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    note = draw_figures(tmp_path, {"fcfs": FCFS})

    assert "no figures: they need matplotlib; pip install 'justitia-ray[figures]'" == note
    assert [] == os.listdir(tmp_path)
