"""What scripts/bench_core measures: time per event at several sizes, and memory.

The garbage collector stays on, as it is in the service; its pauses are counted apart.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.bench.core_linear import LinearLoad
from justitia_ray.bench.core_load import WAITING_EACH, CoreLoad, Timings
from justitia_ray.bench.statistics import percentile

CLOCKS: dict[str, Callable[[], int]] = {
    "wall": time.perf_counter_ns,
    "cpu": time.thread_time_ns,
}
"""`cpu` leaves out what other processes take from a busy machine; each reading of it costs more."""

LINEAR = "linear scan"
"""The name under which the loop to compare with is reported."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...]
    """Live applications."""
    repeats: int
    """Windows of each policy at each size."""
    steps: int
    """Pulls of a full replica in a window."""
    completions: int
    """Pulls of a one-seat replica after each of them."""
    warm_up_steps: int
    memory_applications: int
    """Live applications of the pass that counts memory of the policy with a target."""
    clock: str = "wall"
    """A name from `CLOCKS`."""


def default_plan(
    sizes: Sequence[int] | None, repeats: int | None, *, quick: bool, clock: str = "wall"
) -> Plan:
    """Return the sizes and repeats asked for, or the usual ones."""
    usual = (100, 1_000, 10_000) if quick else (100, 1_000, 10_000, 100_000)
    return Plan(
        sizes=tuple(sorted(set(sizes or usual))),
        repeats=repeats or (1 if quick else 3),
        steps=32,
        completions=8,
        warm_up_steps=10,
        memory_applications=1_000 if quick else 10_000,
        clock=clock,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """One kind of event in one window: microseconds a decision."""

    events: int
    decisions: int
    mean: float
    p50: float
    p99: float
    longest: float


@dataclass(slots=True)
class Cell:
    """One policy at one size."""

    policy: str
    applications: int
    windows: dict[str, list[Figures]] = field(default_factory=dict)
    """By kind of event, one a repeat."""

    def add(self, timings: Mapping[str, Timings]) -> None:
        """Take in a window; a kind that did not happen in it is left out."""
        for kind, timed in timings.items():
            if timed.elapsed_ns:
                self.windows.setdefault(kind, []).append(figures(timed))


@dataclass(slots=True)
class Pauses:
    """Collections of garbage while events were timed, by generation, in milliseconds."""

    ms: dict[int, list[float]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    freed: int = 0
    """Objects in cycles that they found. None, and the pauses are for nothing."""

    def __str__(self) -> str:
        """Name each generation with its count and its longest pause."""
        counted = ", ".join(
            f"{len(ms)} of generation {generation}" + (f" (longest {max(ms):.1f} ms)" if ms else "")
            for generation, ms in self.ms.items()
        )
        return f"{counted}; {self.freed} objects found to free"


@dataclass(frozen=True, slots=True)
class Memory:
    """Live bytes of a core in which everything waits."""

    policy: str
    applications: int
    bytes_per_inference: float
    """Of one more waiting inference."""
    bytes_per_application: float
    """Of one more application with nothing waiting."""
    bytes_after_churn: float
    """Of the whole core for each waiting inference, after a window of events."""


def figures(timed: Timings) -> Figures:
    """Return the figures of one kind of event in one window.

    Percentiles are over events, each divided by its decisions; the mean is over all decisions.

    Raises:
        ValueError: If there was no event.
    """
    us = timed.us_a_decision()
    decisions = sum(timed.decisions)
    return Figures(
        len(us),
        decisions,
        sum(timed.elapsed_ns) / decisions / 1e3,
        percentile(us, 50),
        percentile(us, 99),
        max(us),
    )


def measure_core(
    plan: Plan,
    policies: Sequence[str],
    options: Mapping[str, object],
    seed: int,
    say: Callable[[str], None],
) -> tuple[list[Cell], dict[int, Pauses]]:
    """Time every policy at every size.

    A core is filled once for each size, then ordered by one policy after the other with the event
    that does so in service, and warmed up under each.
    """
    cells: list[Cell] = []
    pauses: dict[int, Pauses] = {}
    for size in plan.sizes:
        load = CoreLoad(size, seed, clock_ns=CLOCKS[plan.clock])
        load.build()
        gc.collect()  # what was measured before, so that none of it is found in the windows
        say(f"{size:,} live applications, {load.waiting():,} waiting inferences")
        with _pauses_counted() as pauses[size]:
            for policy in policies:
                load.change_policy(policy, options)
                load.run(plan.warm_up_steps, plan.completions)
                cell = Cell(policy, size)
                for _ in range(plan.repeats):
                    load.forget()
                    load.run(plan.steps, plan.completions)
                    cell.add(load.timings)
                cells.append(cell)
    return cells, pauses


def measure_linear(plan: Plan, seed: int) -> list[Cell]:
    """Time the linear scan at every size."""
    cells = []
    for size in plan.sizes:
        load = LinearLoad(size, seed, CLOCKS[plan.clock])
        load.run(1)
        cell = Cell(LINEAR, size)
        for _ in range(plan.repeats):
            load.forget()
            load.run(max(2, plan.steps // 4))
            cell.add(load.timings)
        cells.append(cell)
    return cells


def measure_memory(
    plan: Plan, policy: str, options: Mapping[str, object], applications: int, seed: int
) -> Memory:
    """Count the live bytes of a core as it fills and after a window of events."""
    tracemalloc.start()
    try:
        load = CoreLoad(applications, seed, policy, options)
        empty = _live_bytes(load)
        opened = load.open_all()
        idle = _live_bytes(load)
        load.submit_all(opened)
        del opened
        full = _live_bytes(load)
        load.run(plan.steps, plan.completions)
        churned = _live_bytes(load)
    finally:
        tracemalloc.stop()
    waiting = WAITING_EACH * applications
    return Memory(
        policy,
        applications,
        (full - idle) / waiting,
        (idle - empty) / applications,
        (churned - empty) / waiting,
    )


def _live_bytes(load: CoreLoad) -> int:
    """Return what is allocated, without the timings, which are no part of the core."""
    load.forget()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def _pauses_counted() -> Iterator[Pauses]:
    found = Pauses()
    started = 0

    def note(phase: str, info: dict[str, Any]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter_ns()
        else:
            found.ms[info["generation"]].append((time.perf_counter_ns() - started) / 1e6)
            found.freed += info["collected"]

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)
