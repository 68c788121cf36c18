"""Service that clients received and asked for over time: the VTC paper's measures.

Definitions: VTC, Sec. 5.1 and the caption of Table 2. Where the text leaves a choice (when service
counts, at which instants a table is taken) this does as the paper's artifact (`plot_revision.py`,
which made Table 2): a request's service counts evenly from its first token to its end. All of it
needs nothing but the times of requests, so that a measured run and a simulated one are measured by
the same rule.

A request whose first token is its end has all of its service at that instant: it was served, and
the sum over windows must be what the run delivered. (The other choice, to leave it out, would hide
what a client of one-token answers receives.)
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from justitia_ray.cost import profiled_quadratic, weighted_tokens
from justitia_ray.sim.calibration.measured import TimedRequest
from justitia_ray.sim.results import RunResult
from justitia_ray.units import Seconds, Tokens

Floats = NDArray[np.float64]
ServiceFunction = Callable[[Tokens, Tokens], float]
"""Service that a whole request is worth."""

WINDOW_S: Seconds = 60.0
"""2T with T = 30 s (Sec. 5.1)."""
TABLE_SPAN_S: Seconds = 600.0
TABLE_WARM_UP_S: Seconds = 30.0
"""Half a window: no window begins before the run."""
TABLE_STEPS = 20
_LEAST_LENGTH_S: Seconds = 1e-9
"""Length of a request that begins and ends at once."""


def profiled_service(prompt_tokens: Tokens, output_tokens: Tokens) -> float:
    """Return a tenth of the profiled cost (App. B.2): the unit in which Tables 3 and 4 are."""
    return profiled_quadratic(prompt_tokens, output_tokens) / 10


def table_instants(span_s: Seconds = TABLE_SPAN_S) -> Floats:
    """Return the 19 inner instants of 20 equal steps after the warm-up, `[19]`, in seconds.

    Args:
        span_s: How long clients sent requests.
    """
    step = (span_s - TABLE_WARM_UP_S) / TABLE_STEPS
    return TABLE_WARM_UP_S + step * np.arange(1, TABLE_STEPS, dtype=np.float64)


def served_requests(result: RunResult) -> list[TimedRequest]:
    """Return the inferences of a run that ended; the client is the application's tenant."""
    tenants = {a.application_id: a.tenant for a in result.applications}
    return [
        TimedRequest(
            tenants[row.application_id],
            row.submitted_at_s,
            row.prompt_tokens,
            row.output_tokens,
            row.first_token_at_s,
            row.finished_at_s,
        )
        for row in result.inferences
        if row.first_token_at_s is not None and row.finished_at_s is not None
    ]


def tokens_per_s(requests: Sequence[TimedRequest]) -> float:
    """Return prompt and output tokens a second, from the first arrival to the last end."""
    tokens = sum(r.prompt_tokens + r.output_tokens for r in requests)
    first = min(r.arrived_at_s for r in requests)
    return tokens / (max(r.finished_at_s for r in requests) - first)


class ClientService:
    """The requests of a run by client, and what clients received and asked for over time.

    Instants are in seconds, `[instants]`; what is returned is float64, `[clients, instants]` unless
    said otherwise, clients in the order of their names.

    Args:
        requests: At least one; times from the start of the run.
        service: What a whole request is worth; h = p + 2d by default.
    """

    def __init__(
        self, requests: Sequence[TimedRequest], service: ServiceFunction = weighted_tokens
    ) -> None:
        self.clients = tuple(sorted({r.client for r in requests}))
        owners = [[r.client == client for r in requests] for client in self.clients]
        self._owner = np.array(owners, dtype=np.float64)
        self._arrived = np.array([r.arrived_at_s for r in requests])[:, None]
        self._first = np.array([r.first_token_at_s for r in requests])[:, None]
        ended = np.array([r.finished_at_s for r in requests])[:, None]
        self._length = np.maximum(ended - self._first, _LEAST_LENGTH_S)
        worth = [service(r.prompt_tokens, r.output_tokens) for r in requests]
        self._worth = np.array(worth, dtype=np.float64)[:, None]

    def rates(self, at: ArrayLike) -> Floats:
        """Return each client's service a second in the window around each instant."""
        low, high = _window(at)
        received: Floats = self._owner @ (self._until(high) - self._until(low)) / WINDOW_S
        return received

    def demands(self, at: ArrayLike) -> Floats:
        """Return the service a second that each client asked for in the window of each instant.

        A request is asked for when it arrives.
        """
        low, high = _window(at)
        here = (self._arrived >= low) & (self._arrived <= high)
        asked: Floats = self._owner @ (here * self._worth) / WINDOW_S
        return asked

    def accumulated(self, at: ArrayLike, from_s: Seconds) -> Floats:
        """Return W(from, t) of each client at each instant t."""
        until = self._until(np.asarray(at, dtype=np.float64))
        received: Floats = self._owner @ (until - self._until(np.array([from_s])))
        return received

    def gaps(self, at: ArrayLike, from_s: Seconds) -> Floats:
        """Return max over clients i, j of |W_i(from, t) − W_j(from, t)|, `[instants]`."""
        received = self.accumulated(at, from_s)
        spread: Floats = received.max(axis=0) - received.min(axis=0)
        return spread

    def differences(self, at: ArrayLike) -> Floats:
        """Return the service difference at each instant (Tables 2 to 6), a second, `[instants]`.

        Σ over clients i of min(max_j s_j − s_i, |r_i − s_i|): s is service a second, r what was
        asked for, in the window of the instant. So a client is behind by what it received less than
        the client that received most, but by no more than it asked for in vain.
        """
        received = self.rates(at)
        behind = received.max(axis=0) - received
        in_vain = np.abs(self.demands(at) - received)
        summed: Floats = np.minimum(behind, in_vain).sum(axis=0)
        return summed

    def response_times(self, at: ArrayLike) -> Floats:
        """Return each client's mean first-token latency, in seconds, of the window's first tokens.

        NaN where there was none.
        """
        low, high = _window(at)
        here = (self._first >= low) & (self._first <= high)
        summed = self._owner @ (here * (self._first - self._arrived))
        count = self._owner @ here
        means: Floats = np.full_like(summed, np.nan)
        np.divide(summed, count, out=means, where=count > 0)
        return means

    def _until(self, instants: Floats) -> Floats:
        """Return what each request has received by each instant, `[requests, instants]`."""
        share = np.clip((instants - self._first) / self._length, 0.0, 1.0)
        received: Floats = self._worth * share
        return received


def _window(at: ArrayLike) -> tuple[Floats, Floats]:
    instants = np.asarray(at, dtype=np.float64)
    return instants - WINDOW_S / 2, instants + WINDOW_S / 2
