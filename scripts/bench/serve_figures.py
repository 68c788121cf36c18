"""Samples of a load of scripts/bench_serve, and the figures computed from them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from justitia_ray.units import Seconds
from scripts.bench.load import Sample
from scripts.bench.statistics import percentile, steady


@dataclass(frozen=True, slots=True)
class Block:
    """Samples of one arm under one load in one repeat."""

    samples: tuple[Sample, ...]
    callers: int
    cpu_ms: dict[str, float] = field(default_factory=dict)
    """CPU ms per call by role, without idle use; `client` is the caller."""

    @property
    def cpu_ms_per_call(self) -> float:
        """CPU time of the arm per call, in ms."""
        return sum(ms for role, ms in self.cpu_ms.items() if role != "client")

    @property
    def steady_samples(self) -> tuple[tuple[Sample, ...], Seconds]:
        """Calls that ended while all callers were active, and the length of that period.

        Raises:
            ValueError: If the calls are too few.
        """
        return steady(self.samples, self.callers)


@dataclass(frozen=True, slots=True)
class Figure:
    """Figure that is computed from samples, with the way in which two arms are compared by it."""

    name: str
    of: Callable[[Block], float]
    comparison: str
    """Kind of comparison: `added` (a difference) or `ratio`."""
    is_better_when_less: bool = True


def _ttft_ms(percent: float) -> Callable[[Block], float]:
    return lambda block: 1e3 * percentile([s.ttft_s for s in block.samples], percent)


def _latency_ms(percent: float) -> Callable[[Block], float]:
    return lambda block: 1e3 * percentile([s.latency_s for s in block.samples], percent)


def _tokens_per_s(block: Block) -> float:
    samples, time_s = block.steady_samples
    return sum(sample.output_tokens for sample in samples) / time_s


def _calls_per_s(block: Block) -> float:
    samples, time_s = block.steady_samples
    return len(samples) / time_s


def _chunks_per_call(block: Block) -> float:
    return sum(sample.chunks for sample in block.samples) / len(block.samples)


FIRST_TOKEN_P50 = Figure("first token p50, ms", _ttft_ms(50), "added")
FIRST_TOKEN_P99 = Figure("first token p99, ms", _ttft_ms(99), "added")
LATENCY_P50 = Figure("latency p50, ms", _latency_ms(50), "added")
LATENCY_P99 = Figure("latency p99, ms", _latency_ms(99), "added")
TOKENS = Figure("tokens/s", _tokens_per_s, "ratio", is_better_when_less=False)
CALLS = Figure("calls/s", _calls_per_s, "ratio", is_better_when_less=False)
CPU = Figure("CPU ms a call", lambda block: block.cpu_ms_per_call, "ratio")
ADDED_CPU = Figure("CPU ms a call", lambda block: block.cpu_ms_per_call, "added")
CHUNKS = Figure("chunks a call", _chunks_per_call, "ratio")
FIRST_TOKEN = (FIRST_TOKEN_P50, FIRST_TOKEN_P99)
LATENCY = (LATENCY_P50, LATENCY_P99)
