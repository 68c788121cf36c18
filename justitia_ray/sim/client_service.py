"""Service that clients received and requested over time: the VTC paper's measures.

Definitions: VTC, Sec. 5.1 and the caption of Table 2. Where the text leaves a choice (when service
counts, at which instants a table is sampled), this follows the paper's artifact
(`plot_revision.py`, which made Table 2): a request's service counts evenly from its first token to
its end. Only the times of requests are used, so that the same rule applies to measured and
simulated runs.

A request that ends with its first token has all of its service at that instant, so that the sum
over windows is the service that the run delivered. (Leaving it out would hide the service of a
client with one-token answers.)
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
"""Function that returns the service of a request from its prompt and output tokens."""

WINDOW_S: Seconds = 60.0
"""Window in seconds over which service is averaged: 2T with T = 30 s (VTC, Sec. 5.1)."""
TABLE_SPAN_S: Seconds = 600.0
TABLE_WARM_UP_S: Seconds = 30.0
"""Seconds after which a table samples service rates, so that each window lies within the run."""
TABLE_STEPS = 20
_LEAST_LENGTH_S: Seconds = 1e-9
"""Assumed length in seconds of a request that ends with its first token."""


def profiled_service(prompt_tokens: Tokens, output_tokens: Tokens) -> float:
    """Return a request's profiled cost (VTC, App. B.2) in the unit of Tables 3 and 4."""
    return profiled_quadratic(prompt_tokens, output_tokens) / 10


def table_instants(span_s: Seconds = TABLE_SPAN_S) -> Floats:
    """Return the times in seconds at which a run is sampled for a table: 19 after the warm-up.

    Args:
        span_s: Time for which clients sent requests.
    """
    step = (span_s - TABLE_WARM_UP_S) / TABLE_STEPS
    return TABLE_WARM_UP_S + step * np.arange(1, TABLE_STEPS, dtype=np.float64)


def served_requests(result: RunResult) -> list[TimedRequest]:
    """Return the finished inferences of a run as requests, with their tenants as clients."""
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
    """Return prompt and output tokens per second, from the first arrival to the last end."""
    tokens = sum(r.prompt_tokens + r.output_tokens for r in requests)
    first = min(r.arrived_at_s for r in requests)
    return tokens / (max(r.finished_at_s for r in requests) - first)


class ClientService:
    """Service that each client received and requested over the time of a run.

    Instants are in seconds, `[instants]`; results are float64, `[clients, instants]` unless noted
    otherwise, with clients in the order of their names.

    Args:
        requests: Requests, at least one; times are from the start of the run.
        service: Service of a whole request; h = p + 2d by default.
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
        """Return the service per second that each client received around each instant."""
        low, high = _window_around(at)
        received: Floats = (
            self._owner
            @ (self._service_of_requests_until(high) - self._service_of_requests_until(low))
            / WINDOW_S
        )
        return received

    def demands(self, at: ArrayLike) -> Floats:
        """Return the service per second that each client requested around each instant.

        A request counts when it arrives.
        """
        low, high = _window_around(at)
        here = (self._arrived >= low) & (self._arrived <= high)
        asked: Floats = self._owner @ (here * self._worth) / WINDOW_S
        return asked

    def accumulated(self, at: ArrayLike, from_s: Seconds) -> Floats:
        """Return the service that each client has received since `from`, at each instant."""
        until = self._service_of_requests_until(np.asarray(at, dtype=np.float64))
        received: Floats = self._owner @ (
            until - self._service_of_requests_until(np.array([from_s]))
        )
        return received

    def gaps(self, at: ArrayLike, from_s: Seconds) -> Floats:
        """Return the largest difference of received service between clients at each time."""
        received = self.accumulated(at, from_s)
        spread: Floats = received.max(axis=0) - received.min(axis=0)
        return spread

    def differences(self, at: ArrayLike) -> Floats:
        """Return the difference of service between clients, as in VTC's Tables 2 to 6.

        Σ over clients i of min(max_j s_j − s_i, |r_i − s_i|), where s is the received and r the
        requested service per second in the window of the instant. So a client counts as behind by
        the difference to the client that received most, but at most by the service that it
        requested and did not get.
        """
        received = self.rates(at)
        behind = received.max(axis=0) - received
        in_vain = np.abs(self.demands(at) - received)
        summed: Floats = np.minimum(behind, in_vain).sum(axis=0)
        return summed

    def response_times(self, at: ArrayLike) -> Floats:
        """Return the mean latency of each client's first tokens in a window, in seconds.

        NaN if the window has no first token of the client.
        """
        low, high = _window_around(at)
        here = (self._first >= low) & (self._first <= high)
        summed = self._owner @ (here * (self._first - self._arrived))
        count = self._owner @ here
        means: Floats = np.full_like(summed, np.nan)
        np.divide(summed, count, out=means, where=count > 0)
        return means

    def _service_of_requests_until(self, instants: Floats) -> Floats:
        share = np.clip((instants - self._first) / self._length, 0.0, 1.0)
        received: Floats = self._worth * share
        return received


def _window_around(at: ArrayLike) -> tuple[Floats, Floats]:
    instants = np.asarray(at, dtype=np.float64)
    return instants - WINDOW_S / 2, instants + WINDOW_S / 2
