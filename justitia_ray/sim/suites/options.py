"""Options of suites, arrival times of their applications, and the type of a suite.

Arrivals are the first rows of a real trace, scaled to a window, or generated. A window scales all
times by one factor, so that the pattern stays.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.trace_csv import read_trace
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds

_TRACES = {
    "mooncake": "mooncake_arrivals.csv",
    "azure-conv": "azure_conv_2023.csv",
    "azure-code": "azure_code_2023.csv",
    "lmsys": "lmsys_vtc_arrivals.csv",
}
_MOONCAKE_STEP_S = 3.0
"""Resolution in seconds of the timestamps in the Mooncake trace, which are rounded down. Up to 28
requests have the same timestamp.
"""

_Maker = Callable[[int, random.Random], list[float]]
_MADE: dict[str, _Maker] = {
    "poisson": lambda count, rng: sorted(rng.random() for _ in range(count)),
    "uniform": lambda count, rng: [number / count for number in range(count)],
}
"""Functions that draw arrival times in [0, 1), by kind. A Poisson process with a fixed number of
arrivals has independent uniform times.
"""

ARRIVALS = (*_TRACES, *_MADE)
"""Names of the kinds of arrivals."""


def arrival_times(
    kind: str, count: int, window_s: Seconds, rng: random.Random, data_dir: Path | None
) -> list[Seconds]:
    """Return `count` arrival times in [0, window_s], sorted, to the microsecond.

    For a trace: its first `count` rows, scaled so that the first arrives at 0 and the last at
    `window_s`. A trace with fewer than `count` rows is repeated.

    Raises:
        ConfigError: If a trace is requested and there is no data directory, or its file is wrong.
    """
    if kind in _MADE:
        instants = _MADE[kind](count, rng)
    else:
        if data_dir is None:
            raise ConfigError(
                f"arrivals {kind!r} are a recorded trace, which needs a data directory; without one"
                f" allowed are {', '.join(_MADE)}"
            )
        instants = _times_of_trace(data_dir / "arrivals" / _TRACES[kind], count)
        if kind == "mooncake":
            instants = sorted(at + rng.uniform(0.0, _MOONCAKE_STEP_S) for at in instants)
        first, span = instants[0], instants[-1] - instants[0]
        instants = [(at - first) / span if span > 0 else 0.0 for at in instants]
    return [round(at * window_s, 6) for at in instants]


def thinned_arrivals(kind: str, count: int, rng: random.Random, data_dir: Path) -> list[Seconds]:
    """Return `count` arrival times drawn from a recorded trace, sorted; the first is 0.

    The load varies in time as in the trace.

    Args:
        kind: Name of a recorded trace.
        count: Number of times, at most the number of rows of the trace.
        rng: Source of the draws.
        data_dir: Directory of the trace.

    Raises:
        ConfigError: If the file is missing or wrong, or has fewer arrivals.
    """
    path = data_dir / "arrivals" / _TRACES[kind]
    instants = [row.arrival_s for row in read_trace(path)]
    if len(instants) < count:
        raise ConfigError(f"{path}: must hold at least {count} arrivals, has {len(instants)}")
    drawn = sorted(rng.sample(instants, count))
    if kind == "mooncake":
        drawn = sorted(at + rng.uniform(0.0, _MOONCAKE_STEP_S) for at in drawn)
    return [round(at - drawn[0], 6) for at in drawn]


def _times_of_trace(path: Path, count: int) -> list[Seconds]:
    instants = sorted(row.arrival_s for row in islice(read_trace(path), count))
    if not instants:
        raise ConfigError(f"{path}: must hold at least one arrival, has none")
    rows, period_s = len(instants), instants[-1] - instants[0] + 1.0
    return [instants[i % rows] + period_s * (i // rows) for i in range(count)]


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of a workload; None means the workload's default.

    `seed` and `data_dir` apply to every suite, the other options only to suites that support them.

    Raises:
        ConfigError: If a value is out of range.
    """

    count: int | None = None
    """Number of applications."""
    window_s: Seconds | None = None
    """Window of the arrivals in seconds; it changes only the arrival times."""
    seed: int = 0
    data_dir: Path | None = None
    """Directory with recorded runs, inputs and arrivals."""
    arrivals: str | None = None
    """Kind of arrivals: a name in `ARRIVALS`."""
    mix: str | None = None
    """Shares of the application classes: `paper`, `recorded`, or numbers as in `KBQAV=60,MRS=1`."""
    tenants: int | None = None
    """Number of tenants `t0`, `t1`, …, drawn with equal probability; 1: all applications have the
    same tenant.
    """
    sc_samples: int | None = None
    """Number of answers that vote in an application of class SC."""

    def __post_init__(self) -> None:
        for name in ("count", "tenants", "sc_samples"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be a whole number >= 1, got {number}")
        if self.window_s is not None and not 0 < self.window_s < math.inf:
            raise ConfigError(f"window_s must be a number > 0, got {self.window_s}")
        if self.arrivals is not None and self.arrivals not in ARRIVALS:
            raise ConfigError(f"arrivals must be one of {', '.join(ARRIVALS)}, got {self.arrivals}")

    def refuse_unsupported(self, who: str, takes: Sequence[str]) -> None:
        """Raise ConfigError if an option is set that the workload `who` does not support."""
        for name in (field.name for field in fields(self)):
            if name not in {"seed", "data_dir", *takes} and getattr(self, name) is not None:
                raise ConfigError(f"{who} does not go by {name}; it does by {', '.join(takes)}")


def suite_arrivals(
    options: SuiteOptions, count: int, gap_s: Seconds, *, traced: bool = True
) -> list[Seconds]:
    """Return the arrival times of a workload's applications.

    Args:
        options: Options of the suite, of which `arrivals`, `window_s`, `seed` and `data_dir` are
            used.
        count: Number of applications.
        gap_s: Mean time between arrivals, if no window is set.
        traced: Whether to use the Mooncake trace by default, if there is a data directory.

    Raises:
        ConfigError: As `arrival_times`.
    """
    default = "mooncake" if traced and options.data_dir is not None else "poisson"
    return arrival_times(
        options.arrivals or default,
        count,
        options.window_s or gap_s * count,
        random.Random(f"{options.seed}/arrivals"),
        options.data_dir,
    )


@dataclass(frozen=True, slots=True)
class Suite:
    """Kind of workload that the simulator can generate."""

    about: str
    """Description and source of the workload, in one line."""
    build: Callable[[SuiteOptions], list[WorkloadApplication]]
    """Function that returns the workload's applications in order of arrival."""
    takes: tuple[str, ...] = ()
    """Names of the options that the workload supports."""
