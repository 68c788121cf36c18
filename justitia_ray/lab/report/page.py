"""The report as one HTML file that contains all its parts.

Every number of a result is an element `<data value="…" data-line="n">`: line n of `results.jsonl`
holds that value.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from justitia_ray import __version__
from justitia_ray.lab.report.experiment import Arm, Scale
from justitia_ray.lab.report.findings import Cell, Column, JudgedTarget, Number, ReportSection

_OWN_POLICY = "justitia"
"""Policy whose losses are listed at the top of the report."""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>justitia report</title>
<style>
$style
</style>
</head>
<body>
<header>
<h1>Justitia and VTC, simulated</h1>
$introduction
</header>
<main>
$summary
<nav><h2>Experiments</h2><ul>
$contents
</ul></nav>
$sections
</main>
<footer><p>$footer</p></footer>
</body>
</html>
""")


def render(
    scale: Scale, runs: int, sections: Sequence[ReportSection], drawings: Mapping[str, str]
) -> str:
    """Return the report as one HTML page.

    Args:
        scale: Scale of the report.
        runs: Number of runs.
        sections: The experiments' sections, in order.
        drawings: SVG elements by name of their chart.
    """
    return _PAGE.substitute(
        style=files(__package__).joinpath("style.css").read_text(encoding="utf-8").strip(),
        introduction=_render_introduction(scale, runs, sections),
        summary=_render_targets(sections) + _render_losses(sections),
        contents="\n".join(f"<li>{_section_link(section)}</li>" for section in sections),
        sections="\n".join(_render_section(section, drawings) for section in sections),
        footer=escape(
            f"justitia_ray {__version__}. results.jsonl beside this page holds every number with "
            "its arm, seed and configuration; figures/ holds the figures."
        ),
    )


def _render_introduction(scale: Scale, runs: int, sections: Sequence[ReportSection]) -> str:
    seeds = ", ".join(str(seed) for seed in scale.seeds)
    texts = [
        f"<p>Simulated with justitia_ray {escape(__version__)}: {runs} runs, seeds {seeds}."
        " The arms of an experiment are run on the same draws. A number is the mean over the seeds;"
        " below it stand the 95 % interval (Student’s t), and what the paper reports. Differences"
        " are paired, seed by seed: <span class=better>better</span> and"
        " <span class=worse>worse</span> where the interval does not hold zero, and level where it"
        " does.</p>"
    ]
    if scale.is_quick:
        texts.append(
            '<p class="notice">A quick report: fewer seeds, fewer and smaller runs. Its numbers are'
            " not those of the full one.</p>"
        )
    if failed := [section for section in sections if section.failure is not None]:
        names = ", ".join(_section_link(section) for section in failed)
        texts.append(f'<p class="notice">Failed: {names}.</p>')
    return "\n".join(texts)


def _render_targets(sections: Sequence[ReportSection]) -> str:
    judged = [(section, j) for section in sections for j in section.judged]
    if not judged:
        return ""
    rows = "\n".join(_render_target(section, j) for section, j in judged)
    return (
        '<h2>Targets</h2>\n<div class="scroll"><table><thead><tr><th>target</th><th>limit</th>'
        f"<th>reached</th><th></th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )


def _render_target(section: ReportSection, judged: JudgedTarget) -> str:
    verdict = "better" if judged.is_met else "worse"
    return (
        f'<tr><th><a href="#{section.experiment.name}">{escape(judged.target.text)}</a></th>'
        f"<td>{_format_number(judged.limit, judged.column)}</td>"
        f"<td>{_mean_and_interval(judged.reached, judged.column)}</td>"
        f"<td class={verdict}>{'met' if judged.is_met else 'missed'}</td></tr>"
    )


def _render_losses(sections: Sequence[ReportSection]) -> str:
    items = []
    for section in sections:
        for arms in section.groups.values():
            for arm, cells in arms.items():
                is_own = _OWN_POLICY in (arm.name, arm.group.partition(",")[0])
                for column, cell in zip(section.columns, cells, strict=True):
                    if is_own and cell is not None and cell.verdict == "worse":
                        items.append(_render_loss(section, arm, column, cell))
    if not items:
        return ""
    return (
        f"<h2>Where {_OWN_POLICY} loses</h2>\n<p>Every comparison in which it is worse, and"
        f" the interval does not hold zero.</p>\n<ul>\n{''.join(items)}</ul>\n"
    )


def _render_loss(section: ReportSection, arm: Arm, column: Column, cell: Cell) -> str:
    return (
        f"<li>{_section_link(section)}, {escape(str(arm))}:"
        f" {escape(column.metric.label)} {_format_number(cell.mean, column)} against"
        f" {escape(column.against or '')}</li>\n"
    )


def _section_link(section: ReportSection) -> str:
    experiment = section.experiment
    return f'<a href="#{experiment.name}">{escape(experiment.title)}</a>'


def _render_section(section: ReportSection, drawings: Mapping[str, str]) -> str:
    experiment = section.experiment
    seeds = f"{len(section.seeds)} seeds" if experiment.is_drawn else "nothing is drawn: one run"
    parts = [
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}</h2>',
        f'<p class="source">{escape(experiment.source)} · {seeds}</p>',
        f"<p>{escape(experiment.about)}</p>",
    ]
    if section.failure is not None:
        parts.append(f'<p class="notice">Failed: {escape(section.failure)}</p></section>')
        return "\n".join(parts)
    if section.charts:
        parts.append('<div class="charts">')
        for chart in section.charts:
            title = escape(chart.title)
            drawing = drawings[chart.name].replace("<svg", f'<svg aria-label="{title}"', 1)
            parts.append(f"<figure>{drawing}<figcaption>{title}</figcaption></figure>")
        parts.append("</div>")
    return "\n".join([*parts, _render_table(section), "</section>"])


def _render_table(section: ReportSection) -> str:
    heads = "".join(f"<th>{_column_head(column)}</th>" for column in section.columns)
    rows = []
    for group, arms in section.groups.items():
        if group:
            rows.append(f'<tr><th colspan="{len(section.columns) + 1}">{escape(group)}</th></tr>')
        for arm, cells in arms.items():
            shown = "".join(
                _render_cell(cell, column)
                for column, cell in zip(section.columns, cells, strict=True)
            )
            rows.append(f"<tr><th>{escape(arm.name)}</th>{shown}</tr>")
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{body}\n'
        f"</tbody></table></div>{_render_sources(section)}"
    )


def _render_sources(section: ReportSection) -> str:
    cells = [cell for arms in section.groups.values() for row in arms.values() for cell in row]
    sources = dict.fromkeys(c.published[1] for c in cells if c is not None and c.published)
    if not sources:
        return ""
    return f'\n<p class="source">Paper: {escape("; ".join(sources))}.</p>'


def _column_head(column: Column) -> str:
    label = escape(column.metric.label)
    if column.against is not None:
        return f"{label}<br>against {escape(column.against)}"
    unit = "%" if column.metric.is_share else column.metric.unit
    return f"{label}, {escape(unit)}" if unit else label


def _render_cell(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "<td></td>"
    text = _mean_and_interval(cell, column)
    if cell.published is not None:
        text += f'<span class="paper">paper {_format_number(cell.published[0], column)}</span>'
    return f"<td class={cell.verdict}>{text}</td>" if cell.verdict else f"<td>{text}</td>"


def _mean_and_interval(cell: Cell, column: Column) -> str:
    text = _format_number(cell.mean, column)
    if cell.low is not None and cell.high is not None:
        low, high = _format_number(cell.low, column), _format_number(cell.high, column)
        text += f'<span class="interval">{low} to {high}</span>'
    return text


def _format_number(number: Number, column: Column) -> str:
    """Format a number for its column: differences with a sign, shares in percent."""
    sign = "" if column.against is None else "+"
    if column.is_relative or column.metric.is_share:
        text = f"{number.value * 100:{sign},.1f} %"
    else:
        text = f"{number.value:{sign},.{column.metric.digits}f}"
    return (
        f'<data value="{number.value!r}" data-line="{number.line}">{text.replace("-", "−")}</data>'
    )
