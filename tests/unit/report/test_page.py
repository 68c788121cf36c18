"""The page: self-contained, and every number of it a line of the results."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from justitia_ray.report import build
from justitia_ray.report.build import build_report
from justitia_ray.report.experiment import Arm
from justitia_ray.report.figures import COLOURS
from justitia_ray.report.published import Published
from tests.unit.report import small


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one experiment that works and one that fails."""
    out = tmp_path_factory.mktemp("report")
    experiments = [small.experiment(), small.experiment("broken", small.Broken)]
    build_report(experiments, small.SCALE, out, workers=1)
    return out


class _Reader(HTMLParser):
    """Collects numbers with their lines, and text of table cells outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.numbers: list[tuple[float, int, str]] = []
        self.loose: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._number: tuple[float, int] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in {"meta", "br", "path", "use"}:
            self.open.append(tag)
        if tag == "data":
            given = dict(attrs)
            self._number = (float(given["value"] or ""), int(given["data-line"] or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "data":
            assert self._number is not None
            self.numbers.append((*self._number, data))
        elif "td" in self.open:
            self.loose.append(data)


def _read(report: Path) -> _Reader:
    reader = _Reader()
    reader.feed((report / "report.html").read_text(encoding="utf-8"))
    return reader


def test_every_number_is_the_value_of_its_line(report: Path) -> None:
    """A reader must be able to trace each number to a run, a seed and a configuration."""
    lines = (report / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    numbers = _read(report).numbers

    assert len(numbers) > 10
    for value, line, _ in numbers:
        assert line == rows[line - 1]["line"]
        assert value == rows[line - 1]["value"]


def test_no_number_of_a_table_lacks_a_line(report: Path) -> None:
    """A digit in a cell outside of a traced number would be one that nobody can check."""
    assert [] == [text for text in _read(report).loose if re.search(r"\d", text)]


def test_shown_text_is_the_value_rounded(report: Path) -> None:
    """What is read must be what is traced: shares in percent, with the sign of a difference."""
    shown = {text for _, _, text in _read(report).numbers}

    assert "10.20" in shown
    assert "−49.5 %" in shown
    assert "+98.0 %" in shown


def test_page_is_self_contained(report: Path) -> None:
    """It is mailed and opened from a disk: nothing may be fetched, nothing may run."""
    text = (report / "report.html").read_text(encoding="utf-8")

    assert "http" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")
    names = {name for name, _ in _read(report).attributes}
    assert {"src", "srcset", "xlink:href"}.isdisjoint(names)
    links = [value or "" for name, value in _read(report).attributes if name == "href"]
    assert [] == [link for link in links if not link.startswith("#")]


def test_links_inside_the_page_lead_somewhere(report: Path) -> None:
    """Contents, targets and parts of figures are found by id; two figures must not share one."""
    attributes = _read(report).attributes
    ids = [value for name, value in attributes if name == "id"]
    links = [value for name, value in attributes if name == "href"]

    assert len(ids) == len(set(ids))
    assert {f"#{name}" for name in ids} >= set(links)


def test_page_has_both_themes_and_fits_a_phone(report: Path) -> None:
    """Figures take ink and curves from the theme: a colour of their own would vanish in one."""
    text = (report / "report.html").read_text(encoding="utf-8")
    figures = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)

    assert 1 == len(figures)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert "var(--ink)" in figures[0]
    assert "var(--s0)" in figures[0]
    assert [] == re.findall(r"#[0-9a-f]{6}\b", figures[0])
    assert not re.search(r"<svg[^>]* width=", figures[0])


def test_both_themes_have_a_colour_for_every_curve(report: Path) -> None:
    """A curve without a colour in the dark theme is not drawn at all."""
    text = (report / "report.html").read_text(encoding="utf-8")

    for number in range(len(COLOURS)):
        assert 2 == text.count(f"--s{number}:")


def test_failure_and_losses_are_at_the_top(report: Path) -> None:
    """A reader who stops after the first screen must have seen what failed and what was missed."""
    text = (report / "report.html").read_text(encoding="utf-8")
    top = text[: text.index("<nav>")]

    assert 'href="#broken"' in top
    assert "missed" in top
    assert "Failed: 1x · justitia, seed 1: ValueError: no luck" in text


def test_text_is_escaped(report: Path) -> None:
    """A title with a bracket must not become markup."""
    text = (report / "report.html").read_text(encoding="utf-8")

    assert "The small &lt;experiment&gt;" in text
    assert "Nothing &amp; nobody." in text
    assert "<experiment>" not in text


def test_points_of_figures_are_lines_too(report: Path) -> None:
    """A curve is numbers as well: its points can be plotted again from the results."""
    lines = (report / "results.jsonl").read_text(encoding="utf-8").splitlines()
    series = [row for row in map(json.loads, lines) if row["statistic"] == "series"]

    assert ["justitia", "justitia low", "justitia high", "vtc"] == [row["arm"] for row in series]
    assert [[1.0, 20.1], [2.0, 20.2], [3.0, 20.3]] == series[-1]["value"]


def test_published_numbers_stand_in_the_cell_with_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side with what was found, and the figure named where a phone shows it, too."""
    entry = Published("small", Arm("1x", "vtc"), "jct_s", 19.5, "Fig. 7 <a>")
    monkeypatch.setattr(build, "published_values", lambda: [entry])
    build_report([small.experiment()], small.SCALE, tmp_path, workers=1)

    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r'paper <data value="19.5" data-line="\d+">19.50</data>', text)
    assert "Paper: Fig. 7 &lt;a&gt;." in text


def test_lost_comparisons_are_listed_first(tmp_path: Path) -> None:
    """A reader must not have to look through thirty tables for what went badly."""
    lost = replace(
        small.experiment(),
        measure=lambda _, outcomes: {
            arm: {"jct_s": 60 - outcome if arm.name == "justitia" else outcome}
            for arm, outcome in outcomes.items()
        },
    )
    build_report([lost], small.SCALE, tmp_path, workers=1)

    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    top = text[text.index("Where justitia loses") : text.index("<nav>")]
    assert "1x · justitia: JCT" in top
    assert "against vtc" in top
    assert 1 == top.count("<li>")


def test_no_list_of_losses_without_one(report: Path) -> None:
    """An empty heading reads as if something had been left out."""
    assert "loses" not in (report / "report.html").read_text(encoding="utf-8")
