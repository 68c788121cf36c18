"""What a suite can be asked for, and what a suite is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.arrivals import ARRIVALS
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """What a suite is built with; None: as the suite has it.

    `seed` and `data_dir` go with every suite, the rest only with those that name it.

    Raises:
        ConfigError: If a value is out of range.
    """

    count: int | None = None
    """How many applications."""
    window_s: Seconds | None = None
    """How long they arrive; another window moves arrivals and changes nothing else."""
    seed: int = 0
    data_dir: Path | None = None
    """Recorded runs, inputs and arrivals. Without it, runs are drawn from published statistics."""
    arrivals: str | None = None
    """One of `arrivals.ARRIVALS`."""
    mix: str | None = None
    """`paper`, `recorded`, or whole numbers by class, as in `KBQAV=60,MRS=1`."""
    tenants: int | None = None
    """On whose behalf applications run: `t0`, `t1`, …, each as likely. 1: all on one's."""
    sc_samples: int | None = None
    """Samples of a self-consistency vote."""

    def __post_init__(self) -> None:
        for name in ("count", "tenants", "sc_samples"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be a whole number >= 1, got {number}")
        if self.window_s is not None and not 0 < self.window_s < math.inf:
            raise ConfigError(f"window_s must be a number > 0, got {self.window_s}")
        if self.arrivals is not None and self.arrivals not in ARRIVALS:
            raise ConfigError(f"arrivals must be one of {', '.join(ARRIVALS)}, got {self.arrivals}")

    def given(self) -> list[str]:
        """Return the names of the options that are set, but those that go with every suite."""
        return [
            field.name
            for field in fields(self)
            if field.name not in {"seed", "data_dir"} and getattr(self, field.name) is not None
        ]


@dataclass(frozen=True, slots=True)
class Suite:
    """One kind of workload."""

    about: str
    """What it is and where it is from, in a line."""
    build: Callable[[SuiteOptions], list[WorkloadApplication]]
    """Returns its applications in order of arrival."""
    takes: tuple[str, ...] = ()
    """Options that it goes by."""
