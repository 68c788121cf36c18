"""When applications arrive: the first rows of a real trace, stretched to a window, or made up.

A window scales all instants by one factor, so that the pattern stays.
"""

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.trace_csv import read_trace
from justitia_ray.units import Seconds

_TRACES = {
    "mooncake": "mooncake_arrivals.csv",
    "azure-conv": "azure_conv_2023.csv",
    "azure-code": "azure_code_2023.csv",
    "lmsys": "lmsys_vtc_arrivals.csv",
}
_MOONCAKE_STEP_S = 3.0
"""Its timestamps are rounded down to that; up to 28 requests share one."""

_Maker = Callable[[int, random.Random], list[float]]
_MADE: dict[str, _Maker] = {
    "poisson": lambda count, rng: sorted(rng.random() for _ in range(count)),
    "uniform": lambda count, rng: [number / count for number in range(count)],
}
"""Instants in [0, 1). A Poisson process of which the number of arrivals is given is that many
independent uniform instants."""

ARRIVALS = (*_TRACES, *_MADE)
"""Names of all kinds of arrivals."""


def arrival_times(
    kind: str, count: int, window_s: Seconds, rng: random.Random, data_dir: Path | None
) -> list[Seconds]:
    """Return `count` instants in [0, window_s], sorted, to the microsecond.

    Of a trace, the first `count` rows: the first arrives at 0 and the last at `window_s`. A trace
    that has fewer is gone through again.

    Raises:
        ConfigError: If a trace is asked for and there is no data directory, or its file is wrong.
    """
    if kind in _MADE:
        instants = _MADE[kind](count, rng)
    else:
        if data_dir is None:
            raise ConfigError(
                f"arrivals {kind!r} are a recorded trace, which needs a data directory; without one"
                f" allowed are {', '.join(_MADE)}"
            )
        instants = _traced(data_dir / "arrivals" / _TRACES[kind], count)
        if kind == "mooncake":
            instants = sorted(at + rng.uniform(0.0, _MOONCAKE_STEP_S) for at in instants)
        first, span = instants[0], instants[-1] - instants[0]
        instants = [(at - first) / span if span > 0 else 0.0 for at in instants]
    return [round(at * window_s, 6) for at in instants]


def _traced(path: Path, count: int) -> list[Seconds]:
    instants = sorted(row.arrival_s for row in islice(read_trace(path), count))
    if not instants:
        raise ConfigError(f"{path}: must hold at least one arrival, has none")
    rows, period_s = len(instants), instants[-1] - instants[0] + 1.0
    return [instants[i % rows] + period_s * (i // rows) for i in range(count)]
