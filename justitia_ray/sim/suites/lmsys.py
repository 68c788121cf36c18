"""The real trace of the VTC paper (Sec. 5.3): 1,500 chats in ten minutes, of 27 clients."""

from itertools import islice
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.client_requests import request
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.trace_csv import read_trace
from justitia_ray.sim.workload import WorkloadApplication

_TRACE = Path("arrivals") / "lmsys_vtc_arrivals.csv"


def build(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return its requests as they are; at the end of a window, if one is set, the last arrives.

    Raises:
        ConfigError: If there is no data directory.
    """
    if options.data_dir is None:
        raise ConfigError("suite lmsys is a recorded trace, which needs a data directory")
    rows = sorted(
        islice(read_trace(options.data_dir / _TRACE), options.count), key=lambda row: row.arrival_s
    )
    last_s = rows[-1].arrival_s if rows else 0.0
    stretch = 1.0 if options.window_s is None or last_s == 0 else options.window_s / last_s
    return [
        request(
            number,
            row.arrival_s * stretch,
            f"client{row.client}",
            row.input_tokens,
            max(1, row.output_tokens),
        )
        for number, row in enumerate(rows)
    ]


SUITE = Suite(
    "1,500 chats of 27 clients in ten minutes (VTC Fig. 11 to 14)", build, ("count", "window_s")
)
