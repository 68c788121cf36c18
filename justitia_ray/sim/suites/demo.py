"""The load of scripts/demo as a workload file: to be simulated, and replayed on the same service.

Prompts have the planned length. The demo's agents write theirs in words, of which a tokenizer makes
more or fewer tokens.
"""

from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.workloads.demo_load import demo_load
from justitia_ray.workloads.lengths import WORDS_PER_TOKEN
from justitia_ray.workloads.load_plan import PlannedApplication


def _build(options: SuiteOptions) -> list[WorkloadApplication]:
    load = demo_load(options.seed, options.data_dir, count=options.count, window_s=options.window_s)
    return [_application(planned) for planned in load.applications]


def _application(planned: PlannedApplication) -> WorkloadApplication:
    inferences: list[WorkloadInference] = []
    before: tuple[str, ...] = ()
    for name, stage in planned.lengths.stages.items():
        calls = [
            WorkloadInference(
                f"{name}/{index}",
                max(1, round(call.prompt_words / WORDS_PER_TOKEN)),
                call.output_tokens,
                before,
                stage.gap_s,
            )
            for index, call in enumerate(stage.calls)
        ]
        inferences += calls
        before = tuple(call.inference_id for call in calls)
    return WorkloadApplication(
        f"demo-{planned.number:03d}",
        planned.application_class,
        planned.arrived_at_s,
        tuple(inferences),
        planned.tenant,
        input=planned.text,
    )


SUITE = Suite(
    "the load of scripts/demo: KBQAV, SC and MRS for a context of 2,048 tokens",
    _build,
    takes=("count", "window_s"),
)
