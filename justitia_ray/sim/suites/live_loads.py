"""Live loads of scripts/demo and scripts/bench_live, for agents and as workload files.

A plan has two forms. Agents play the planned applications; a workload file has them as inferences
with dependencies, to be simulated, or replayed on the same service. Prompts in a file have the
planned lengths; agents write prompts in words, which a tokenizer may turn into more or fewer
tokens.

The demo has three classes, cut to a tiny model with a context of 2,048 tokens. bench_live has nine,
in the mix of the Justitia paper (v1, Sec. V-A): 72 % small, 26 % medium, 2 % large. Lengths are
those of recorded runs, or generated from their statistics, all multiplied by one factor, so that
the measured proportions are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from justitia_ray.sim.suites.application_runs import DEFAULT_SAMPLES
from justitia_ray.sim.suites.load_plan import (
    WORDS_PER_TOKEN,
    LengthPlan,
    PlannedApplication,
    plan_load,
)
from justitia_ray.sim.suites.options import Suite, SuiteOptions, suite_arrivals
from justitia_ray.sim.suites.papers import MIXES, parse_mix
from justitia_ray.sim.suites.recorded import inferences_of
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds, Tokens

_GAP_SCALE = 0.3  # Tools are shortened like the texts, which a tiny model needs short.
_MAX_OUTPUT_TOKENS = 600  # The longest 3 % of the outputs are cut.
_TENANTS = ("team-a", "team-b", "team-c")
_DEMO_MIX = {"FV": 0.5, "KBQAV": 0.35, "MRS": 0.15}
"""Shares of the application classes in the demo's load: many small ones and a few large ones.

Short ReAct loops (FV) and fact checks (KBQAV), with a few summaries of long texts (MRS) that cost
seven tenths of all KV token-time.

Before release 0.2.0 the classes were KBQAV and SC, whose applications cost nearly the same (0.32
and 0.39 million token·iterations on average), so that one class could gain only at the other's
expense.
"""
_DEMO_WARM_UP = {"FV": 4, "KBQAV": 3, "MRS": 2}


@dataclass(frozen=True, slots=True)
class DemoLoad:
    """Load of scripts/demo, after a warm-up from which the predictor learns."""

    warm_up: list[PlannedApplication]
    applications: list[PlannedApplication]
    length_scale: float
    """Factor on the measured lengths of prompts and outputs."""


def demo_load(
    seed: int,
    data_dir: Path | None,
    *,
    quick: bool = False,
    count: int | None = None,
    window_s: float | None = None,
) -> DemoLoad:
    """Draw the demo's load; equal arguments give equal loads.

    Args:
        seed: Seed of all draws.
        data_dir: Directory with recorded runs and inputs; None: they are generated.
        quick: Fewer and shorter applications.
        count: Number of applications; None: the demo's.
        window_s: Mean time in which the applications arrive; None: at the demo's rate.

    Raises:
        ConfigError: If inputs cannot be loaded.
    """
    plays, rate_per_s, length_scale = (40, 4.4, 0.75) if quick else (72, 5.5, 1.0)
    plays = plays if count is None else count
    lengths = LengthPlan(
        seed=seed,
        length_scale=length_scale,
        gap_scale=_GAP_SCALE,
        max_output_tokens=_MAX_OUTPUT_TOKENS,
        data_dir=data_dir,
    )
    applications = plan_load(
        lengths,
        count=plays,
        rate_per_s=rate_per_s if window_s is None else plays / window_s,
        seed=seed,
        mix=_DEMO_MIX,
        tenants=_TENANTS,
    )
    warm_up = [
        application
        for name, size in _DEMO_WARM_UP.items()
        for application in plan_load(
            lengths, count=size, rate_per_s=4.0, seed=seed + 1000, mix={name: 1.0}
        )
    ]
    return DemoLoad(warm_up, applications, length_scale)


WORDS_PER_TINY_TOKEN = 0.43
"""Words of a prompt per token of the tiny model, measured by `tests/dry_run.py`."""

CONTEXT_TOKENS: Tokens = 2_048
LONGEST_TOKENS: Tokens = 8_192
"""Context length into which the longest recorded inference fits (class DM: 7,519 tokens)."""
_FITTING = CONTEXT_TOKENS / LONGEST_TOKENS
_LONGEST_OUTPUT: Tokens = CONTEXT_TOKENS // 3
_MARGIN_TOKENS: Tokens = 64
"""Tokens reserved for the chat template, and for words with more tokens than average."""
_TOKENS_PER_WORD_AT_MOST = 3.4


def nine_class_plan(
    data_dir: Path | None,
    seed: int,
    count: int,
    *,
    window_s: Seconds = 1.0,
    arrivals: Sequence[Seconds] | None = None,
    length_scale: float = _FITTING,
    gap_scale: float = _FITTING,
    samples: int = DEFAULT_SAMPLES,
    most_fan_out: int | None = None,
    mix: Mapping[str, int] = MIXES["paper"],
    tenants: Sequence[str] = ("default",),
) -> list[PlannedApplication]:
    """Draw the nine-class load for the tiny model; equal arguments give equal loads.

    Classes, inputs, lengths, arrivals and tenants are drawn independently: a change to one leaves
    the others.

    Args:
        data_dir: Directory with recorded runs and inputs; None: they are generated.
        seed: Seed of all draws.
        count: Number of applications. Each class has exactly its share of every hundred.
        window_s: Mean time in which the applications arrive, as a Poisson process.
        arrivals: Arrival times, instead of a window; see `suite_arrivals` for those of a recorded
            trace.
        length_scale: Factor on all lengths; by default the longest recorded inference just fits the
            context. Longer inferences are cut.
        gap_scale: Factor on tool time. If it equals the factor on the lengths, tool time keeps
            about its share of an application's duration on the same engine.
        samples: Number of samples of an SC vote.
        most_fan_out: Largest number of parallel calls of a stage; see `LengthPlan`.
        mix: Number of applications of each class in a deck.
        tenants: Tenants of the applications, with equal probability.

    Raises:
        ConfigError: If inputs cannot be loaded.
    """
    prompt_tokens = CONTEXT_TOKENS - _LONGEST_OUTPUT - _MARGIN_TOKENS
    lengths = LengthPlan(
        seed=seed,
        length_scale=length_scale,
        gap_scale=gap_scale,
        max_prompt_words=int(prompt_tokens / _TOKENS_PER_WORD_AT_MOST),
        max_output_tokens=_LONGEST_OUTPUT,
        words_per_token=WORDS_PER_TINY_TOKEN,
        samples=samples,
        most_fan_out=most_fan_out,
        data_dir=data_dir,
    )
    return plan_load(
        lengths,
        count=count,
        rate_per_s=count / window_s,
        seed=seed,
        mix=mix,
        tenants=tenants,
        arrivals=arrivals,
        dealt=True,
    )


def planned_application(
    planned: PlannedApplication, name: str, *, words_per_token: float = WORDS_PER_TOKEN
) -> WorkloadApplication:
    """Return a planned application with inferences named `STAGE/INDEX`.

    Args:
        planned: The application, whose lengths are steered by the plan.
        name: Id of the application.
        words_per_token: Words per token with which the plan was drawn, because prompts are planned
            in words.
    """
    return WorkloadApplication(
        name,
        planned.application_class,
        planned.arrived_at_s,
        tuple(
            replace(call, prompt_tokens=max(1, round(call.prompt_tokens / words_per_token)))
            for call in inferences_of(planned.lengths.run, named=True)
        ),
        planned.tenant,
        input=planned.text,
    )


def _build_demo(options: SuiteOptions) -> list[WorkloadApplication]:
    load = demo_load(options.seed, options.data_dir, count=options.count, window_s=options.window_s)
    return [
        planned_application(planned, f"demo-{planned.number:03d}") for planned in load.applications
    ]


DEMO = Suite(
    "the load of scripts/demo: FV, KBQAV and MRS for a context of 2,048 tokens",
    _build_demo,
    takes=("count", "window_s"),
)


LIVE_COUNT = 100
"""Number of applications of a live load, which has exactly the wanted mix of classes."""
LIVE_GAP_S = 1.0


def _build_nine_class_live(options: SuiteOptions) -> list[WorkloadApplication]:
    count, tenants = options.count or LIVE_COUNT, options.tenants or 1
    load = nine_class_plan(
        options.data_dir,
        options.seed,
        count,
        arrivals=suite_arrivals(options, count, LIVE_GAP_S),
        samples=options.sc_samples or DEFAULT_SAMPLES,
        mix=parse_mix(options.mix or "paper"),
        tenants=["default"] if tenants == 1 else [f"t{number}" for number in range(tenants)],
    )
    return [
        planned_application(
            planned, f"live-{planned.number:03d}", words_per_token=WORDS_PER_TINY_TOKEN
        )
        for planned in load
    ]


NINE_CLASS_LIVE = Suite(
    "nine-class as scripts/bench_live plays it, for a context of 2,048 tokens",
    _build_nine_class_live,
    ("count", "window_s", "arrivals", "mix", "tenants", "sc_samples"),
)
