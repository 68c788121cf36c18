"""Load of a chaos run: applications of several forms, generated from the seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from justitia_ray.errors import ConfigError
from justitia_ray.units import ApplicationId, Seconds, Tokens
from tests.harness.planned import PlannedInference

CLASSES = ("one", "fan-out", "chain", "map-reduce")
TENANTS = ("team-a", "team-b", "team-c")
WEIGHTS = (1.0, 1.0, 2.0, 4.0)

_ARRIVE_WITHIN_S: Seconds = 0.5
_PROMPT_WORDS = (4, 40)
_STREAMED = 0.5
_CHATS = 0.5
TWO_CHOICES = 0.15
"""Share of unary calls that request two choices; a stream of several choices cannot be continued.
"""
_OVER_HANDLE = 0.2


@dataclass(frozen=True, slots=True)
class PlannedApplication:
    """Application of a chaos load; each stage starts after the answers of the previous stage."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    stages: tuple[tuple[PlannedInference, ...], ...]
    phase: int
    """Number of the fault round in which the application arrives; a last phase follows all rounds.
    """
    delay_s: Seconds
    """Seconds from the begin of the phase until the application arrives."""
    over_handle: bool
    """Whether the application calls through a Serve handle instead of HTTP."""

    @property
    def inferences(self) -> tuple[PlannedInference, ...]:
        return tuple(inference for stage in self.stages for inference in stage)


def call_body(inference: PlannedInference, call: int) -> dict[str, Any]:
    """Return the request body for the given attempt at an inference.

    The name travels in OpenAI's `user`, which engines ignore and the replicas' journal records.
    """
    return inference.body(temperature=0, ignore_eos=True, user=f"{inference.name}#{call}")


class _DrawRanges(NamedTuple):
    """Ranges from which the sizes of a load's inferences are drawn."""

    output_tokens: tuple[Tokens, Tokens]
    two_choices: float


def draw_load(
    seed: int,
    applications: int,
    inferences: int,
    phases: int,
    output_tokens: tuple[Tokens, Tokens] = (20, 100),
    two_choices: float = TWO_CHOICES,
) -> tuple[PlannedApplication, ...]:
    """Return random applications with `inferences` inferences in total, spread over the phases.

    Args:
        seed: The same seed and arguments give the same load.
        applications: How many.
        inferences: How many in all of them.
        phases: One for each fault, and one to end with.
        output_tokens: Least and most output of an inference.
        two_choices: Share of the unary calls; vLLM refuses them of greedy decoding.

    Raises:
        ConfigError: If there are fewer applications than phases, or inferences than applications.
    """
    if not phases <= applications <= inferences:
        raise ConfigError(
            f"{applications} applications of {inferences} inferences in {phases} phases: at least"
            " one application in each phase and one inference in each application are needed"
        )
    random_source = random.Random(f"load {seed}")
    sizes = _application_sizes(random_source, applications, inferences)
    return tuple(
        _draw_application(
            random_source,
            number,
            size,
            number * phases // applications,
            _DrawRanges(output_tokens, two_choices),
        )
        for number, size in enumerate(sizes)
    )


def draw_long_streams(
    seed: int, phases: int, streams: int, output_tokens: tuple[Tokens, Tokens]
) -> tuple[PlannedApplication, ...]:
    """Return applications with streams so long that they outlast the other calls of a phase.

    Args:
        seed: The same seed and arguments give the same applications.
        phases: How many.
        streams: Inferences of each, side by side.
        output_tokens: Least and most output of an inference.
    """
    random_source = random.Random(f"tails {seed}")
    drawn = _DrawRanges(output_tokens, 0.0)
    return tuple(
        PlannedApplication(
            f"tail-{phase:04}",
            "fan-out",
            random_source.choice(TENANTS),
            1.0,
            (
                tuple(
                    replace(
                        _draw_inference(random_source, f"tail-{phase:04}.{i}", drawn), stream=True
                    )
                    for i in range(streams)
                ),
            ),
            phase,
            0.0,
            over_handle=False,
        )
        for phase in range(phases)
    )


def _application_sizes(
    random_source: random.Random, applications: int, inferences: int
) -> list[int]:
    """Return the number of inferences of each application: most are small, few are large."""
    shares = [random_source.expovariate(1.0) for _ in range(applications)]
    left = inferences - applications
    total = sum(shares)
    sizes = [1 + int(left * share / total) for share in shares]
    for number in random_source.choices(range(applications), k=inferences - sum(sizes)):
        sizes[number] += 1
    return sizes


def _draw_application(
    random_source: random.Random, number: int, size: int, phase: int, drawn: _DrawRanges
) -> PlannedApplication:
    application_id = f"chaos-{number:04}"
    over_handle = random_source.random() < _OVER_HANDLE
    inferences = [
        _draw_inference(random_source, f"{application_id}.{i}", drawn) for i in range(size)
    ]
    application_class = CLASSES[0] if size == 1 else random_source.choice(CLASSES[1:])
    return PlannedApplication(
        application_id,
        application_class,
        random_source.choice(TENANTS),
        random_source.choice(WEIGHTS),
        tuple(_draw_stages(application_class, inferences)),
        phase,
        random_source.uniform(0.0, _ARRIVE_WITHIN_S),
        over_handle,
    )


def _draw_inference(
    random_source: random.Random, name: str, drawn: _DrawRanges
) -> PlannedInference:
    words = (
        f"word{random_source.randrange(1000)}" for _ in range(random_source.randint(*_PROMPT_WORDS))
    )
    stream = random_source.random() < _STREAMED
    split = random_source.random() < drawn.two_choices
    return PlannedInference(
        name,
        f"{name} {' '.join(words)}",
        random_source.randint(*drawn.output_tokens),
        stream,
        chat=random_source.random() < _CHATS,
        choices=2 if split and not stream else 1,
    )


def _draw_stages(
    application_class: str, drawn: list[PlannedInference]
) -> Iterator[tuple[PlannedInference, ...]]:
    if application_class == "chain":
        yield from ((inference,) for inference in drawn)
    elif application_class == "map-reduce":
        yield tuple(drawn[:-1])
        yield tuple(drawn[-1:])
    else:
        yield tuple(drawn)
