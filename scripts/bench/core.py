"""Measurements of `scripts/bench_core`: time per event at several sizes, memory, a linear scan.

The garbage collector stays on, as in the service; its pauses are counted separately.
"""

import gc
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.lab.core_load import ARRIVAL, GRANT, SUBMIT, WAITING_EACH, CoreLoad, Timings
from scripts.bench.statistics import percentile

_SEATS = 20
"""Number of inferences granted at once, about as many as a replica gets in one pull."""
_INPUT_PRICE, _OUTPUT_PRICE = 1.0, 2.0
_OUTPUT_TOKENS = 110
_LAST_GRANT = 0.1


class LinearScan:
    """Virtual Token Counter scheduler that scans all clients instead of keeping a heap."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self._waiting: dict[str, deque[int]] = {}

    def add(self, client: str, counter: float, prompt_tokens: Iterable[int]) -> None:
        """Add a client without lifting its token counter, which would scan all clients."""
        self.counters[client] = counter
        self._waiting[client] = deque(prompt_tokens)

    def submit(self, client: str, prompt_tokens: int) -> None:
        """Queue a request; lift the counter of a client that had none waiting. O(clients)."""
        line = self._waiting.setdefault(client, deque())
        line.append(prompt_tokens)
        if len(line) > 1:
            return
        others = [c for name, c in self.counters.items() if self._waiting[name] and name != client]
        lifted = min(others, default=0.0)
        self.counters[client] = max(self.counters.get(client, 0.0), lifted)

    def grant(self, seats: int) -> list[str]:
        """Grant `seats` requests, each of the client with the least counter. O(clients) each."""
        granted: list[str] = []
        counters = dict(self.counters)
        while counters and len(granted) < seats:
            client = min(counters, key=counters.__getitem__)
            line = self._waiting[client]
            if not line:
                del counters[client]
                continue
            charge = _INPUT_PRICE * line.popleft()
            self.counters[client] += charge
            counters[client] += charge
            granted.append(client)
        return granted

    def serve(self, client: str, output_tokens: int) -> None:
        """Charge a client for the output tokens of its request."""
        self.counters[client] += _OUTPUT_PRICE * output_tokens

    def leave(self, client: str) -> None:
        """Remove a client and its waiting requests."""
        del self.counters[client]
        del self._waiting[client]


class LinearLoad:
    """Steady load on `LinearScan` in which ten requests of every client wait."""

    def __init__(
        self, clients: int, seed: int, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        """Queue ten requests for each of `clients` clients; `clock_ns` times every operation."""
        self._clock_ns = clock_ns
        self.queue = LinearScan()
        self.timings = {kind: Timings() for kind in (ARRIVAL, SUBMIT, GRANT)}
        self._random = random.Random(seed)
        for number in range(clients):
            prompts = [self._draw_prompt() for _ in range(WAITING_EACH)]
            self.queue.add(f"client-{number}", self._random.uniform(0, 1000), prompts)
        self._named = clients

    def run(self, batches: int) -> None:
        """Time grants, and the arrivals and submissions that follow them."""
        for _ in range(batches):
            started = self._clock_ns()
            granted = self.queue.grant(_SEATS)
            self.timings[GRANT].add(self._clock_ns() - started, len(granted))
            ended: set[str] = set()
            for client in granted:
                if client in ended:
                    continue
                self.queue.serve(client, _OUTPUT_TOKENS)
                if self._random.random() >= _LAST_GRANT:
                    self._submit_timed(SUBMIT, client)
                    continue
                ended.add(client)
                self.queue.leave(client)
                self._add_arrival()

    def forget(self) -> None:
        """Drop all timings."""
        self.timings = {kind: Timings() for kind in self.timings}

    def _add_arrival(self) -> None:
        self._named += 1
        name = f"client-{self._named}"
        self._submit_timed(ARRIVAL, name)
        for _ in range(WAITING_EACH - 1):
            self._submit_timed(SUBMIT, name)

    def _submit_timed(self, kind: str, client: str) -> None:
        prompt_tokens = self._draw_prompt()
        started = self._clock_ns()
        self.queue.submit(client, prompt_tokens)
        self.timings[kind].add(self._clock_ns() - started, 1)

    def _draw_prompt(self) -> int:
        return self._random.randint(50, 400)


CLOCKS: dict[str, Callable[[], int]] = {
    "wall": time.perf_counter_ns,
    "cpu": time.thread_time_ns,
}
"""Clocks for timing: `cpu` excludes other processes on a busy machine, but costs more to read."""

LINEAR = "linear scan"
"""Name of the linear scan in reports."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and repeats of a measurement."""

    sizes: tuple[int, ...]
    """Numbers of live applications at which to measure."""
    repeats: int
    """Number of timed windows for each policy and size."""
    steps: int
    """Number of times in a window that a full replica asks for work."""
    completions: int
    warm_up_steps: int
    memory_applications: int
    """Number of live applications at which memory is measured for the policy with a memory target.
    """
    clock: str = "wall"
    """Name of the clock that times the events, a key of `CLOCKS`."""


def default_plan(
    sizes: Sequence[int] | None, repeats: int | None, *, quick: bool, clock: str = "wall"
) -> Plan:
    """Return the plan with the requested sizes and repeats, or the defaults."""
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
    """Microseconds per decision of one kind of event in one window."""

    events: int
    decisions: int
    mean: float
    p50: float
    p99: float
    longest: float


@dataclass(slots=True)
class Cell:
    """Timed windows of one policy at one size."""

    policy: str
    applications: int
    windows: dict[str, list[Figures]] = field(default_factory=dict)
    """Timings by kind of event, one for each repeat."""

    def add(self, timings: Mapping[str, Timings]) -> None:
        """Add a timed window; kinds of events that did not occur in it are left out."""
        for kind, timed in timings.items():
            if timed.elapsed_ns:
                self.windows.setdefault(kind, []).append(figures(timed))


@dataclass(slots=True)
class CollectionPauses:
    """Garbage collections while events were timed: durations in ms, by generation."""

    ms: dict[int, list[float]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    freed: int = 0
    """Objects freed from reference cycles; 0 means that the pauses freed nothing."""

    def __str__(self) -> str:
        """Return the count and the longest pause of each generation."""
        counted = ", ".join(
            f"{len(ms)} of generation {generation}" + (f" (longest {max(ms):.1f} ms)" if ms else "")
            for generation, ms in self.ms.items()
        )
        return f"{counted}; {self.freed} objects found to free"


@dataclass(frozen=True, slots=True)
class Memory:
    """Live bytes of a core in which every inference waits."""

    policy: str
    applications: int
    bytes_per_inference: float
    """Bytes for each additional waiting inference."""
    bytes_per_application: float
    """Bytes for each additional application without waiting inferences."""
    bytes_after_churn: float
    """Bytes of the whole core per waiting inference, after a window of events."""


def figures(timed: Timings) -> Figures:
    """Return the figures of one kind of event in one window.

    Percentiles are over events, each divided by its decisions; the mean is over all decisions.

    Raises:
        ValueError: If there was no event.
    """
    us = timed.microseconds_per_decision()
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
    leaves: int | None = None,
    beginnings: int | None = None,
) -> tuple[list[Cell], dict[int, CollectionPauses]]:
    """Time every policy at every size.

    For each size a core is filled once. The service's own event then switches it from policy to
    policy, with a warm-up under each. With `leaves`, its applications belong to that number of
    tenants at depth four of a tree. With `beginnings`, replicas have a prefix cache, and each
    prompt names this number of beginnings.
    """
    cells: list[Cell] = []
    pauses: dict[int, CollectionPauses] = {}
    for size in plan.sizes:
        load = CoreLoad(
            size, seed, clock_ns=CLOCKS[plan.clock], leaves=leaves, beginnings=beginnings
        )
        load.build()
        gc.collect()  # collect garbage of earlier measurements outside the timed windows
        say(f"{size:,} live applications, {load.waiting():,} waiting inferences")
        with _collection_pauses() as pauses[size]:
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
    """Measure the live bytes of a core while it fills and after a window of events."""
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
    """Return the allocated bytes without the timings, which are not part of the core."""
    load.forget()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def _collection_pauses() -> Iterator[CollectionPauses]:
    found = CollectionPauses()
    started = 0

    def record_pause(phase: str, info: dict[str, Any]) -> None:
        nonlocal started
        if phase == "start":
            started = time.perf_counter_ns()
        else:
            found.ms[info["generation"]].append((time.perf_counter_ns() - started) / 1e6)
            found.freed += info["collected"]

    gc.callbacks.append(record_pause)
    try:
        yield found
    finally:
        gc.callbacks.remove(record_pause)
