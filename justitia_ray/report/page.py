"""The page: one HTML file with everything in it.

Every number of a result is an element `<data value="…" data-line="n">`: line n of `results.jsonl`
holds that value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from justitia_ray.report.experiment import Arm, Metric
from justitia_ray.report.section import Cell, Column, Judged, Number, Section

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


@dataclass(frozen=True, slots=True)
class About:
    """What the page says of the whole report."""

    version: str
    seeds: Sequence[int]
    is_quick: bool
    runs: int


def render(
    about: About, sections: Sequence[Section], drawings: Mapping[str, str], own_policy: str
) -> str:
    """Return the page.

    Args:
        about: The report.
        sections: Its experiments, in order.
        drawings: SVG elements by the names of their charts.
        own_policy: The arm whose losses are listed at the top.
    """
    return _PAGE.substitute(
        style=files(__package__).joinpath("style.css").read_text(encoding="utf-8").strip(),
        introduction=_introduction(about, sections),
        summary=_targets(sections) + _losses(sections, own_policy),
        contents="\n".join(
            f'<li><a href="#{s.experiment.name}">{escape(s.experiment.title)}</a></li>'
            for s in sections
        ),
        sections="\n".join(_section(section, drawings) for section in sections),
        footer=escape(
            f"justitia_ray {about.version}. results.jsonl beside this page holds every number with "
            "its arm, seed and configuration; figures/ holds the figures."
        ),
    )


def _introduction(about: About, sections: Sequence[Section]) -> str:
    seeds = ", ".join(str(seed) for seed in about.seeds)
    texts = [
        f"<p>Simulated with justitia_ray {escape(about.version)}: {about.runs} runs, seeds {seeds}."
        " The arms of an experiment are run on the same draws. A number is the mean over the seeds;"
        " below it stand the 95 % interval (Student’s t), and what the paper reports. Differences"
        " are paired, seed by seed: <span class=better>better</span> and"
        " <span class=worse>worse</span> where the interval does not hold zero, and level where it"
        " does.</p>"
    ]
    if about.is_quick:
        texts.append(
            '<p class="notice">A quick report: fewer seeds, fewer and smaller runs. Its numbers are'
            " not those of the full one.</p>"
        )
    failed = [s for s in sections if s.failure is not None]
    if failed:
        names = ", ".join(
            f'<a href="#{s.experiment.name}">{escape(s.experiment.title)}</a>' for s in failed
        )
        texts.append(f'<p class="notice">Failed: {names}.</p>')
    return "\n".join(texts)


def _targets(sections: Sequence[Section]) -> str:
    judged = [(section, j) for section in sections for j in section.judged]
    if not judged:
        return ""
    rows = "\n".join(_target_row(section, j) for section, j in judged)
    return (
        '<h2>Targets</h2>\n<div class="scroll"><table><thead><tr><th>target</th><th>limit</th>'
        f"<th>reached</th><th></th></tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
    )


def _target_row(section: Section, judged: Judged) -> str:
    is_share = judged.metric.is_share or judged.target.against is not None
    sign = judged.target.against is not None
    verdict = "better" if judged.is_met else "worse"
    return (
        f'<tr><th><a href="#{section.experiment.name}">{escape(judged.target.text)}</a></th>'
        f"<td>{_number(judged.limit, judged.metric, is_share=is_share, is_signed=sign)}</td>"
        f"<td>{_mean_and_interval(judged.reached, judged.metric, is_share, sign)}</td>"
        f"<td class={verdict}>{'met' if judged.is_met else 'missed'}</td></tr>"
    )


def _losses(sections: Sequence[Section], own_policy: str) -> str:
    items = []
    for section in sections:
        for arms in section.groups.values():
            for arm, cells in arms.items():
                for column, cell in zip(section.columns, cells, strict=True):
                    if cell is not None and cell.verdict == "worse" and _is_of(arm, own_policy):
                        items.append(_loss(section, arm, column, cell))
    if not items:
        return ""
    return (
        f"<h2>Where {escape(own_policy)} loses</h2>\n<p>Every comparison in which it is worse, and"
        f" the interval does not hold zero.</p>\n<ul>\n{''.join(items)}</ul>\n"
    )


def _is_of(arm: Arm, policy: str) -> bool:
    return arm.name == policy or arm.group.partition(",")[0] == policy


def _loss(section: Section, arm: Arm, column: Column, cell: Cell) -> str:
    assert column.comparison is not None
    return (
        f'<li><a href="#{section.experiment.name}">{escape(section.experiment.title)}</a>,'
        f" {escape(str(arm))}:"
        f" {escape(column.metric.label)} {_difference(cell.mean, column)} against"
        f" {escape(column.comparison.against)}</li>\n"
    )


def _section(section: Section, drawings: Mapping[str, str]) -> str:
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
        figures = "\n".join(
            f"<figure>{_labelled(drawings[chart.name], chart.title)}"
            f"<figcaption>{escape(chart.title)}</figcaption></figure>"
            for chart in section.charts
        )
        parts.append(f'<div class="charts">\n{figures}\n</div>')
    parts.append(_table(section))
    parts.append("</section>")
    return "\n".join(parts)


def _labelled(drawing: str, title: str) -> str:
    return drawing.replace("<svg", f'<svg aria-label="{escape(title)}"', 1)


def _table(section: Section) -> str:
    heads = "".join(f"<th>{_head(column)}</th>" for column in section.columns)
    rows = []
    for group, arms in section.groups.items():
        if group:
            rows.append(f'<tr><th colspan="{len(section.columns) + 1}">{escape(group)}</th></tr>')
        for arm, cells in arms.items():
            shown = "".join(
                _shown(cell, column) for column, cell in zip(section.columns, cells, strict=True)
            )
            rows.append(f"<tr><th>{escape(arm.name)}</th>{shown}</tr>")
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{body}\n'
        f"</tbody></table></div>{_sources(section)}"
    )


def _sources(section: Section) -> str:
    cells = [cell for arms in section.groups.values() for row in arms.values() for cell in row]
    sources = dict.fromkeys(c.published[1] for c in cells if c is not None and c.published)
    if not sources:
        return ""
    return f'\n<p class="source">Paper: {escape("; ".join(sources))}.</p>'


def _head(column: Column) -> str:
    label = escape(column.metric.label)
    if column.comparison is not None:
        return f"{label}<br>against {escape(column.comparison.against)}"
    unit = "%" if column.metric.is_share else column.metric.unit
    return f"{label}, {escape(unit)}" if unit else label


def _shown(cell: Cell | None, column: Column) -> str:
    if cell is None:
        return "<td></td>"
    is_share, is_signed = _form(column)
    text = _mean_and_interval(cell, column.metric, is_share, is_signed)
    if cell.published is not None:
        number, _ = cell.published
        shown = _number(number, column.metric, is_share=is_share, is_signed=is_signed)
        text += f'<span class="paper">paper {shown}</span>'
    return f"<td class={cell.verdict}>{text}</td>" if cell.verdict else f"<td>{text}</td>"


def _mean_and_interval(cell: Cell, metric: Metric, is_share: bool, is_signed: bool) -> str:
    text = _number(cell.mean, metric, is_share=is_share, is_signed=is_signed)
    if cell.low is not None and cell.high is not None:
        low, high = (
            _number(end, metric, is_share=is_share, is_signed=is_signed)
            for end in (cell.low, cell.high)
        )
        text += f'<span class="interval">{low} to {high}</span>'
    return text


def _difference(number: Number, column: Column) -> str:
    is_share, is_signed = _form(column)
    return _number(number, column.metric, is_share=is_share, is_signed=is_signed)


def _form(column: Column) -> tuple[bool, bool]:
    if column.comparison is None:
        return column.metric.is_share, False
    return column.comparison.is_relative or column.metric.is_share, True


def _number(number: Number, metric: Metric, *, is_share: bool, is_signed: bool) -> str:
    sign = "+" if is_signed else ""
    if is_share:
        text = f"{number.value * 100:{sign},.1f} %"
    else:
        text = f"{number.value:{sign},.{metric.digits}f}"
    return f'<data value="{number.value!r}" data-line="{number.line}">{_minus(text)}</data>'


def _minus(text: str) -> str:
    return text.replace("-", "−")
