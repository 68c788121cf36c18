"""Many histories, in several processes: how many a minute, what struck, what failed."""

import gc
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from justitia_ray.serve.histories.history import play
from justitia_ray.serve.histories.plan import draw_plan
from justitia_ray.units import Seconds

_BATCH = 50
"""Histories that one process plays before it tells of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A seed whose history broke a rule."""

    seed: int
    check: str
    """The first rule that it broke."""
    detail: str


@dataclass(slots=True)
class Tally:
    """What a search has seen so far."""

    histories: int = 0
    inferences: int = 0
    grants: int = 0
    virtual_s: Seconds = 0.0
    took_s: Seconds = 0.0
    struck: Counter[str] = field(default_factory=Counter)
    """Faults by kind, and messages by their fate."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def a_minute(self) -> float:
        """Histories a minute of wall time."""
        return 60.0 * self.histories / self.took_s if self.took_s else 0.0

    def add(self, other: "Tally") -> None:
        """Take in what another process has seen."""
        self.histories += other.histories
        self.inferences += other.inferences
        self.grants += other.grants
        self.virtual_s += other.virtual_s
        self.struck += other.struck
        self.findings += other.findings


def search(first_seed: int, count: int, jobs: int) -> Iterator[Tally]:
    """Play so many histories from a seed on; yield what was seen after each batch."""
    total, began_at = Tally(), time.monotonic()
    ends = range(first_seed, first_seed + count, _BATCH)
    batches = [(start, min(start + _BATCH, first_seed + count)) for start in ends]
    if jobs == 1:
        for batch in batches:
            total.add(play_seeds(batch))
            total.took_s = time.monotonic() - began_at
            yield total
        return
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:
        for tally in pool.map(play_seeds, batches):
            total.add(tally)
            total.took_s = time.monotonic() - began_at
            yield total


def play_seeds(seeds: tuple[int, int]) -> Tally:
    """Play the histories of the seeds from one to before another."""
    tally = Tally()
    for seed in range(*seeds):
        history = play(draw_plan(seed))
        tally.histories += 1
        tally.inferences += history.plan.inferences
        tally.grants += history.grants
        tally.virtual_s += history.virtual_s
        tally.struck += history.struck
        for failure in history.failures[:1]:
            tally.findings.append(Finding(seed, failure.check, failure.detail))
    gc.collect()
    return tally
