"""The load of scripts/demo as a workload file: to be simulated, and replayed on the same service.

Prompts have the planned length. The demo's agents write theirs in words, of which a tokenizer makes
more or fewer tokens.
"""

from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.planned import planned_application
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.workloads.demo_load import demo_load


def _build(options: SuiteOptions) -> list[WorkloadApplication]:
    load = demo_load(options.seed, options.data_dir, count=options.count, window_s=options.window_s)
    return [
        planned_application(planned, f"demo-{planned.number:03d}") for planned in load.applications
    ]


SUITE = Suite(
    "the load of scripts/demo: KBQAV, SC and MRS for a context of 2,048 tokens",
    _build,
    takes=("count", "window_s"),
)
