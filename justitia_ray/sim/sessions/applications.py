"""Applications of a workload as sessions: their inferences are turns on replicas with a cache.

A workload has lengths and no tokens, so equal contents follow from the application's class. In
classes that run in turns each prompt continues the one before it. In self-consistency, document
merging and code checks, inferences of one stage with equal prompt lengths have the same prompt. All
other prompts are different, also those of two applications of a class, whose templates are not
recorded.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from justitia_ray.core.prefixes import DIGEST_BYTES, Prefix, pack_prefixes
from justitia_ray.errors import ConfigError
from justitia_ray.sim.sessions.trace import Session, TextChain, Turn
from justitia_ray.sim.suites.measured_classes import LOOPS
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Tokens

SAME_PROMPTS = frozenset({"SC", "DM", "CC"})
"""Classes whose inferences of one stage repeat a prompt."""


def sessions_of(applications: Sequence[WorkloadApplication], block_size: Tokens) -> list[Session]:
    """Return each application as a session that begins at its arrival.

    Args:
        applications: Applications with different ids.
        block_size: Tokens of a block of the engines.

    Raises:
        ConfigError: If an inference comes before one of those that it waits for.
    """
    digests = iter(range(2 ** (8 * DIGEST_BYTES)))
    return [
        Session(
            application.application_id,
            tuple(_turns(application, block_size, digests)),
            application.application_class,
            application.arrived_at_s,
        )
        for application in applications
    ]


def _turns(
    application: WorkloadApplication, block_size: Tokens, digests: Iterator[int]
) -> Iterable[Turn]:
    is_loop = application.application_class in LOOPS
    repeats = application.application_class in SAME_PROMPTS
    groups = Counter(map(_group, application.inferences)) if repeats else Counter()
    chains: dict[object, TextChain] = {}
    prefixes: dict[object, bytes] = {}
    places: dict[str, int] = {}
    before: Tokens = 0
    for place, inference in enumerate(application.inferences):
        if not places.keys() >= set(inference.after):
            raise ConfigError(
                f"application {application.application_id!r}: inference"
                f" {inference.inference_id!r} comes before one that it waits for"
            )
        prompt = inference.prompt_tokens
        group: object = None if is_loop else _group(inference) if repeats else place
        chain = chains.setdefault(group, TextChain())
        if groups[group] > 1 and group not in prefixes:
            digest = next(digests).to_bytes(DIGEST_BYTES, "big")
            prefixes[group] = pack_prefixes([Prefix(prompt // block_size * block_size, digest)])
        yield Turn(
            prompt,
            inference.output_tokens,
            inference.delay_s,
            ((chain, prompt),),
            calls_tool=is_loop and place + 1 < len(application.inferences),
            after=tuple(places[name] for name in inference.after),
            continued_tokens=min(before, prompt) if is_loop else 0,
            prefixes=prefixes.get(group, b""),
        )
        places[inference.inference_id] = place
        before = prompt


def _group(inference: WorkloadInference) -> object:
    """Return a key that is equal for inferences of one stage with equal prompt lengths."""
    return inference.after, inference.delay_s, inference.prompt_tokens
