"""Runs tasks on all cores, each once however many experiments want it, and says how far it is."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from justitia_ray.report.experiment import Task


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that raised."""

    message: str
    """One line."""

    @staticmethod
    def of(error: Exception) -> "Failed":
        """Return what an error says, in one line."""
        return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:400])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the runs are."""

    done: int
    total: int
    failed: int
    elapsed_s: float

    def __str__(self) -> str:
        """Return one line, with the time left if the rest goes as fast."""
        left_s = self.elapsed_s / self.done * (self.total - self.done) if self.done else 0.0
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.total} runs{failed}, {left_s:.0f} s left"


def run_tasks(
    tasks: Iterable[Task], workers: int, say: Callable[[Progress], None] = lambda _: None
) -> dict[Task, Any]:
    """Run every task once and return what each found, or `Failed`.

    Args:
        tasks: Equal ones are one.
        workers: Processes; one: all run in this process, in order.
        say: Told after each.
    """
    distinct = list(dict.fromkeys(tasks))
    found: dict[Task, Any] = {}
    started, failed = time.perf_counter(), 0
    for task, outcome in _outcomes(distinct, workers):
        found[task] = outcome
        failed += isinstance(outcome, Failed)
        say(Progress(len(found), len(distinct), failed, time.perf_counter() - started))
    return found


def attempt(task: Task) -> Any:
    """Run a task; whatever it raises becomes `Failed`, which always crosses a process boundary."""
    try:
        return task.run()
    except Exception as error:
        return Failed.of(error)


def _leave_interrupts() -> None:
    """Leave Ctrl-C to the process that waits: a traceback from each worker says nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _outcomes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, Any]]:
    if workers <= 1:
        for task in tasks:
            yield task, attempt(task)
        return
    # spawn: a fork would copy this process's threads' locks, matplotlib's among them.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_leave_interrupts) as pool:
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
