"""An elephant among mice (Justitia v1, Sec. V-C and Fig. 11; v2, Fig. 9).

A map-reduce summary arrives first, then a small application each second, drawn from KBQAV, CC and
ALFWI. Under SRJF the elephant waits for as long as mice come.
"""

import random

from justitia_ray.sim.suites.application_runs import ApplicationRuns
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.self_consistency import DEFAULT_SAMPLES
from justitia_ray.sim.workload import WorkloadApplication

ELEPHANT = "MRS"
MICE = ("KBQAV", "CC", "ALFWI")
DEFAULT_COUNT = 301
MOUSE_EVERY_S = 1.0


def build(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return the elephant, `a0`, and count - 1 mice; a larger count begins with the same ones.

    A window spreads the mice evenly over it; by default they come one a second.
    """
    mice = (options.count or DEFAULT_COUNT) - 1
    every_s = options.window_s / max(1, mice) if options.window_s else MOUSE_EVERY_S
    runs = ApplicationRuns(options.seed, options.data_dir, DEFAULT_SAMPLES)
    rng = random.Random(f"{options.seed}/classes")
    applications = []
    for number, name in enumerate([ELEPHANT, *(rng.choice(MICE) for _ in range(mice))]):
        run = runs.next(name)
        applications.append(
            WorkloadApplication(
                f"a{number}", name, round(number * every_s, 6), run.inferences, input=run.text
            )
        )
    return applications


SUITE = Suite(
    "a map-reduce summary, then a small application a second (Justitia Fig. 11)",
    build,
    ("count", "window_s"),
)
