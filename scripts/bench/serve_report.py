"""Report of `scripts/bench_serve`: paired comparison of arms, verdicts, CPU by role."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from justitia_ray.cli.text_table import text_table
from scripts.bench.serve import Measured
from scripts.bench.serve_arms import JUSTITIA
from scripts.bench.serve_figures import (
    ADDED_CPU,
    CALLS,
    CPU,
    FIRST_TOKEN_P50,
    TOKENS,
    Block,
    Figure,
)
from scripts.bench.serve_loads import (
    ACCESS,
    CONCURRENT,
    CPU_STREAM,
    CPU_UNARY,
    ENGINE_METRICS,
    IDLE_STREAM,
    METRICS,
    SATURATED_UNARY,
    TRACING,
    VLLM_BENCH,
    Load,
)
from scripts.bench.statistics import (
    Spread,
    Verdict,
    paired_differences,
    paired_ratios,
    spread,
)

_FEW = 10.0
"""Threshold below which figures are printed with two decimals."""
_ROLES = ("proxy", "ingress", "scheduler", "predictor", "replica", "engine", "ray", "client")


@dataclass(frozen=True, slots=True)
class Row:
    """Figure of one arm, beside the same figure of another arm."""

    load: str
    figure: str
    arm: str
    value: Spread
    baseline: str
    baseline_value: Spread
    compared: Spread
    """Spread of the paired comparisons over the repeats."""
    comparison: str
    """Kind of comparison: `added` (a difference) or `ratio`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Bound on an arm's figure, or on its comparison with another arm."""

    load: str
    figure: Figure
    bound: float
    """Limit of the figure: an upper one, or a lower one where larger is better."""
    against: str | None = None
    """Arm to compare with; None if the bound applies to the figure itself."""
    arm: str = "justitia"

    def judge(self, measured: Measured) -> Verdict | None:
        blocks = measured.blocks.get(self.load, {})
        if self.arm not in blocks or (self.against is not None and self.against not in blocks):
            return None
        digits = 1 if self.figure.comparison == "added" or self.against is None else 3
        if self.against is None:
            found = spread([self.figure.of(block) for block in blocks[self.arm]])
            of, unit = "", ""
        else:
            found = compare(measured, self.load, self.figure, self.arm, self.against).compared
            of = f" {'over' if self.figure.comparison == 'added' else 'of'} {self.against}"
            unit = "" if self.figure.comparison == "added" else "x"
        less = self.figure.is_better_when_less
        met = found.median <= self.bound if less else found.median >= self.bound
        sign = "<=" if less else ">="
        of_arm = "" if self.arm == JUSTITIA.name else f", {self.arm}"
        target = f"{self.load}{of_arm}: {self.figure.name} {sign} {self.bound:g}{unit}{of}"
        return Verdict(target, met, f"{found.format(digits)}{unit}")


def _targets_over_competitors(*rivals: str) -> tuple[Target, ...]:
    """Return the targets against other servers: CPU time per call and time to first token."""
    return tuple(
        target
        for rival in rivals
        for target in (
            Target(CPU_UNARY, CPU, 1.0, rival),
            Target(CPU_STREAM, CPU, 1.0, rival),
            Target(IDLE_STREAM, FIRST_TOKEN_P50, 0.0, rival),
            Target(CONCURRENT, FIRST_TOKEN_P50, 0.0, rival),
        )
    )


def _queue_targets(throughput: float, against: str = "direct") -> tuple[Target, ...]:
    return (
        Target(IDLE_STREAM, FIRST_TOKEN_P50, 5.0, against),
        Target(CONCURRENT, FIRST_TOKEN_P50, 5.0, against),
        Target(SATURATED_UNARY, TOKENS, throughput, against),
    )


TARGETS: Mapping[str, tuple[Target, ...]] = {
    "path": (
        Target(CPU_UNARY, CPU, 2.5),
        Target(CPU_UNARY, CALLS, 600.0),
        Target(IDLE_STREAM, FIRST_TOKEN_P50, 3.5, "floor"),
        Target(CONCURRENT, FIRST_TOKEN_P50, 5.0, "floor"),
        *_targets_over_competitors("direct", "fastapi", "ray-llm", "litellm", "release"),
        Target(CPU_STREAM, CPU, 1.0, "release", "joined"),
    ),
    "fake": _queue_targets(0.97),
    "vllm": (
        *_queue_targets(0.90),
        Target(f"{VLLM_BENCH}, idle", FIRST_TOKEN_P50, 5.0, "vllm"),
        Target(f"{VLLM_BENCH}, 32 streams", TOKENS, 0.6, "vllm"),
    ),
    "gpu": _queue_targets(0.97, "vllm"),
    "metrics": (Target(METRICS, CPU, 1.03, "unmeasured", "measured"),),
    "engine-metrics": (Target(ENGINE_METRICS, CPU, 1.03, "engine-unmeasured", "engine-measured"),),
    "tracing": (Target(TRACING, CPU, 1.03, "unobserved", "observed"),),
    "access": (
        Target(ACCESS, ADDED_CPU, 0.2, "open", "keys"),
        Target(ACCESS, ADDED_CPU, 0.5, "open", "tokens"),
    ),
    "quotas": (),
}


def compare(measured: Measured, load: str, figure: Figure, arm: str, baseline: str) -> Row:
    """Return one figure of two arms, compared repeat by repeat."""
    ours, theirs = (
        [figure.of(block) for block in measured.blocks[load][name]] for name in (arm, baseline)
    )
    pair_up = paired_differences if figure.comparison == "added" else paired_ratios
    return Row(
        load,
        figure.name,
        arm,
        spread(ours),
        baseline,
        spread(theirs),
        spread(pair_up(ours, theirs)),
        figure.comparison,
    )


def rows(measured: Measured, loads: Sequence[Load]) -> list[Row]:
    return [
        compare(measured, load.name, figure, arm.name, load.baseline.name)
        for load in loads
        for figure in load.figures
        for arm in load.arms
    ]


def verdicts(setting: str, measured: Measured) -> list[Verdict]:
    """Return a verdict for each target of a setting whose arms were measured."""
    judged = [target.judge(measured) for target in TARGETS[setting]]
    return [verdict for verdict in judged if verdict is not None]


def table(found: Sequence[Row]) -> str:
    """Return the rows as text: median over the repeats (minimum to maximum)."""
    lines = [("load", "figure", "arm", "", "baseline", "", "compared")]
    for row in found:
        digits = 3 if row.comparison == "ratio" else 1
        mark = "x" if row.comparison == "ratio" else " added"
        exact = 2 if row.value.median < _FEW else 1
        values = (row.value.format(exact), row.baseline, row.baseline_value.format(exact))
        lines.append((row.load, row.figure, row.arm, *values, row.compared.format(digits) + mark))
    return text_table(lines)


def cpu_table(measured: Measured) -> str:
    """Return a table of the CPU ms per call by role: medians, idle use subtracted."""
    lines: list[tuple[str, ...]] = [("CPU ms a call", "arm", *_ROLES)]
    for load, arms in measured.blocks.items():
        for arm, blocks in arms.items():
            if any(block.cpu_ms for block in blocks):
                lines.append((load, arm, *(_cpu_of_role(blocks, role) for role in _ROLES)))
    return text_table(lines)


def idle_cpu_table(measured: Measured) -> str:
    """Return a table of the CPU use of idle arms: ms per second, median, by role.

    The row without an arm is the processes shared by all arms.
    """
    arms = sorted({arm for burn in measured.burn for arm, _ in burn})
    roles = _ROLES[:-1]
    lines: list[tuple[str, ...]] = [("idle burn, ms/s", *roles)]
    for arm in arms:
        cells = (spread([burn.get((arm, r), 0.0) for burn in measured.burn]).median for r in roles)
        lines.append((arm or "shared by all", *(f"{1e3 * cell:.1f}" for cell in cells)))
    return text_table(lines)


def document(
    measured: Measured, found: Sequence[Row], judged: Sequence[Verdict]
) -> Mapping[str, Any]:
    return {
        "comparisons": [asdict(row) for row in found],
        "verdicts": [asdict(verdict) for verdict in judged],
        "burn_ms_a_second": [
            {f"{arm}/{role}": 1e3 * cpu_s for (arm, role), cpu_s in burn.items()}
            for burn in measured.burn
        ],
        "blocks": {
            load: {
                arm: [_block_document(block) for block in blocks] for arm, blocks in arms.items()
            }
            for load, arms in measured.blocks.items()
        },
    }


def _cpu_of_role(blocks: Sequence[Block], role: str) -> str:
    return f"{spread([block.cpu_ms.get(role, 0.0) for block in blocks]).median:.2f}"


def _block_document(block: Block) -> dict[str, Any]:
    return {
        "callers": block.callers,
        "cpu_ms_a_call": block.cpu_ms,
        "ttft_ms": [round(1e3 * sample.ttft_s, 3) for sample in block.samples],
        "latency_ms": [round(1e3 * sample.latency_s, 3) for sample in block.samples],
        "ended_at_s": [round(sample.ended_at, 6) for sample in block.samples],
        "output_tokens": [sample.output_tokens for sample in block.samples],
        "chunks": [sample.chunks for sample in block.samples],
    }
