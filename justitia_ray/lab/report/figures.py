"""Draw a chart as SVG and PNG files, and as inline SVG in the colours of the page's theme.

Requires matplotlib, which only the extras `figures` and `lab` install.
"""

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.experiment import Chart, Series

INK, PAPER, GRID = "#1b1b1b", "#ffffff", "#e4e6ea"
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#b0578d"),
    *("#8a6d00", "#3a9bd1", "#777777", "#5b3fa0"),
)
"""Okabe and Ito's palette for colour-blind readers, darkened for contrast on white.

The style sheet holds these colours, and lighter ones for the dark theme, as `--s0` to `--s7`.
"""
_SLOTS = {name: slot for slot, name in enumerate(("justitia", "vtc", "srjf", "fcfs"))}
"""Policies that have the same colour in every chart."""
_MOST_TICKS = 8
_MOST_OF_MEAN = 1.6
"""Upper limit of the y axis in multiples of the largest mean, because error bars may be far longer.
"""
_DASHES = ("-", "--", "-.", ":")
_MARKS = "osv^Dxp*"
_SIZE_IN = (5.2, 3.3)
"""Size of a chart in inches; its text is legible on a phone."""
_THEME = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(COLOURS)},
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart that was drawn: its file, and its SVG for the page."""

    inline: str
    """SVG for the report's page, without fixed colours so that a theme can colour it."""
    svg: bytes
    png: bytes


def check_matplotlib() -> None:
    """Raise an error if matplotlib is not installed, before long runs begin.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install 'justitia-ray[lab]'") from error


def draw(chart: Chart) -> Drawing:
    """Draw a chart; equal charts give equal SVG."""
    with _plot_style(chart.name):
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        axes = figure.subplots()
        if chart.kind == "bars":
            _draw_bars(axes, chart)
        else:
            for slot, series in _assign_slots(chart.series):
                _draw_line(axes, chart, series, slot)
        _finish_chart_axes(figure, axes, chart)
        svg = _image_bytes(figure, "svg", metadata={"Date": None, "Creator": None})
        png = _image_bytes(figure, "png", dpi=160)
    return Drawing(inline_themed_svg(svg.decode(), chart), svg, png)


def inline_themed_svg(svg: str, chart: Chart) -> str:
    """Return an SVG file as an element of the page, with the theme's colours."""
    start = svg.index("<svg")
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[start:], flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{chart.name}-\1"', body)
    body = re.sub(r'(url\(#|href="#)', rf"\1{chart.name}-", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", body, flags=re.DOTALL)
    body = body.replace("'DejaVu Sans'", "system-ui, sans-serif")
    for colour, name in _THEME.items():
        body = body.replace(colour, name)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    return body.replace("<svg", '<svg role="img"', 1).strip()


@contextmanager
def _plot_style(salt: str) -> Iterator[None]:
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": salt,
            "font.family": ["DejaVu Sans"],
            "font.size": 9,
            "axes.labelsize": 9,
            "legend.fontsize": 8,
            "legend.frameon": False,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": PAPER,
            "axes.facecolor": "none",
            "lines.linewidth": 1.6,
            "lines.markersize": 4.5,
        }
    ):
        yield


def _assign_slots(series: Sequence[Series]) -> list[tuple[int, Series]]:
    """Give each curve the number that determines its colour, dashes and mark."""
    taken = set(_SLOTS.values()) if any(s.label in _SLOTS for s in series) else set()
    free = (slot for slot in itertools.count() if slot not in taken)
    return [(_SLOTS[s.label] if s.label in _SLOTS else next(free), s) for s in series]


def _draw_line(axes: Any, chart: Chart, series: Series, slot: int) -> None:
    colour = COLOURS[slot % len(COLOURS)]
    xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": _DASHES[slot % len(_DASHES)],
        "label": series.label,
    }
    if chart.kind == "marks":
        style["marker"] = _MARKS[slot % len(_MARKS)]
    if chart.kind == "step":
        style["drawstyle"] = "steps-post"
    axes.plot(xs, ys, **style)
    if series.low and series.high:
        axes.fill_between(xs, series.low, series.high, color=colour, alpha=0.18, linewidth=0)


def _draw_bars(axes: Any, chart: Chart) -> None:
    width = 0.8 / max(1, len(chart.series))
    for number, (slot, series) in enumerate(_assign_slots(chart.series)):
        shift = (number - (len(chart.series) - 1) / 2) * width
        xs = [x + shift for x, _ in series.points]
        ys = [y for _, y in series.points]
        style: dict[str, Any] = {"color": COLOURS[slot % len(COLOURS)], "label": series.label}
        if slot >= len(COLOURS):
            style |= {"hatch": "////", "edgecolor": INK, "linewidth": 0}
        axes.bar(xs, ys, width * 0.92, **style)
        if series.low and series.high:
            below = [y - low for y, low in zip(ys, series.low, strict=True)]
            above = [high - y for y, high in zip(ys, series.high, strict=True)]
            axes.errorbar(xs, ys, [below, above], fmt="none", ecolor=INK, elinewidth=0.9)
    axes.set_xticks(range(len(chart.categories)), chart.categories)
    axes.grid(visible=False, axis="x")


def _finish_chart_axes(figure: Any, axes: Any, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.level is not None:
        axes.axhline(chart.level, color=INK, linewidth=0.8, linestyle=":")
    if chart.is_log_y:
        axes.set_yscale("log")
        _label_decades(axes.yaxis)
    else:
        _limit_y(axes, chart)
    if chart.is_log_x:
        axes.set_xscale("log")
        _label_decades(axes.xaxis)
    places = sorted({x for series in chart.series for x, _ in series.points})
    if chart.kind == "marks" and len(places) <= _MOST_TICKS:
        axes.set_xticks(places, [f"{x:g}" for x in places])
    if len(chart.series) > 1:
        figure.legend(loc="outside upper center", ncols=min(4, len(chart.series)))


def _limit_y(axes: Any, chart: Chart) -> None:
    if chart.y_limit is not None:
        axes.set_ylim(*chart.y_limit)
        return
    drawn = axes.get_ylim()
    ys = [y for series in chart.series for _, y in series.points] or [0.0]
    low, high = min(0.0, *ys, 0.0), max(0.0, *ys, 0.0)
    reach = max(high, -low) * _MOST_OF_MEAN
    axes.set_ylim(max(min(0.0, drawn[0]), low * _MOST_OF_MEAN), min(drawn[1], reach or drawn[1]))


def _label_decades(axis: Any) -> None:
    """Label 1, 2 and 5 of each power of ten on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _image_bytes(figure: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, facecolor=PAPER if kind == "png" else "none", **options)
    return stream.getvalue()
