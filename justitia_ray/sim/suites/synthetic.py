"""Workloads of this project's own: a tenant that splits its application, agents that call tools.

- gaming: three tenants submit 100 inferences each at the same time: two as one application,
  `splitter` as 100 applications of one inference (`gaming`), or like the others (`gaming-unsplit`).
  All inferences have equal lengths. Under fairness by application the splitter's last piece ends
  sooner than its one application would have; by tenant it must not.
- `prefix-loops`: agents that call a tool between turns, with prompts that repeat all earlier turns;
  gaps are short and prompts long, so that an engine which keeps the common prefix has little left
  to compute.
- `tool-gaps`: gaps are long compared with a turn, so that an application is idle for most of its
  duration.
"""

import random

from justitia_ray.sim.suites.application_runs import looped_run
from justitia_ray.sim.suites.measured_classes import Loop, Spread, exactly
from justitia_ray.sim.suites.options import Suite, SuiteOptions, suite_arrivals
from justitia_ray.sim.suites.recorded import inferences_of
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

PIECES = 100
HONEST_TENANTS = ("honest1", "honest2")
SPLITTER = "splitter"
PROMPT_TOKENS = 470
OUTPUT_TOKENS = 161
"""Output tokens of a chunk of a map-reduce summary; the lengths are recorded medians."""


def _tenants_suite(about: str, *, split: bool) -> Suite:
    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        """Return the tenants' applications; the seed sets their order of arrival."""
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


GAMING = _tenants_suite(
    "two tenants with one application each, a third splits its own into 100", split=True
)
GAMING_UNSPLIT = _tenants_suite("the same, but nobody splits", split=False)


DEFAULT_COUNT = 100
DEFAULT_GAP_S = 3.0
"""Mean seconds between arrivals of applications."""


_PREFIX = Loop(
    "turn",
    turns=Spread(15, 10, 22, 30),
    first_prompt_tokens=Spread(1682, 1408, 1891, 1893),
    first_output_tokens=Spread(60, 20, 150, 300),
    later_output_tokens=Spread(60, 20, 150, 300),
    observation_tokens=Spread(60, 20, 150, 400),
    gap_s=exactly(0.2),
)
"""Recorded turns and first prompt of an agent in a household game, with longer thoughts."""
_GAPS = Loop(
    "turn",
    turns=Spread(5, 3, 8, 12),
    first_prompt_tokens=Spread(500, 300, 900, 1500),
    first_output_tokens=Spread(80, 40, 180, 400),
    later_output_tokens=Spread(80, 40, 180, 400),
    observation_tokens=Spread(150, 50, 400, 800),
    gap_s=Spread(20, 8, 60, 180),
)
"""Assumed seconds between turns: turns take a few seconds, tools from 8 s to a minute."""


def _agent_loops_suite(about: str, application_class: str, loop: Loop) -> Suite:
    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        count = options.count or DEFAULT_COUNT
        arrivals = suite_arrivals(options, count, DEFAULT_GAP_S, traced=False)
        return [
            WorkloadApplication(
                f"a{number}",
                application_class,
                arrived_at_s,
                inferences_of(looped_run(loop, random.Random(f"{options.seed}/agent/{number}"))),
            )
            for number, arrived_at_s in enumerate(arrivals)
        ]

    return Suite(about, build, ("count", "window_s", "arrivals"))


PREFIX_LOOPS = _agent_loops_suite(
    "agent loops whose prompts grow by all that was said", "loop", _PREFIX
)
TOOL_GAPS = _agent_loops_suite("agents that wait for tools most of the time", "tool-user", _GAPS)
