"""Single requests of several clients: each an application of one inference, its tenant the client.

Instants of a stream are seconds from the start, sorted.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds, Tokens

APPLICATION_CLASS = "request"
ON_OFF_S: Seconds = 60.0
"""How long an ON phase is, and an OFF phase."""

Stream = Callable[[random.Random], list[Seconds]]
"""Draws the instants of one client's requests."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client: when its requests come, and how long they are."""

    stream: Stream
    prompt_tokens: Tokens = 256
    output_tokens: Tokens = 256
    weight: float = 1.0


def evenly(per_minute: float, until_s: Seconds, *, since_s: Seconds = 0.0) -> Stream:
    """Return a stream of evenly spaced requests, the first within one spacing of the start.

    Where in that spacing is drawn, so that clients do not fire in step.
    """

    def stream(rng: random.Random) -> list[Seconds]:
        spacing_s, phase = 60.0 / per_minute, rng.random()
        count = round((until_s - since_s) / spacing_s)
        return [since_s + (number + phase) * spacing_s for number in range(count)]

    return stream


def on_off(stream: Stream) -> Stream:
    """Return that stream without what falls into OFF phases; it begins with an ON phase."""
    return lambda rng: [at for at in stream(rng) if int(at // ON_OFF_S) % 2 == 0]


def poisson(per_minute: float, until_s: Seconds) -> Stream:
    """Return a Poisson process of which the number of requests is the expected one."""
    count = round(per_minute * until_s / 60.0)
    return lambda rng: sorted(rng.uniform(0.0, until_s) for _ in range(count))


def increasing(first_per_minute: float, last_per_minute: float, until_s: Seconds) -> Stream:
    """Return a stream whose rate grows linearly.

    By t there have been r₀·t + (r₁ − r₀)·t²/2T requests; request k comes when that is k + phase.
    """
    first, growth = first_per_minute / 60, (last_per_minute - first_per_minute) / 60 / until_s

    def stream(rng: random.Random) -> list[Seconds]:
        phase = rng.random()
        count = round((first + growth * until_s / 2) * until_s)
        return [
            (math.sqrt(first**2 + 2 * growth * (number + phase)) - first) / growth
            for number in range(count)
        ]

    return stream


def in_turn(*streams: Stream) -> Stream:
    """Return one stream after the other; each has its own time of the day already."""
    return lambda rng: [at for stream in streams for at in stream(rng)]


def suite(about: str, clients: Sequence[Client], duration_s: Seconds) -> Suite:
    """Return a suite of clients named `client1`, `client2`, …, as the VTC paper counts them."""

    def build(options: SuiteOptions) -> list[WorkloadApplication]:
        requests = sorted(
            (at, number)
            for number, client in enumerate(clients, start=1)
            for at in client.stream(random.Random(f"{options.seed}/client{number}"))
        )
        stretch = 1.0 if options.window_s is None else options.window_s / duration_s
        return _applications(
            (at * stretch, f"client{number}", clients[number - 1])
            for at, number in islice(requests, options.count)
        )

    return Suite(about, build, ("count", "window_s"))


def _applications(
    requests: Iterable[tuple[Seconds, str, Client]],
) -> list[WorkloadApplication]:
    return [
        request(
            number, arrived_at_s, name, client.prompt_tokens, client.output_tokens, client.weight
        )
        for number, (arrived_at_s, name, client) in enumerate(requests)
    ]


def request(
    number: int,
    arrived_at_s: Seconds,
    tenant: str,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    weight: float = 1.0,
) -> WorkloadApplication:
    """Return the application of one request; `number` is its place in the order of arrival."""
    return WorkloadApplication(
        application_id=f"a{number}",
        application_class=APPLICATION_CLASS,
        arrived_at_s=round(arrived_at_s, 6),
        inferences=(WorkloadInference("0", prompt_tokens, output_tokens),),
        tenant=tenant,
        weight=weight,
    )
