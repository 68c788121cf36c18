"""A tenant that splits one application into many, to have a share for each of them.

Three tenants submit 100 inferences each at the same instant: two as one application, `splitter` as
100 applications of one inference (`gaming`), or like the others (`gaming-unsplit`). All inferences
are as long. Under fairness by application the splitter's last piece ends sooner than its one
application would have; by tenant it must not.
"""

import random

from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

PIECES = 100
HONEST_TENANTS = ("honest1", "honest2")
SPLITTER = "splitter"
PROMPT_TOKENS = 470
OUTPUT_TOKENS = 161
"""A chunk of a map-reduce summary, at its recorded medians."""


def _suite(about: str, *, split: bool) -> Suite:
    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        """Return them, `count` inferences of each; the seed says in which order they arrive."""
        inferences = tuple(
            WorkloadInference(str(number), PROMPT_TOKENS, OUTPUT_TOKENS)
            for number in range(options.count or PIECES)
        )
        whole = HONEST_TENANTS if split else (*HONEST_TENANTS, SPLITTER)
        applications = [
            WorkloadApplication(tenant, "summary", 0.0, inferences, tenant=tenant)
            for tenant in whole
        ]
        if split:
            applications += [
                WorkloadApplication(f"piece{number}", "summary", 0.0, (piece,), tenant=SPLITTER)
                for number, piece in enumerate(inferences)
            ]
        random.Random(f"{options.seed}/order").shuffle(applications)
        return applications

    return Suite(about, build, ("count",))


GAMING = _suite(
    "two tenants with one application each, a third splits its own into 100", split=True
)
GAMING_UNSPLIT = _suite("the same, but nobody splits", split=False)
