"""The page is self-contained, and every number on it is in a line of the results."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.lab.report.build import build_report
from tests.unit.lab.report import small


@pytest.fixture(scope="module")
def report_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a report with a working and a failing experiment."""
    out = tmp_path_factory.mktemp("report")
    experiments = [small.small_experiment(), small.small_experiment("broken", small.FailingTask)]
    build_report(experiments, small.SCALE, out, workers=1)
    return out


def _read_page(report: Path) -> str:
    return (report / "report.html").read_text(encoding="utf-8")


_NUMBER = re.compile(r'<data value="([^"]+)" data-line="(\d+)">[^<]+</data>')


def test_every_number_on_the_page_is_the_value_of_its_result_line(report_dir: Path) -> None:
    """A reader must be able to trace each number to a run, a seed and a configuration."""
    lines = (report_dir / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    numbers = _NUMBER.findall(_read_page(report_dir))

    assert len(numbers) > 10
    for value, line in numbers:
        row = rows[int(line) - 1]
        assert (int(line), float(value)) == (row["line"], row["value"])
    cells = re.findall(r"<td.*?</td>", _NUMBER.sub("", _read_page(report_dir)))
    assert [] == [cell for cell in cells if re.search(r"\d", cell)]


def test_report_page_is_self_contained(report_dir: Path) -> None:
    """The page is mailed and opened from a disk, so that it must not fetch or run anything."""
    text = _read_page(report_dir)

    assert "http" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    assert not re.search(r"\s(src|srcset|xlink:href)=", text)
    assert set(re.findall(r'\shref="(.)', text)) == {"#"}


def test_failed_runs_and_lost_comparisons_are_shown_first(report_dir: Path) -> None:
    """A reader who stops after the first screen must have seen failures and missed targets."""
    text = _read_page(report_dir)
    top = text[: text.index("<nav>")]

    assert 'href="#broken"' in top
    assert "missed" in top
    assert "Failed: 1x · justitia, seed 1: ValueError: no luck" in text


def test_text_on_the_report_page_is_escaped(report_dir: Path) -> None:
    """A title with a bracket must not become markup."""
    text = _read_page(report_dir)

    assert "The small &lt;experiment&gt;" in text
    assert "Nothing &amp; nobody." in text
    assert "<experiment>" not in text


def test_lost_comparisons_are_listed_first_on_the_report_page(tmp_path: Path) -> None:
    """A reader must not have to search thirty tables for lost comparisons."""
    lost = replace(
        small.small_experiment(),
        measure=lambda outcomes: {
            arm: {"jct_s": 60 - outcome if arm.name == "justitia" else outcome}
            for arm, outcome in outcomes.items()
        },
    )
    build_report([lost], small.SCALE, tmp_path, workers=1)

    text = _read_page(tmp_path)
    top = text[text.index("Where justitia loses") : text.index("<nav>")]
    assert "1x · justitia: JCT" in top
    assert "against vtc" in top
    assert 1 == top.count("<li>")
