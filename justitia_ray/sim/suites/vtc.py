"""Workloads of the VTC paper (arXiv:2401.00588): single requests of several clients.

Each request is an application of one inference, with the client as tenant. Times of a stream are
seconds from the start, sorted. Synthetic workloads are those of Sec. 5.2, 5.4 and App. B; rates are
requests per minute, as in its figures. Details that the paper leaves open are from its artifact
(Ying1123/VTC-artifact, `fair_bench/`, commit 192c2e20): rates of Fig. 15, 16 and 19, the first rate
of the client with the growing rate in Fig. 9 (12 a minute), and that ON phases are first. The real
trace is that of Sec. 5.3: 1,500 chats in ten minutes, of 27 clients.

Differences from the artifact: a Poisson client sends its expected number of requests, and clients
are drawn independently, where the artifact draws one process for all and then a client for each
request.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.trace_csv import read_trace
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds, Tokens

APPLICATION_CLASS = "request"
TEN_MINUTES: Seconds = 600.0
ON_OFF_S: Seconds = 60.0
"""Seconds for which a client sends requests and then pauses, in VTC's ON/OFF workloads."""

RequestStream = Callable[[random.Random], list[Seconds]]
"""Function that draws the times of one client's requests."""


@dataclass(frozen=True, slots=True)
class RequestClient:
    """Client with the arrivals and lengths of its requests."""

    stream: RequestStream
    prompt_tokens: Tokens = 256
    output_tokens: Tokens = 256
    weight: float = 1.0


def evenly(
    per_minute: float, until_s: Seconds = TEN_MINUTES, *, since_s: Seconds = 0.0
) -> RequestStream:
    """Return evenly spaced requests of a client; the first comes within one spacing.

    The time of the first request within that spacing is drawn, so that clients do not send at the
    same times.
    """

    def stream(rng: random.Random) -> list[Seconds]:
        spacing_s, phase = 60.0 / per_minute, rng.random()
        count = round((until_s - since_s) / spacing_s)
        return [since_s + (number + phase) * spacing_s for number in range(count)]

    return stream


def only_on_phases(stream: RequestStream) -> RequestStream:
    """Return a client's requests in ON phases; the first phase is an ON phase."""
    return lambda rng: [at for at in stream(rng) if int(at // ON_OFF_S) % 2 == 0]


def poisson(per_minute: float) -> RequestStream:
    """Return a client's requests as a Poisson process of exactly the expected number."""
    count = round(per_minute * TEN_MINUTES / 60.0)
    return lambda rng: sorted(rng.uniform(0.0, TEN_MINUTES) for _ in range(count))


def increasing(first_per_minute: float, last_per_minute: float) -> RequestStream:
    """Return a client's requests, whose rate grows linearly with time.

    Until time t a stream has r₀·t + (r₁ − r₀)·t²/2T requests; request k is sent when this number is
    k + phase.
    """
    first, growth = first_per_minute / 60, (last_per_minute - first_per_minute) / 60 / TEN_MINUTES

    def stream(rng: random.Random) -> list[Seconds]:
        phase = rng.random()
        count = round((first + growth * TEN_MINUTES / 2) * TEN_MINUTES)
        return [
            (math.sqrt(first**2 + 2 * growth * (number + phase)) - first) / growth
            for number in range(count)
        ]

    return stream


def one_after_another(*streams: RequestStream) -> RequestStream:
    """Return a client's requests in several patterns, one after the other."""
    return lambda rng: [at for stream in streams for at in stream(rng)]


def suite(about: str, clients: Sequence[RequestClient], duration_s: Seconds = TEN_MINUTES) -> Suite:
    """Return a workload of clients `client1`, `client2`, …, as the VTC paper counts them."""

    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        sent = (
            (at, number, client)
            for number, client in enumerate(clients, start=1)
            for at in client.stream(random.Random(f"{options.seed}/client{number}"))
        )
        requests = sorted(sent, key=itemgetter(0, 1))
        stretch = 1.0 if options.window_s is None else options.window_s / duration_s
        return [
            _one_request_application(
                place, at * stretch, number, c.prompt_tokens, c.output_tokens, c.weight
            )
            for place, (at, number, c) in enumerate(islice(requests, options.count))
        ]

    return Suite(about, build, ("count", "window_s"))


def _one_request_application(
    number: int,
    arrived_at_s: Seconds,
    client: int | str | None,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    weight: float = 1.0,
) -> WorkloadApplication:
    """Return an application with one request; `number` is its index in order of arrival."""
    return WorkloadApplication(
        application_id=f"a{number}",
        application_class=APPLICATION_CLASS,
        arrived_at_s=round(arrived_at_s, 6),
        inferences=(WorkloadInference("0", prompt_tokens, output_tokens),),
        tenant=f"client{client}",
        weight=weight,
    )


def _overload_suite(first: float, second: float, tokens: Tokens, figures: str) -> Suite:
    return suite(
        f"two clients, {first:g} and {second:g} requests a minute of {tokens} + {tokens} tokens"
        f" ({figures})",
        [RequestClient(evenly(rate), tokens, tokens) for rate in (first, second)],
    )


VTC_SUITES: dict[str, Suite] = {
    "two-clients-overload": _overload_suite(90, 180, 256, "VTC Fig. 3, 19, Table 5"),
    "two-clients-overload-256": _overload_suite(180, 360, 256, "VTC Fig. 15: KV 35,000 or 65,000"),
    "two-clients-overload-512": _overload_suite(90, 180, 512, "VTC Fig. 15: KV 35,000"),
    "two-clients-overload-768": _overload_suite(60, 120, 768, "VTC Fig. 15: KV 35,000"),
    "three-clients": suite(
        "three clients, 15, 30 and 90 requests a minute; only the third exceeds its share (VTC"
        " Fig. 4)",
        [RequestClient(evenly(rate)) for rate in (15, 30, 90)],
    ),
    "on-off-less": suite(
        "30 a minute in ON minutes, below its share, beside 120 a minute (VTC Fig. 5)",
        [RequestClient(only_on_phases(evenly(30))), RequestClient(evenly(120))],
    ),
    "on-off-overload": suite(
        "120 a minute in ON minutes, above its share, beside 180 a minute (VTC Fig. 6)",
        [RequestClient(only_on_phases(evenly(120))), RequestClient(evenly(180))],
    ),
    "poisson-short-long": suite(
        "480 short requests a minute (64 + 64) beside 90 long ones (256 + 256) (VTC Fig. 7)",
        [RequestClient(poisson(480), 64, 64), RequestClient(poisson(90), 256, 256)],
    ),
    "poisson-short-long-2": suite(
        "480 requests a minute of 64 + 512 tokens beside 90 of 512 + 64 (VTC Fig. 8)",
        [RequestClient(poisson(480), 64, 512), RequestClient(poisson(90), 512, 64)],
    ),
    "increasing": suite(
        "30 a minute beside a client that grows from 12 to 120 a minute (VTC Fig. 9)",
        [RequestClient(evenly(30)), RequestClient(increasing(12, 120))],
    ),
    "distribution-shift": suite(
        "five minutes ON/OFF, five of overload, five of unequal rates (VTC Fig. 10)",
        [
            RequestClient(
                one_after_another(
                    only_on_phases(evenly(30, 300)),
                    evenly(60, 600, since_s=300),
                    evenly(30, 900, since_s=600),
                )
            ),
            RequestClient(
                one_after_another(
                    evenly(120, 300), evenly(60, 600, since_s=300), evenly(90, 900, since_s=600)
                )
            ),
        ],
        900.0,
    ),
    "four-clients-weighted": suite(
        "four overloaded clients of weights 1, 2, 3, 4 (VTC Fig. 16)",
        [
            RequestClient(evenly(rate), weight=weight)
            for rate, weight in ((24, 1.0), (48, 2.0), (72, 3.0), (96, 4.0))
        ],
    ),
    "eight-clients-overload": suite(
        "eight overloaded clients, three at 24 and five at 36 requests a minute (VTC Fig. 19,"
        " Table 6)",
        [RequestClient(evenly(rate)) for rate in (24,) * 3 + (36,) * 5],
    ),
}
"""The VTC paper's workloads by name."""


_TRACE = Path("arrivals") / "lmsys_vtc_arrivals.csv"


def build_lmsys(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return the trace's requests; with a window, the last request arrives when it ends.

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
        _one_request_application(
            number, row.arrival_s * stretch, row.client, row.input_tokens, max(1, row.output_tokens)
        )
        for number, row in enumerate(rows)
    ]


LMSYS = Suite(
    "1,500 chats of 27 clients in ten minutes (VTC Fig. 11 to 14)",
    build_lmsys,
    ("count", "window_s"),
)
