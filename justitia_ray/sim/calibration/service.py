"""What clients received over time: the measures of the VTC paper (Sec. 5.1), of timed requests.

The cost of a request is h = p + 2d. As in the paper's artifact (`plot_revision.py`, which made
Table 2) it counts as received evenly from the first token to the end, and is looked at at 19
instants, the twentieths of the time from half a window after the start. All of it needs nothing
but the times of requests, so that a measured run and a simulated one are measured by the same
rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from justitia_ray.sim.calibration.measured import TimedRequest
from justitia_ray.units import Seconds

Floats = NDArray[np.float64]

WINDOW_S: Seconds = 60.0
"""2·T of Sec. 5.1, T = 30 s."""
TICKS = 19


@dataclass(frozen=True, slots=True)
class ServiceOverTime:
    """Arrays `[clients, ticks]`, in h units; clients in the order of their names."""

    clients: tuple[str, ...]
    ticks_s: Floats
    """`[ticks]`"""
    received: Floats
    """A second, over the window about each tick."""
    requested: Floats
    """A second: the cost of what arrived in that window."""
    accumulated: Floats
    """From half a window after the start until each tick."""

    def differences(self) -> Floats:
        """Return the service difference at each tick (Sec. 5.1, Table 2), a second: `[ticks]`.

        Summed over clients: what they received less than the client that received most, but no more
        than what they received less than they requested.
        """
        behind = self.received.max(axis=0) - self.received
        unserved = np.abs(self.requested - self.received)
        summed: Floats = np.minimum(behind, unserved).sum(axis=0)
        return summed

    def accumulated_differences(self) -> Floats:
        """Return max over pairs of |W_i(0, t) − W_j(0, t)| at each tick (Sec. 5.1, Fig. 3)."""
        spread: Floats = self.accumulated.max(axis=0) - self.accumulated.min(axis=0)
        return spread


def service_over_time(
    requests: Sequence[TimedRequest], span_s: Seconds | None = None
) -> ServiceOverTime:
    """Return what each client received and requested over time.

    Args:
        requests: At least one; times from the start of the run.
        span_s: How long clients sent requests; until the last arrival, if it is not given.
    """
    arrived = np.array([r.arrived_at_s for r in requests])
    start = np.array([r.first_token_at_s for r in requests])
    end = np.array([r.finished_at_s for r in requests])
    cost = np.array([r.prompt_tokens + 2.0 * r.output_tokens for r in requests])
    clients = tuple(sorted({r.client for r in requests}))
    owner = np.array([[r.client == client for r in requests] for client in clients], dtype=float)
    span_s = float(arrived.max()) if span_s is None else span_s
    warm_up_s = WINDOW_S / 2
    twentieth = (span_s - warm_up_s) / (TICKS + 1)
    ticks = warm_up_s + twentieth * np.arange(1, TICKS + 1, dtype=np.float64)
    low, high = ticks - WINDOW_S / 2, ticks + WINDOW_S / 2
    first = np.array([warm_up_s])
    here = (arrived[:, None] >= low) & (arrived[:, None] <= high)
    return ServiceOverTime(
        clients,
        ticks,
        owner @ (_until(high, start, end, cost) - _until(low, start, end, cost)) / WINDOW_S,
        owner @ (here * cost[:, None]) / WINDOW_S,
        owner @ (_until(ticks, start, end, cost) - _until(first, start, end, cost)),
    )


def _until(instants: Floats, start: Floats, end: Floats, cost: Floats) -> Floats:
    """Return what each request has received by each instant, `[requests, instants]`."""
    passed = instants[None, :] - start[:, None]
    # One that begins and ends at once has all of it from then on.
    length = np.maximum(end - start, 1e-9)[:, None]
    received: Floats = cost[:, None] * np.clip(passed / length, 0.0, 1.0)
    return received
