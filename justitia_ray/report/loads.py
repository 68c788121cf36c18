"""Workloads of experiments, by what they are made of: small, hashable, the same everywhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds


class Load(Protocol):
    """A workload that can be built anywhere."""

    def build(self) -> list[WorkloadApplication]:
        """Build it; the same each time."""

    def configuration(self) -> Mapping[str, Any]:
        """Return what it is made of."""

    def __hash__(self) -> int:
        """Equal loads are one."""


@dataclass(frozen=True, slots=True)
class SuiteLoad:
    """A named suite of `justitia workload`."""

    suite: str
    seed: int
    data_dir: Path
    count: int | None = None
    window_s: Seconds | None = None

    def build(self) -> list[WorkloadApplication]:
        """Build it.

        Raises:
            ConfigError: If the suite does not go by an option, or the data directory lacks files.
        """
        options = SuiteOptions(
            count=self.count,
            window_s=self.window_s,
            seed=self.seed,
            data_dir=self.data_dir,
        )
        return build_suite(self.suite, options)

    def configuration(self) -> Mapping[str, Any]:
        """Return the suite and its options; where the data lay is no part of them."""
        options = {"count": self.count, "window_s": self.window_s}
        given = {name: value for name, value in options.items() if value is not None}
        return {"suite": self.suite, "seed": self.seed, **given}


@dataclass(frozen=True, slots=True)
class LimitedLoad:
    """A load of requests less those that a limit of requests a minute refuses."""

    load: Load
    requests_per_minute: int
    """Of each tenant, in each minute from the start (VTC, Sec. 2.2)."""

    def build(self) -> list[WorkloadApplication]:
        """Build it: in each minute the first ones of each tenant are kept."""
        kept = []
        counted: dict[tuple[str, int], int] = {}
        for application in self.load.build():
            window = (application.tenant, int(application.arrived_at_s // 60))
            counted[window] = counted.get(window, 0) + 1
            if counted[window] <= self.requests_per_minute:
                kept.append(application)
        return kept

    def configuration(self) -> Mapping[str, Any]:
        """Return the load and the limit."""
        return {**self.load.configuration(), "requests_per_minute": self.requests_per_minute}
