"""Workloads by name: those of the papers' experiments, and some of this project."""

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.live_loads import DEMO, NINE_CLASS_LIVE
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.papers import ELEPHANT_MICE, NINE_CLASS, TWO_DM
from justitia_ray.sim.suites.synthetic import GAMING, GAMING_UNSPLIT, PREFIX_LOOPS, TOOL_GAPS
from justitia_ray.sim.suites.vtc import LMSYS, VTC_SUITES
from justitia_ray.sim.workload import WorkloadApplication

__all__ = ["SUITES", "Suite", "SuiteOptions", "build_suite"]

SUITES: dict[str, Suite] = {
    "nine-class": NINE_CLASS,
    "nine-class-live": NINE_CLASS_LIVE,
    "two-dm": TWO_DM,
    "elephant-mice": ELEPHANT_MICE,
    **VTC_SUITES,
    "lmsys": LMSYS,
    "gaming": GAMING,
    "gaming-unsplit": GAMING_UNSPLIT,
    "prefix-loops": PREFIX_LOOPS,
    "tool-gaps": TOOL_GAPS,
    "demo": DEMO,
}


def build_suite(name: str, options: SuiteOptions) -> list[WorkloadApplication]:
    """Return the applications of a workload; equal arguments give equal workloads.

    Raises:
        ConfigError: If there is no such suite, it does not support an option that is set, or the
            data directory lacks a file.
    """
    if name not in SUITES:
        raise ConfigError(f"suite must be one of {', '.join(SUITES)}, got {name!r}")
    suite = SUITES[name]
    options.refuse_unsupported(f"suite {name}", (*suite.takes, "seed"))
    return suite.build(options)
