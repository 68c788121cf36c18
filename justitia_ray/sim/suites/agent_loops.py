"""Agents that call a tool between turns, each prompt being all that was said before.

`prefix-loops`: the gaps are short and the prompts long, so that an engine which keeps the common
prefix has little left to compute. `tool-gaps`: the gaps are long against a turn, so that most of an
application's life nothing of it waits or runs.
"""

import random
from dataclasses import dataclass

from justitia_ray.sim.suites.arrivals import arrival_times
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.workloads.stages import Spread, exactly

DEFAULT_COUNT = 100
DEFAULT_GAP_S = 3.0
"""Between arrivals on average."""


@dataclass(frozen=True, slots=True)
class _Agent:
    application_class: str
    turns: Spread
    first_prompt_tokens: Spread
    output_tokens: Spread
    observation_tokens: Spread
    """What the tool's answer adds to the next prompt."""
    gap_s: Spread

    def turns_of(self, rng: random.Random) -> tuple[WorkloadInference, ...]:
        turns: list[WorkloadInference] = []
        prompt_tokens = round(self.first_prompt_tokens.draw(rng))
        for number in range(max(1, round(self.turns.draw(rng)))):
            output_tokens = max(1, round(self.output_tokens.draw(rng)))
            turns.append(
                WorkloadInference(
                    str(number),
                    prompt_tokens,
                    output_tokens,
                    after=(str(number - 1),) if number else (),
                    delay_s=round(self.gap_s.draw(rng), 6) if number else 0.0,
                )
            )
            prompt_tokens += output_tokens + round(self.observation_tokens.draw(rng))
        return tuple(turns)


_PREFIX = _Agent(
    "loop",
    turns=Spread(15, 10, 22, 30),
    first_prompt_tokens=Spread(1682, 1408, 1891, 1893),
    output_tokens=Spread(60, 20, 150, 300),
    observation_tokens=Spread(60, 20, 150, 400),
    gap_s=exactly(0.2),
)
"""An ALFWorld agent's turns and first prompt as recorded, with longer thoughts."""
_GAPS = _Agent(
    "tool-user",
    turns=Spread(5, 3, 8, 12),
    first_prompt_tokens=Spread(500, 300, 900, 1500),
    output_tokens=Spread(80, 40, 180, 400),
    observation_tokens=Spread(150, 50, 400, 800),
    gap_s=Spread(20, 8, 60, 180),
)
"""Made up: turns of a few seconds, tools of 8 s to a minute, as models behind a tool took in PE."""


def _suite(about: str, agent: _Agent) -> Suite:
    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        count = options.count or DEFAULT_COUNT
        arrivals = arrival_times(
            options.arrivals or "poisson",
            count,
            options.window_s or DEFAULT_GAP_S * count,
            random.Random(f"{options.seed}/arrivals"),
            options.data_dir,
        )
        return [
            WorkloadApplication(
                f"a{number}",
                agent.application_class,
                arrived_at_s,
                agent.turns_of(random.Random(f"{options.seed}/agent/{number}")),
            )
            for number, arrived_at_s in enumerate(arrivals)
        ]

    return Suite(about, build, ("count", "window_s", "arrivals"))


PREFIX_LOOPS = _suite("agent loops whose prompts grow by all that was said", _PREFIX)
TOOL_GAPS = _suite("agents that wait for tools most of the time", _GAPS)
