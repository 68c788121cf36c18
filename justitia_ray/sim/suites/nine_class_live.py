"""The load of scripts/bench_live as a workload file: the paper's mixed suite for a tiny model.

Prompts have the planned length; `planned.planned_application` takes measured ones.
"""

import random

from justitia_ray.sim.suites.arrivals import arrival_times
from justitia_ray.sim.suites.nine_class import parse_mix
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.planned import planned_application
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.workloads.nine_class_load import (
    SC_SAMPLES,
    WORDS_PER_TINY_TOKEN,
    NineClassLoad,
    nine_class_plan,
)

DEFAULT_COUNT = 100
"""One deck: exactly the mix."""
DEFAULT_GAP_S = 1.0


def live_load(options: SuiteOptions) -> NineClassLoad:
    """Return the load that the suite's options describe, to be played.

    Raises:
        ConfigError: If a value is out of range, or inputs or arrivals cannot be loaded.
    """
    count = options.count or DEFAULT_COUNT
    arrivals = arrival_times(
        options.arrivals or ("poisson" if options.data_dir is None else "mooncake"),
        count,
        options.window_s or DEFAULT_GAP_S * count,
        random.Random(f"{options.seed}/arrivals"),
        options.data_dir,
    )
    mix = parse_mix(options.mix or "paper")
    tenants = options.tenants or 1
    return nine_class_plan(
        options.data_dir,
        options.seed,
        count,
        arrivals=arrivals,
        samples=options.sc_samples or SC_SAMPLES,
        mix=mix,
        tenants=["default"] if tenants == 1 else [f"t{number}" for number in range(tenants)],
    )


def _build(options: SuiteOptions) -> list[WorkloadApplication]:
    return [
        planned_application(
            planned, f"live-{planned.number:03d}", words_per_token=WORDS_PER_TINY_TOKEN
        )
        for planned in live_load(options).applications
    ]


SUITE = Suite(
    "nine-class as scripts/bench_live plays it, for a context of 2,048 tokens",
    _build,
    ("count", "window_s", "arrivals", "mix", "tenants", "sc_samples"),
)
