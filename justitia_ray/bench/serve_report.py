"""The figures of scripts/bench_serve: comparisons of pairs, verdicts on targets, table and JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from justitia_ray.bench.serve_measures import (
    CHUNKS,
    CONCURRENT,
    IDLE_STREAM,
    IDLE_UNARY,
    METRICS,
    SATURATED_STREAM,
    SATURATED_UNARY,
    Arms,
    Block,
    Measured,
)
from justitia_ray.bench.statistics import (
    Spread,
    paired_differences,
    paired_ratios,
    percentile,
    spread,
)
from justitia_ray.text_table import text_table

_MOST_ADDED_TTFT_MS = 5.0
_MOST_CPU_OF_METRICS = 1.03
_LEAST_THROUGHPUT = {"fake": 0.97, "vllm": 0.90}
_CPU_ROLES = ("proxy", "ingress", "scheduler", "predictor", "replica", "engine", "ray", "client")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of two arms."""

    measure: str
    figure: str
    ours: Spread
    theirs: Spread
    compared: Spread
    """Over the repeats, each compared with its own pair."""
    comparison: str
    """`added` (a difference) or `ratio`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target of the design and what came out."""

    target: str
    met: bool
    figure: str

    def __str__(self) -> str:
        return f"{'MET   ' if self.met else 'MISSED'}  {self.target}: {self.figure}"


def latency_ms(percent: float) -> Callable[[Block], float]:
    """Return the figure: this percentile of the calls' latency, in ms."""
    return lambda block: 1e3 * percentile([s.latency_s for s in block.samples], percent)


def ttft_ms(percent: float) -> Callable[[Block], float]:
    """Return the figure: this percentile of the time to the first token, in ms."""
    return lambda block: 1e3 * percentile([s.ttft_s for s in block.samples], percent)


def compare(
    measured: Measured,
    measure: str,
    figure: str,
    of: Callable[[Block], float],
    arms: tuple[str, str],
    comparison: str,
) -> Row:
    """Return one figure of two arms, compared repeat by repeat."""
    ours, theirs = ([of(block) for block in measured.blocks[measure][arm]] for arm in arms)
    pair_up = paired_differences if comparison == "added" else paired_ratios
    return Row(
        measure, figure, spread(ours), spread(theirs), spread(pair_up(ours, theirs)), comparison
    )


def rows(measured: Measured, arms: Arms) -> list[Row]:
    """Return every comparison."""
    pair, found = arms.pair, []
    for measure in (IDLE_STREAM, CONCURRENT):
        for percent in (50, 99):
            name = f"first token p{percent}, ms"
            found.append(compare(measured, measure, name, ttft_ms(percent), pair, "added"))
    for percent in (50, 99):
        name = f"latency p{percent}, ms"
        found.append(compare(measured, IDLE_UNARY, name, latency_ms(percent), pair, "added"))
    for measure, two in (
        (SATURATED_UNARY, pair),
        (SATURATED_STREAM, pair),
        (CHUNKS, arms.chunk_pair),
    ):
        found.append(compare(measured, measure, "tokens/s", _rate, two, "ratio"))
        found.append(compare(measured, measure, "CPU ms a call", _cpu, two, "ratio"))
    found.append(compare(measured, CHUNKS, "chunks a call", _chunks, arms.chunk_pair, "ratio"))
    return found


def metrics_rows(measured: Measured, pair: tuple[str, str]) -> list[Row]:
    """Return what metrics cost: with them and without."""
    return [
        compare(measured, METRICS, figure, of, pair, "ratio")
        for figure, of in (("CPU ms a call", _cpu), ("tokens/s", _rate))
    ]


def metrics_verdict(found: Sequence[Row]) -> Verdict:
    """Return whether metrics cost as little CPU as they may."""
    ratio = _row(found, METRICS, "CPU ms a call").compared
    target = f"[fake] {METRICS}: CPU <= {_MOST_CPU_OF_METRICS:g}x"
    return Verdict(target, ratio.median <= _MOST_CPU_OF_METRICS, f"{ratio.format(3)}x")


def verdicts(engine: str, found: Sequence[Row]) -> list[Verdict]:
    """Return one verdict for each target."""
    least = _LEAST_THROUGHPUT[engine]
    judged = []
    for measure in (IDLE_STREAM, CONCURRENT):
        added = _row(found, measure, "first token p50, ms").compared
        target = f"[{engine}] {measure}: first token added at p50 <= {_MOST_ADDED_TTFT_MS:g} ms"
        met = added.median <= _MOST_ADDED_TTFT_MS
        judged.append(Verdict(target, met, f"{added.format(1)} ms"))
    ratio = _row(found, SATURATED_UNARY, "tokens/s").compared
    target = f"[{engine}] {SATURATED_UNARY}: throughput >= {least:g}x"
    judged.append(Verdict(target, ratio.median >= least, f"{ratio.format(3)}x"))
    return judged


def table(found: Sequence[Row]) -> str:
    """Return the rows as text: median over the repeats (least to greatest)."""
    lines = [("measure", "figure", "with", "without", "compared")]
    for row in found:
        digits = 3 if row.comparison == "ratio" else 1
        mark = "x" if row.comparison == "ratio" else " added"
        cells = (
            row.measure,
            row.figure,
            row.ours.format(1),
            row.theirs.format(1),
            row.compared.format(digits) + mark,
        )
        lines.append(cells)
    return text_table(lines)


def cpu_table(measured: Measured) -> str:
    """Return where the CPU time of a call goes: ms, median over the repeats, by role."""
    lines = [f"{'CPU ms a call':44}" + "".join(f"{role:>10}" for role in _CPU_ROLES)]
    for measure in (CONCURRENT, SATURATED_UNARY, SATURATED_STREAM, CHUNKS, METRICS):
        for arm, blocks in measured.blocks.get(measure, {}).items():
            cells = []
            for role in _CPU_ROLES:
                ms = spread([block.cpu_ms.get(role, 0.0) for block in blocks]).median
                cells.append(f"{ms:10.1f}")
            lines.append(f"{f'{measure}, {arm}':44}" + "".join(cells))
    return "\n".join(lines)


def document(
    measured: Measured, found: Sequence[Row], judged: Sequence[Verdict]
) -> Mapping[str, Any]:
    """Return everything as JSON: comparisons, verdicts, and every sample."""
    return {
        "comparisons": [asdict(row) for row in found],
        "verdicts": [asdict(verdict) for verdict in judged],
        "blocks": {
            measure: {arm: [_block(block) for block in blocks] for arm, blocks in arms.items()}
            for measure, arms in measured.blocks.items()
        },
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "tokens_per_s": block.tokens_per_s,
        "cpu_ms_a_call": block.cpu_ms,
        "ttft_ms": [round(1e3 * sample.ttft_s, 3) for sample in block.samples],
        "latency_ms": [round(1e3 * sample.latency_s, 3) for sample in block.samples],
        "output_tokens": [sample.output_tokens for sample in block.samples],
        "chunks": [sample.chunks for sample in block.samples],
    }


def _rate(block: Block) -> float:
    if block.tokens_per_s is None:
        raise ValueError("the load did not saturate the engines")
    return block.tokens_per_s


def _cpu(block: Block) -> float:
    return block.cpu_ms_per_call


def _chunks(block: Block) -> float:
    return sum(sample.chunks for sample in block.samples) / len(block.samples)


def _row(found: Sequence[Row], measure: str, figure: str) -> Row:
    return next(row for row in found if (row.measure, row.figure) == (measure, figure))
