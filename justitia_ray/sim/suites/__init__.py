"""Workloads by name: the papers' experiments and what else is worth simulating."""

from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.table import SUITES, build_suite

__all__ = ["SUITES", "Suite", "SuiteOptions", "build_suite"]
