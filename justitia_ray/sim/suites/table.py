"""The suites by name."""

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import (
    agent_loops,
    demo,
    elephant_mice,
    gaming,
    lmsys,
    nine_class,
    nine_class_live,
    two_dm,
)
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.vtc import VTC_SUITES
from justitia_ray.sim.workload import WorkloadApplication

SUITES: dict[str, Suite] = {
    "nine-class": nine_class.SUITE,
    "nine-class-live": nine_class_live.SUITE,
    "two-dm": two_dm.SUITE,
    "elephant-mice": elephant_mice.SUITE,
    **VTC_SUITES,
    "lmsys": lmsys.SUITE,
    "gaming": gaming.GAMING,
    "gaming-unsplit": gaming.GAMING_UNSPLIT,
    "prefix-loops": agent_loops.PREFIX_LOOPS,
    "tool-gaps": agent_loops.TOOL_GAPS,
    "demo": demo.SUITE,
}


def build_suite(name: str, options: SuiteOptions) -> list[WorkloadApplication]:
    """Return a suite's applications in order of arrival; the same arguments give the same.

    Raises:
        ConfigError: If there is no such suite, it does not go by an option that is set, or the data
            directory lacks what it needs.
    """
    if name not in SUITES:
        raise ConfigError(f"suite must be one of {', '.join(SUITES)}, got {name!r}")
    suite = SUITES[name]
    for option in options.given():
        if option not in suite.takes:
            raise ConfigError(
                f"suite {name} does not go by {option}; it does by "
                f"{', '.join((*suite.takes, 'seed'))}"
            )
    return suite.build(options)
