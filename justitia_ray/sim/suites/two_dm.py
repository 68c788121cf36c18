"""Two document merges that arrive together (Justitia v1, Sec. III-A and Fig. 3)."""

from justitia_ray.sim.suites.application_runs import ApplicationRuns
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.self_consistency import DEFAULT_SAMPLES
from justitia_ray.sim.workload import WorkloadApplication


def build(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return them; which two runs, the seed says. The paper has 459 blocks of KV, 7,344 tokens."""
    runs = ApplicationRuns(options.seed, options.data_dir, DEFAULT_SAMPLES)
    pair = [runs.next("DM"), runs.next("DM")]
    return [
        WorkloadApplication(f"a{number}", "DM", 0.0, run.inferences, input=run.text)
        for number, run in enumerate(pair)
    ]


SUITE = Suite("two document merges that arrive together (Justitia Fig. 3)", build)
