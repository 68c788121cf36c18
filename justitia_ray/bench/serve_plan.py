"""What scripts/bench_serve measures: sizes of the loads, and the measures in their order."""

from dataclasses import dataclass

from justitia_ray.bench.load import Shape
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """The loads of one engine."""

    repeats: int
    warm_up_calls: int
    """To each arm, at the concurrency of the saturating loads; not counted."""
    idle_stream: Shape
    idle_unary: Shape
    idle_calls: int
    """To each arm and of each kind, in each repeat."""
    idle_pause_s: Seconds
    """Before each of them: idle means that nothing of the last one is left to do."""
    concurrent: Shape
    concurrency: int
    concurrent_calls: int
    most_think_s: Seconds
    """Takes concurrent callers out of step with the engine's iterations."""
    saturating_unary: Shape
    saturating_stream: Shape
    saturating_callers: int
    """More than fit into the KV memory of all engines at once."""
    saturating_calls: int


def fake_plan(repeats: int, *, quick: bool) -> Plan:
    """Return the loads for two fake engines of 7,344 tokens of KV and 30 ms an iteration.

    About 85 of the saturating calls fit at once.
    """
    return Plan(
        repeats=repeats,
        warm_up_calls=128,
        idle_stream=Shape(True, (64, 64), (2, 2)),
        idle_unary=Shape(False, (64, 64), (2, 2)),
        idle_calls=20 if quick else 60,
        idle_pause_s=0.03,
        concurrent=Shape(True, (64, 128), (64, 128)),
        concurrency=32,
        concurrent_calls=128 if quick else 256,
        most_think_s=0.1,
        saturating_unary=Shape(False, (64, 192), (64, 128)),
        saturating_stream=Shape(True, (64, 192), (64, 128)),
        saturating_callers=112,
        saturating_calls=448 if quick else 672,
    )


def vllm_plan(repeats: int, *, quick: bool) -> Plan:
    """Return the loads for one vLLM engine of 7,360 tokens of KV on the CPU.

    About 42 of the saturating calls fit at once.
    """
    return Plan(
        repeats=repeats,
        warm_up_calls=64,
        idle_stream=Shape(True, (64, 64), (2, 2)),
        idle_unary=Shape(False, (64, 64), (2, 2)),
        idle_calls=20 if quick else 60,
        idle_pause_s=0.03,
        concurrent=Shape(True, (64, 128), (64, 128)),
        concurrency=32,
        concurrent_calls=128 if quick else 256,
        most_think_s=0.1,
        saturating_unary=Shape(False, (64, 192), (64, 128)),
        saturating_stream=Shape(True, (64, 192), (64, 128)),
        saturating_callers=64,
        saturating_calls=320 if quick else 640,
    )
