"""Build a report: run every task once, on several processes; write page, results and figures."""

import functools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.lab.report.experiment import Arm, Experiment, Failed, Scale, Task
from justitia_ray.lab.report.figures import Drawing, check_matplotlib, draw
from justitia_ray.lab.report.findings import ReportSection, ResultLog, section_of
from justitia_ray.lab.report.page import render
from justitia_ray.lab.report.published import published_values
from justitia_ray.sim.result_files import check_writable, writing

PAGE, RESULTS, FIGURES = "report.html", "results.jsonl", "figures"

FIRST_SEED = 101
"""First seed of a report; default settings were tuned on lower seeds."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Numbers of finished, failed and planned runs of a report."""

    done: int
    total: int
    failed: int
    elapsed_s: float

    def __str__(self) -> str:
        """Return the numbers of runs as a line of text, with the estimated remaining time."""
        left_s = self.elapsed_s / self.done * (self.total - self.done) if self.done else 0.0
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.total} runs{failed}, {left_s:.0f} s left"


def build_report(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    workers: int,
    say: Callable[[RunProgress], None] = lambda _: None,
) -> list[ReportSection]:
    """Run the experiments and write the report: `report.html`, `results.jsonl` and `figures/`.

    Args:
        experiments: In the order of the page.
        scale: Seeds, data and sizes.
        out: Directory of the report; created if missing.
        workers: Number of processes that simulate.
        say: Called after each run.

    Returns:
        The sections of the page; a failed section contains the reason.

    Raises:
        ConfigError: If matplotlib is missing or the directory cannot be written.
    """
    check_matplotlib()
    check_writable(out)
    plans = [_plan_arms(experiment, scale) for experiment in experiments]
    planned = [plan for plan in plans if not isinstance(plan, Failed)]
    tasks = [task for plan in planned for arms in plan.values() for task in arms.values()]
    found = run_tasks(tasks, workers, say)
    log, published = ResultLog(), published_values()
    sections = [
        ReportSection(experiment, failure=plan.message)
        if isinstance(plan, Failed)
        else section_of(experiment, scale, plan, found, log, published)
        for experiment, plan in zip(experiments, plans, strict=True)
    ]
    drawings = _draw_charts(sections)
    inline = {name: drawing.inline for name, drawing in drawings.items()}
    page = render(scale, len(found), sections, inline)
    with writing(out) as unfinished:
        (unfinished / PAGE).write_text(page, encoding="utf-8")
        log.write(unfinished / RESULTS)
        (unfinished / FIGURES).mkdir()
        for name, drawing in drawings.items():
            (unfinished / FIGURES / f"{name}.svg").write_bytes(drawing.svg)
            (unfinished / FIGURES / f"{name}.png").write_bytes(drawing.png)
    return sections


def _plan_arms(experiment: Experiment, scale: Scale) -> dict[int, Mapping[Arm, Task]] | Failed:
    """Return the runs of an experiment for each seed, or `Failed` if it raised an error."""
    try:
        return {seed: experiment.arms(scale, seed) for seed in experiment.seeds(scale)}
    except Exception as error:
        return Failed.from_error(error)


def _draw_charts(sections: Sequence[ReportSection]) -> dict[str, Drawing]:
    """Draw every chart; a chart that fails marks its section as failed."""
    drawings: dict[str, Drawing] = {}
    for section in sections:
        try:
            drawings |= {chart.name: draw(chart) for chart in section.charts}
        except Exception as error:
            section.failure = Failed.from_error(error).message
    return drawings


def run_tasks(
    tasks: Iterable[Task], workers: int, say: Callable[[RunProgress], None] = lambda _: None
) -> dict[Task, Any]:
    """Run each task once; return its result, or `Failed` if it raised an error.

    Args:
        tasks: Equal tasks are run once.
        workers: Number of processes; with one, all tasks run in this process, in order.
        say: Called after each run.
    """
    distinct = list(dict.fromkeys(tasks))
    found: dict[Task, Any] = {}
    started, failed = time.perf_counter(), 0
    for task, outcome in _run_in_processes(distinct, workers):
        found[task] = outcome
        failed += isinstance(outcome, Failed)
        say(RunProgress(len(found), len(distinct), failed, time.perf_counter() - started))
    return found


def attempt(task: Task) -> Any:
    try:
        return task.run()
    except Exception as error:
        return Failed.from_error(error)


def _run_in_processes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Any]]:
    if workers <= 1:
        for task in tasks:
            yield task, attempt(task)
        return
    # A forked process would copy locks held by other threads, such as matplotlib's.
    context = multiprocessing.get_context("spawn")
    # The parent process handles Ctrl-C; its worker processes ignore it.
    leave_interrupts = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, context, initializer=leave_interrupts) as pool:
        futures: dict[Future[Any], Task] = {pool.submit(attempt, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                try:
                    yield futures[future], future.result()
                except BrokenProcessPool:
                    yield futures[future], Failed("its process died, perhaps for lack of memory")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
