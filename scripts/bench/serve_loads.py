"""Loads of `scripts/bench_serve`, and the settings under which they run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds
from scripts.bench.load import Shape
from scripts.bench.serve_arms import (
    DIRECT,
    FASTAPI,
    FLOOR,
    JUSTITIA,
    LITELLM,
    RAY_LLM,
    VLLM,
    Arm,
)
from scripts.bench.serve_figures import (
    ADDED_CPU,
    CALLS,
    CHUNKS,
    CPU,
    FIRST_TOKEN,
    LATENCY,
    TOKENS,
    Figure,
)


@dataclass(frozen=True, slots=True)
class Load:
    """Calls of one kind by a number of callers, sent to each of the arms."""

    name: str
    shape: Shape
    callers: int
    """Number of callers; with one, the arms are called alternately, one call at a time."""
    calls: int
    """Calls to each arm in each repeat."""
    pause_s: Seconds
    """Seconds of pause before each call; with several callers an upper limit of random pauses."""
    arms: tuple[Arm, ...]
    baseline: Arm
    """Arm that the others are compared with."""
    figures: tuple[Figure, ...]
    by_vllm: bool = False
    """Whether `vllm bench serve` sends the calls."""
    settle_s: Seconds = 0.0
    """Seconds from the last call until the CPU time is read."""

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        return (self.baseline, *self.arms)

    def __str__(self) -> str:
        callers = "one caller" if self.callers == 1 else f"{self.callers} callers"
        by = " of vllm bench serve" if self.by_vllm else ""
        return f"{self.name}: {callers}{by}, {self.calls} calls to each arm, {self.shape}"


@dataclass(frozen=True, slots=True)
class Setting:
    """Engine settings of a benchmark, with the loads that run on them."""

    name: str
    about: str
    file: Path
    replicas: int
    loads: Callable[..., tuple[Load, ...]]
    """Function that returns the loads of a full or a quick run."""
    fake: Mapping[str, Any] = field(default_factory=dict)
    """Options of the fake engine, in place of the file's."""
    warm_up_calls: int = 128
    """Number of uncounted calls that warm up each arm."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the Ray cluster."""

    def choose_loads(
        self, names: Sequence[str] | None, *, quick: bool, release: Arm | None = None
    ) -> tuple[Load, ...]:
        """Return the loads that involve the named arms, each with its baseline arm.

        Args:
            names: Names of arms; None: all.
            quick: Fewer calls.
            release: Another release of the service, to be called wherever this one is.

        Raises:
            JustitiaError: If there is no such arm.
        """
        loads = self.loads(quick=quick)
        if release is not None:
            loads = tuple(
                replace(load, arms=(*load.arms, release)) if JUSTITIA in load.arms else load
                for load in loads
            )
        if names is None:
            return loads
        known = {arm.name for load in loads for arm in load.all_arms}
        if unknown := sorted(set(names) - known):
            raise JustitiaError(
                f"--arms: {', '.join(unknown)} is no arm of {self.name}; {', '.join(sorted(known))}"
                " are allowed"
            )
        chosen = (
            replace(load, arms=tuple(arm for arm in load.arms if arm.name in names))
            for load in loads
        )
        return tuple(load for load in chosen if load.arms)


def arms_of(loads: Sequence[Load]) -> tuple[Arm, ...]:
    return tuple(dict.fromkeys(arm for load in loads for arm in load.all_arms))


def order_of(arms: Sequence[Arm], repeat: int) -> tuple[Arm, ...]:
    turn = repeat // 2 % len(arms)
    order = (*arms[turn:], *arms[:turn])
    return order[::-1] if repeat % 2 else order


IDLE_STREAM = "idle streams"
IDLE_UNARY = "idle unary calls"
CONCURRENT = "concurrent streams"
CPU_UNARY = "CPU-bound unary calls"
CPU_STREAM = "CPU-bound streams"
SATURATED_UNARY = "saturating unary calls"
SATURATED_STREAM = "saturating streams"
CHUNKS_JOINED = "saturating streams, chunks joined"
METRICS = "saturating unary calls, metrics"
ACCESS = "CPU-bound unary calls, access"
QUOTAS = "CPU-bound unary calls, quotas"
IDLE_QUOTAS = "idle unary calls, quotas"
TRACING = "CPU-bound unary calls, metrics and traces"
ENGINE_METRICS = "saturating unary calls, vLLM's metrics"
VLLM_BENCH = "vllm bench serve"

_IDLE_STREAM = Shape(True, (64, 64), (2, 2))
_IDLE_UNARY = Shape(False, (64, 64), (2, 2))
_SHORT_STREAM = Shape(True, (64, 64), (32, 32))
_CONCURRENT = Shape(True, (64, 128), (64, 128))
_SATURATED_UNARY = Shape(False, (64, 192), (64, 128))
_SATURATED_STREAM = Shape(True, (64, 192), (64, 128))
_RIVALS = (DIRECT, FASTAPI, RAY_LLM, LITELLM)

# At 30 ms an iteration, 32 streams would make 1,000 chunks a second, more than two cores carry.
_JOIN_S = 0.1
_OURS = replace(JUSTITIA, chunk_interval_s=_JOIN_S)
_THEIRS = replace(DIRECT, chunk_interval_s=_JOIN_S)
_JOINED = Arm("joined", iteration_s=0.01, chunk_interval_s=0.03)
_UNJOINED = Arm("unjoined", iteration_s=0.01)
_JOINED_30_MS = Arm("joined", chunk_interval_s=0.03)
_MEASURED = Arm("measured")
_UNMEASURED = Arm("unmeasured", metrics=False)
_ENGINE_MEASURED = Arm("engine-measured", engine_metrics=True)
_ENGINE_UNMEASURED = Arm("engine-unmeasured", engine_metrics=False)
_UNOBSERVED = Arm("unobserved", metrics=False)
_OBSERVED = Arm("observed", tracing_ratio=0.01)
_ALL_TRACED = Arm("all-traced", tracing_ratio=1.0)
_OPEN = Arm("open")
_KEYS = Arm("keys", credential="key")
_TOKENS = Arm("tokens", credential="token")
_UNLIMITED = Arm("unlimited")
_QUOTAS = Arm("quotas", quotas=("applications", "tokens", "kv_token_time"))
_COUNTED = Arm("counted", quotas=("inferences",))


def path_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return loads on engines that are never full, which measure the cost of the call path."""
    arms = (JUSTITIA, *_RIVALS)
    return (
        Load(IDLE_STREAM, _IDLE_STREAM, 1, 20 if quick else 60, 0.03, arms, FLOOR, FIRST_TOKEN),
        Load(
            CONCURRENT,
            _SHORT_STREAM,
            32,
            192 if quick else 512,
            0.1,
            arms,
            FLOOR,
            (*FIRST_TOKEN, CALLS, CPU, CHUNKS),
        ),
        Load(
            CPU_STREAM,
            _SHORT_STREAM,
            128,
            384 if quick else 512,
            0.1,
            (*arms, _JOINED_30_MS),
            FLOOR,
            (CALLS, CPU, CHUNKS),
        ),
        Load(
            CPU_UNARY,
            Shape(False, (64, 64), (4, 4)),
            64,
            512 if quick else 1_280,
            0.0,
            arms,
            FLOOR,
            (CALLS, CPU),
        ),
    )


def queue_loads(
    *,
    quick: bool,
    ours: Arm = _OURS,
    theirs: Arm = _THEIRS,
    joined: Arm = _JOINED,
    unjoined: Arm = _UNJOINED,
    callers: int = 112,
    saturating_calls: tuple[int, int] = (448, 672),
) -> tuple[Load, ...]:
    """Return loads on full engines, which measure the cost of the queue.

    Args:
        quick: Fewer calls.
        ours: With the queue.
        theirs: Without.
        joined: With the chunks of a stream joined over 30 ms.
        unjoined: With every chunk sent on as it comes.
        callers: Of the saturating loads: more than fit into the KV memory of all engines at once.
        saturating_calls: Of each of these loads, where there are fewer and otherwise.
    """
    calls = saturating_calls[0] if quick else saturating_calls[1]
    idle = 20 if quick else 60
    full = (TOKENS, CPU)
    return (
        Load(IDLE_STREAM, _IDLE_STREAM, 1, idle, 0.03, (ours,), theirs, FIRST_TOKEN),
        Load(IDLE_UNARY, _IDLE_UNARY, 1, idle, 0.03, (ours,), theirs, LATENCY),
        Load(CONCURRENT, _CONCURRENT, 32, 128 if quick else 256, 0.1, (ours,), theirs, FIRST_TOKEN),
        Load(SATURATED_UNARY, _SATURATED_UNARY, callers, calls, 0.0, (ours,), theirs, full),
        Load(SATURATED_STREAM, _SATURATED_STREAM, callers, calls, 0.0, (ours,), theirs, full),
        Load(
            CHUNKS_JOINED,
            _SATURATED_STREAM,
            callers,
            calls,
            0.0,
            (joined,),
            unjoined,
            (*full, CHUNKS),
        ),
    )


def vllm_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return loads on one vLLM engine: `queue_loads`, and loads beside vLLM's own server."""
    bench = Shape(True, (64, 64), (32, 32))
    arms = (JUSTITIA, DIRECT)
    figures = (*FIRST_TOKEN, TOKENS, CPU)
    return (
        *queue_loads(
            quick=quick,
            ours=JUSTITIA,
            theirs=DIRECT,
            joined=_JOINED_30_MS,
            unjoined=JUSTITIA,
            callers=64,
            saturating_calls=(320, 640),
        ),
        Load(f"{VLLM_BENCH}, idle", bench, 1, 16, 0.0, arms, VLLM, FIRST_TOKEN, by_vllm=True),
        Load(
            f"{VLLM_BENCH}, 32 streams",
            bench,
            32,
            128 if quick else 320,
            0.0,
            arms,
            VLLM,
            figures,
            by_vllm=True,
        ),
    )


def gpu_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return loads on one engine on a GPU, beside vLLM's own server on the same GPU."""
    arms = (JUSTITIA,)
    full = (*FIRST_TOKEN, TOKENS, CPU)
    calls = 384 if quick else 768
    return (
        Load(IDLE_STREAM, _IDLE_STREAM, 1, 20 if quick else 60, 0.03, arms, VLLM, FIRST_TOKEN),
        Load(CONCURRENT, Shape(True, (64, 64), (64, 64)), 64, calls, 0.1, arms, VLLM, full),
        Load(SATURATED_UNARY, _SATURATED_UNARY, 128, calls, 0.0, arms, VLLM, (TOKENS, CPU)),
        Load(SATURATED_STREAM, _SATURATED_STREAM, 128, calls, 0.0, arms, VLLM, full),
    )


_REPORT_S = 1.0
"""Seconds between Ray's metric reports; at the default of 10 s, arms would pay for each other."""
_OFTEN = {"RAY_metrics_report_interval_ms": str(round(1e3 * _REPORT_S))}
_SETTLE_S = 1.5 * _REPORT_S


def metrics_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return the load that measures the cost of metrics."""
    return (
        Load(
            METRICS,
            _SATURATED_UNARY,
            112,
            448 if quick else 672,
            0.0,
            (_MEASURED,),
            _UNMEASURED,
            (CPU, TOKENS),
            settle_s=_SETTLE_S,
        ),
    )


def engine_metrics_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return the load that measures the cost of vLLM's own metrics in Ray's exporter."""
    return (
        Load(
            ENGINE_METRICS,
            _SATURATED_UNARY,
            64,
            192 if quick else 320,
            0.0,
            (_ENGINE_MEASURED,),
            _ENGINE_UNMEASURED,
            (CPU, TOKENS),
        ),
    )


def tracing_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return the load that measures the combined cost of metrics and traces."""
    return (
        Load(
            TRACING,
            Shape(False, (64, 64), (4, 4)),
            64,
            4_096 if quick else 8_192,  # CPU time of a process is read in steps of 10 ms.
            0.0,
            (_OBSERVED, _ALL_TRACED),
            _UNOBSERVED,
            (CALLS, CPU),
            settle_s=_SETTLE_S,
        ),
    )


def access_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return the load that measures the cost of credentials."""
    return (
        Load(
            ACCESS,
            Shape(False, (64, 64), (4, 4)),
            64,
            512 if quick else 1_280,
            0.0,
            (_KEYS, _TOKENS),
            _OPEN,
            (CALLS, ADDED_CPU),
        ),
    )


def quota_loads(*, quick: bool) -> tuple[Load, ...]:
    """Return the loads that measure the cost of quotas: CPU, and the wait for the accounts."""
    arms, calls = (_QUOTAS, _COUNTED), 512 if quick else 1_280
    shape = Shape(False, (64, 64), (4, 4))
    few = 20 if quick else 60
    return (
        Load(IDLE_QUOTAS, _IDLE_UNARY, 1, few, 0.03, arms, _UNLIMITED, LATENCY),
        Load(QUOTAS, shape, 64, calls, 0.0, arms, _UNLIMITED, (CALLS, ADDED_CPU, *LATENCY)),
    )


_FREE_ENGINE = {"iteration_s": 0.002, "kv_tokens": 1_000_000, "prefill_s_per_token": 0.0}
_LOCAL_FAKE = Path("deployments/local-fake.yaml")
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "path",
            "fake engines of 2 ms an iteration that are never full",
            _LOCAL_FAKE,
            2,
            path_loads,
            _FREE_ENGINE,
        ),
        Setting(
            "fake",
            "fake engines of 7,344 tokens of KV and 30 ms an iteration, chunks joined over 100 ms"
            " with the queue and without; joined and unjoined: 10 ms, over 30 ms or as they come",
            _LOCAL_FAKE,
            2,
            queue_loads,
        ),
        Setting(
            "vllm",
            "one vLLM engine of 7,360 tokens of KV on the CPU; chunks joined: over 30 ms",
            Path("deployments/local-cpu.yaml"),
            1,
            vllm_loads,
            warm_up_calls=64,
        ),
        Setting(
            "gpu",
            "one vLLM engine of the shape of Llama 2 7B and 10,000 tokens of KV, all on one GPU",
            Path("deployments/gpu-shape.yaml"),
            1,
            gpu_loads,
            warm_up_calls=64,
        ),
        Setting(
            "metrics",
            "the fake engines, with metrics and with `metrics.enabled: false`",
            _LOCAL_FAKE,
            2,
            metrics_loads,
            environment=_OFTEN,
        ),
        Setting(
            "engine-metrics",
            "the vLLM engine of `vllm`, with its own metrics in Ray's exporter and without",
            Path("deployments/local-cpu.yaml"),
            1,
            engine_metrics_loads,
            warm_up_calls=64,
        ),
        Setting(
            "tracing",
            "the fake engines of `path`, with metrics and one application in a hundred traced, with"
            " all of them traced, and without both",
            _LOCAL_FAKE,
            2,
            tracing_loads,
            _FREE_ENGINE,
            environment=_OFTEN,
        ),
        Setting(
            "access",
            "the fake engines of `path`, with API keys, with cached JSON Web Tokens, and open",
            _LOCAL_FAKE,
            2,
            access_loads,
            _FREE_ENGINE,
        ),
        Setting(
            "quotas",
            "the fake engines of `path`, with quotas of applications, tokens and KV token-time,"
            " with one of inferences (counted), and without",
            _LOCAL_FAKE,
            2,
            quota_loads,
            _FREE_ENGINE,
        ),
    )
}
