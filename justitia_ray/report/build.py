"""Makes a report: runs the experiments, measures, draws, writes page, results and figures."""

from collections.abc import Callable, Sequence
from pathlib import Path

from justitia_ray import __version__
from justitia_ray.report.experiment import Arm, Experiment, Scale, Task
from justitia_ray.report.figures import Drawing, check_matplotlib, draw
from justitia_ray.report.findings import Findings
from justitia_ray.report.page import About, render
from justitia_ray.report.published import published_values
from justitia_ray.report.records import Ledger
from justitia_ray.report.runner import Failed, Progress, run_tasks
from justitia_ray.report.section import Section
from justitia_ray.sim.result_files import check_writable, writing

PAGE, RESULTS, FIGURES = "report.html", "results.jsonl", "figures"
OWN_POLICY = "justitia"

FIRST_SEED = 101
"""Defaults were tuned on other seeds, below this one."""


def build_report(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    workers: int,
    say: Callable[[Progress], None] = lambda _: None,
) -> list[Section]:
    """Run the experiments and write `report.html`, `results.jsonl` and `figures/` into `out`.

    Args:
        experiments: In the order of the page.
        scale: How much is run.
        out: A directory; it is made if it is not there.
        workers: Processes that simulate.
        say: Told after each run.

    Returns:
        The sections; those that failed say why.

    Raises:
        ConfigError: If matplotlib is missing or the directory cannot be written.
    """
    check_matplotlib()
    check_writable(out)
    planned, unplanned = _plan(experiments, scale)
    tasks = [task for arms in planned.values() for by in arms.values() for task in by.values()]
    found = run_tasks(tasks, workers, say)
    ledger = Ledger(__version__)
    findings = Findings(scale, ledger, published_values())
    sections = []
    for experiment in experiments:
        if experiment.name in planned:
            sections.append(findings.section(experiment, planned[experiment.name], found))
        else:
            sections.append(Section(experiment, failure=unplanned[experiment.name]))
    drawings = _draw(sections)
    about = About(__version__, scale.seeds, scale.is_quick, len(found))
    inline = {name: drawing.inline for name, drawing in drawings.items()}
    page = render(about, sections, inline, OWN_POLICY)
    with writing(out) as unfinished:
        (unfinished / PAGE).write_text(page, encoding="utf-8")
        ledger.write(unfinished / RESULTS)
        (unfinished / FIGURES).mkdir()
        for name, drawing in drawings.items():
            (unfinished / FIGURES / f"{name}.svg").write_bytes(drawing.svg)
            (unfinished / FIGURES / f"{name}.png").write_bytes(drawing.png)
    return sections


def _plan(
    experiments: Sequence[Experiment], scale: Scale
) -> tuple[dict[str, dict[int, dict[Arm, Task]]], dict[str, str]]:
    """Return the arms of each experiment by seed; and why, where they cannot be named."""
    planned: dict[str, dict[int, dict[Arm, Task]]] = {}
    unplanned: dict[str, str] = {}
    for experiment in experiments:
        try:
            seeds = experiment.seeds(scale)
            planned[experiment.name] = {s: dict(experiment.arms(scale, s)) for s in seeds}
        except Exception as error:
            unplanned[experiment.name] = Failed.of(error).message
    return planned, unplanned


def _draw(sections: Sequence[Section]) -> dict[str, Drawing]:
    """Draw every chart; a section with one that cannot be drawn has failed."""
    drawings: dict[str, Drawing] = {}
    for section in sections:
        try:
            drawings |= {chart.name: draw(chart) for chart in section.charts}
        except Exception as error:
            section.failure = Failed.of(error).message
    return drawings
