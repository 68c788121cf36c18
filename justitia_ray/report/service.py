"""The VTC paper's measures of a run: service and demand of clients over time, how far they differ.

Definitions: VTC, Sec. 5.1 and the caption of Table 2. Where the text leaves a choice (when service
counts, at which instants a table is taken) this does as the published scripts behind the tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from justitia_ray.cost import profiled_quadratic, weighted_tokens
from justitia_ray.sim.results import RunResult
from justitia_ray.units import Seconds, Tokens

ServiceFunction = Callable[[Tokens, Tokens], float]
"""Service that a whole request is worth."""

WINDOW_S: Seconds = 60.0
"""2T with T = 30 s (Sec. 5.1)."""
TABLE_SPAN_S: Seconds = 600.0
TABLE_WARM_UP_S: Seconds = 30.0
TABLE_STEPS = 20


def profiled_service(prompt_tokens: Tokens, output_tokens: Tokens) -> float:
    """Return a tenth of the profiled cost (App. B.2): the unit in which Tables 3 and 4 are."""
    return profiled_quadratic(prompt_tokens, output_tokens) / 10


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was served; times in seconds from the start of the run."""

    client: str
    submitted_at_s: Seconds
    first_token_at_s: Seconds
    finished_at_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens


@dataclass(frozen=True, slots=True)
class Difference:
    """Service difference over the instants of a table, in service a second."""

    most: float
    mean: float
    variance: float


def served_requests(result: RunResult) -> list[Served]:
    """Return the inferences of a run that ended; the client is the application's tenant."""
    tenants = {a.application_id: a.tenant for a in result.applications}
    return [
        Served(
            tenants[row.application_id],
            row.submitted_at_s,
            row.first_token_at_s,
            row.finished_at_s,
            row.prompt_tokens,
            row.output_tokens,
        )
        for row in result.inferences
        if row.first_token_at_s is not None and row.finished_at_s is not None
    ]


def instants(span_s: Seconds, count: int) -> list[Seconds]:
    """Return `count` instants, evenly spaced, the last of them at the end of the span."""
    return [span_s * step / count for step in range(1, count + 1)]


def table_instants(span_s: Seconds = TABLE_SPAN_S) -> list[Seconds]:
    """Return the 19 inner instants of 20 equal steps after the warm-up."""
    step = (span_s - TABLE_WARM_UP_S) / TABLE_STEPS
    return [TABLE_WARM_UP_S + step * number for number in range(1, TABLE_STEPS)]


def clients(served: Iterable[Served]) -> list[str]:
    """Return the clients in the order of their names."""
    return sorted({request.client for request in served})


def service_rates(
    served: Sequence[Served],
    at: Sequence[Seconds],
    service: ServiceFunction = weighted_tokens,
    window_s: Seconds = WINDOW_S,
) -> dict[str, list[float]]:
    """Return each client's service a second in the window around each instant.

    A request's service counts evenly from its first token to its end.
    """
    return {
        client: [
            _between(requests, t - window_s / 2, t + window_s / 2, service) / window_s for t in at
        ]
        for client, requests in _by_client(served).items()
    }


def accumulated_service(
    served: Sequence[Served],
    at: Sequence[Seconds],
    service: ServiceFunction = weighted_tokens,
    from_s: Seconds = 0.0,
) -> dict[str, list[float]]:
    """Return W(from, t) of each client at each instant t."""
    return {
        client: [_between(requests, from_s, t, service) for t in at]
        for client, requests in _by_client(served).items()
    }


def demand_rates(
    served: Sequence[Served],
    at: Sequence[Seconds],
    service: ServiceFunction = weighted_tokens,
    window_s: Seconds = WINDOW_S,
) -> dict[str, list[float]]:
    """Return the service a second that each client asked for in the window around each instant."""
    return {
        client: [
            sum(
                service(r.prompt_tokens, r.output_tokens)
                for r in requests
                if t - window_s / 2 <= r.submitted_at_s <= t + window_s / 2
            )
            / window_s
            for t in at
        ]
        for client, requests in _by_client(served).items()
    }


def response_times(
    served: Sequence[Served], at: Sequence[Seconds], window_s: Seconds = WINDOW_S
) -> dict[str, list[Seconds | None]]:
    """Return each client's mean first-token latency in each window; None where there was none."""
    found: dict[str, list[Seconds | None]] = {}
    for client, requests in _by_client(served).items():
        row: list[Seconds | None] = []
        for t in at:
            latencies = [
                r.first_token_at_s - r.submitted_at_s
                for r in requests
                if t - window_s / 2 <= r.first_token_at_s <= t + window_s / 2
            ]
            row.append(fmean(latencies) if latencies else None)
        found[client] = row
    return found


def accumulated_gap(
    served: Sequence[Served], at: Sequence[Seconds], from_s: Seconds = 0.0
) -> list[float]:
    """Return max over clients i, j of |W_i(from, t) − W_j(from, t)| at each instant t."""
    rows = list(accumulated_service(served, at, from_s=from_s).values())
    return [max(column) - min(column) for column in zip(*rows, strict=True)]


def service_difference(
    served: Sequence[Served],
    at: Sequence[Seconds],
    service: ServiceFunction = weighted_tokens,
) -> Difference:
    """Return the figures of Tables 2 to 6: Σ over clients i of min(max_j s_j − s_i, |r_i − s_i|).

    s is service a second, r what was asked for, in the window of an instant; then the greatest,
    the mean and the population variance over the instants.
    """
    rates = list(service_rates(served, at, service).values())
    demands = list(demand_rates(served, at, service).values())
    sums = []
    for got, asked in zip(zip(*rates, strict=True), zip(*demands, strict=True), strict=True):
        most = max(got)
        sums.append(sum(min(most - s, abs(r - s)) for s, r in zip(got, asked, strict=True)))
    return Difference(max(sums), fmean(sums), pvariance(sums))


def throughput(served: Sequence[Served]) -> float:
    """Return tokens a second, prompt and output, from the first submission to the last end."""
    tokens = sum(r.prompt_tokens + r.output_tokens for r in served)
    began = min(r.submitted_at_s for r in served)
    return tokens / (max(r.finished_at_s for r in served) - began)


def _by_client(served: Sequence[Served]) -> Mapping[str, list[Served]]:
    found: dict[str, list[Served]] = {client: [] for client in clients(served)}
    for request in served:
        found[request.client].append(request)
    return found


def _between(
    requests: Iterable[Served], low: Seconds, high: Seconds, service: ServiceFunction
) -> float:
    total = 0.0
    for r in requests:
        overlap = min(high, r.finished_at_s) - max(low, r.first_token_at_s)
        if overlap <= 0:
            continue
        length = r.finished_at_s - r.first_token_at_s
        total += service(r.prompt_tokens, r.output_tokens) * overlap / length
    return total
