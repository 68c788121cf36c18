"""Tests of the small parts of a run: timetable, graph, memory, prefixes, V over time."""

import pytest

from justitia_ray.sim.kv_memory import PrefixCache, SimulatedSequence
from justitia_ray.sim.results import InferenceResult
from tests.unit.sim.small_run import engine


def sequence_of(
    prompt: int, made: int = 0, application_id: str = "a", client: str = "t"
) -> SimulatedSequence:
    """Return a sequence that gains tokens from iteration 0 on."""
    row = InferenceResult(application_id, "0", 0, 0, 0, None, None, prompt, 99)
    name = f"{application_id}/{prompt}"
    return SimulatedSequence(
        name, name, application_id, client, prompt, 99, row, prompt, True, made, 0, True
    )


@pytest.mark.parametrize(
    ("free", "prompt", "block_size", "computed"),
    [
        (100, 30, 1, 10),
        (100, 30, 8, 14),
        (100, 20, 1, 1),
        (100, 19, 1, 19),
        (20, 20, 1, 1),
        (19, 30, 1, 30),
    ],
)
def test_prompt_finds_the_cached_part_of_its_prefix(
    free: int, prompt: int, block_size: int, computed: int
) -> None:
    cache = PrefixCache(engine(1000, prefix_caching=True, block_size=block_size))
    cache.keep_context(sequence_of(15, 5))
    following = sequence_of(prompt)
    cache.use_prefix(following, free)

    assert computed == following.prefill_tokens


def test_least_recently_used_prefix_is_evicted_first() -> None:
    cache = PrefixCache(engine(1000, prefix_caching=True))
    for name in ("a", "b", "a"):
        cache.keep_context(sequence_of(15, 5, name))
    cache.use_prefix(sequence_of(60, application_id="c"), 90)
    found = []
    for name in ("a", "b"):
        following = sequence_of(30, application_id=name)
        cache.use_prefix(following, 90)
        found.append(following.prefill_tokens)

    assert [10, 30] == found
