"""Iterations and the prefix cache with small numbers computed by hand.

The differential test (`tests/conformance/test_engine_model.py`) compares the rules with vLLM's own.
"""

from collections.abc import Hashable, Sequence

import pytest

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.contents import ContentTree, TokenContent
from justitia_ray.engine_model.steps import EngineSequence, StepScheduler


class EngineDriver:
    """Engine model with the sequences submitted to it."""

    def __init__(
        self,
        blocks: int,
        block_size: int = 1,
        *,
        caching: bool = True,
        max_batched_tokens: int = 8192,
    ) -> None:
        self.steps: StepScheduler[EngineSequence] = StepScheduler(
            BlockPool(blocks, caching=caching),
            block_size,
            max_batched_tokens=max_batched_tokens,
        )
        self.tree = ContentTree(block_size)
        self._arrivals = 0

    def add_sequence(
        self,
        prompt: Sequence[Hashable],
        max_tokens: int = 1,
        priority: int = 0,
        apart: Hashable = None,
        *,
        reads_cache: bool = True,
    ) -> EngineSequence:
        self._arrivals += 1
        sequence = EngineSequence(
            content=self.tree.content(prompt, apart),
            arrival=self._arrivals,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            priority=priority,
            reads_cache=reads_cache,
        )
        self.steps.add(sequence)
        return sequence

    def step(self) -> dict[EngineSequence, int]:
        """Run one iteration; the tokens it generates differ from all others."""
        step = self.steps.plan()
        for sequence in self.steps.end(step):
            assert isinstance(sequence.content, TokenContent)
            sequence.content.append([object()])
        return step

    def run_sequence(self, prompt: Sequence[Hashable], max_tokens: int = 1) -> EngineSequence:
        """Run a single sequence to its end."""
        sequence = self.add_sequence(prompt, max_tokens)
        while not sequence.finished:
            self.step()
        return sequence


def test_prompts_are_admitted_while_they_fit() -> None:
    """No block is reserved for future tokens."""
    engine = EngineDriver(100)
    sequences = [
        engine.add_sequence(range(start, stop), 9)
        for start, stop in ((0, 40), (50, 108), (200, 204))
    ]

    engine.step()

    assert sequences[:2] == engine.steps.running
    assert 2 == engine.steps.pool.free_blocks


def test_memory_overflow_preempts_the_last_sequence() -> None:
    """The sequence is computed again with its tokens, so none is generated twice."""
    engine = EngineDriver(100)
    last, first = (
        engine.add_sequence(range(49), 9, priority=2),
        engine.add_sequence(range(50, 100), 9, priority=1),
    )
    engine.step()  # 99 blocks

    engine.step()  # the first sequence takes the last block, and none is left for the other

    assert [first] == engine.steps.running
    assert [last] == engine.steps.waiting
    assert (last.generated, last.computed, last.preemptions) == (1, 0, 1)
    assert 1 == engine.steps.preemptions


def test_preempted_sequence_reuses_its_computed_blocks() -> None:
    engine = EngineDriver(100)
    last, first = (
        engine.add_sequence(range(49), 9, priority=2),
        engine.add_sequence(range(50, 100), 3, priority=1),
    )
    while not first.finished:
        engine.step()

    step = engine.step()

    # the preempted sequence computes its lost token and the generated token again
    assert 2 == step[last]
    assert (last.recomputed, first.recomputed) == (1, 0)


def test_sequence_without_a_cache_computes_all_of_its_tokens_again() -> None:
    engine = EngineDriver(100, caching=False)
    last, first = (
        engine.add_sequence(range(49), 9, priority=2),
        engine.add_sequence(range(50, 100), 3, priority=1),
    )
    while not last.finished:
        engine.step()

    assert (last.recomputed, last.preemptions) == (49, 1)
    assert first.recomputed == 0


def test_long_prompt_is_computed_in_chunks_beside_decoding_sequences() -> None:
    engine = EngineDriver(1_000, max_batched_tokens=100)
    short = engine.add_sequence(range(10), 9)
    engine.step()
    long = engine.add_sequence(range(1_000, 1_250), 9)

    assert [{short: 1, long: 99}, {short: 1, long: 99}, {short: 1, long: 52}] == [
        engine.step() for _ in range(3)
    ]
    assert 1 == long.generated


def test_engine_computes_at_least_the_last_block_of_a_prompt() -> None:
    engine = EngineDriver(100, block_size=4)
    engine.run_sequence(range(16))

    assert 12 == engine.run_sequence(range(16)).cached_tokens
    assert 16 == engine.run_sequence(range(17)).cached_tokens


def test_output_is_cached_when_it_fills_a_block() -> None:
    """The last token was never computed, so the block that it fills is not cached."""
    engine = EngineDriver(100, block_size=4)
    said = engine.add_sequence("abcd", 9)
    words = [f"w{i}" for i in range(9)]
    assert isinstance(said.content, TokenContent)
    said.content.append(words)
    while not said.finished:
        engine.steps.end(engine.steps.plan())

    assert 12 == engine.run_sequence([*"abcd", *words, "more"]).cached_tokens
    assert 8 == engine.run_sequence([*"abcd", *words[:5], "x", "y", "z"]).cached_tokens


@pytest.mark.parametrize(("apart", "cached"), [("salt", 8), ("other", 0), (None, 0)])
def test_sequences_with_different_salts_share_no_blocks(apart: Hashable, cached: int) -> None:
    engine = EngineDriver(100, block_size=4)
    engine.add_sequence(range(10), apart="salt")
    engine.step()

    again = engine.add_sequence(range(10), apart=apart)
    engine.step()

    assert cached == again.cached_tokens


def test_prompt_with_requested_probabilities_never_hits_the_cache() -> None:
    engine = EngineDriver(100, block_size=4)
    engine.run_sequence(range(10))

    asked = engine.add_sequence(range(10), reads_cache=False)
    engine.step()

    assert 0 == asked.cached_tokens


def test_equal_prompts_of_one_iteration_share_blocks() -> None:
    """A prompt's blocks can be shared as soon as they are allocated."""
    engine = EngineDriver(100, block_size=4)
    first, second = engine.add_sequence(range(10)), engine.add_sequence(range(10))

    assert {first: 10, second: 2} == engine.step()


def test_last_block_of_the_least_recently_freed_context_is_evicted_first() -> None:
    """A waiting agent's context is evicted before that of any call that ended later."""
    engine = EngineDriver(12, block_size=4)
    old, new = range(16), range(100, 116)
    engine.run_sequence(old)  # 4 blocks
    engine.run_sequence(new)  # 4 blocks
    engine.run_sequence(range(200, 224))

    assert 12 == engine.run_sequence(new).cached_tokens
    assert 4 == engine.run_sequence(old).cached_tokens


def test_shared_prefix_is_stored_once_while_a_sequence_holds_it() -> None:
    engine = EngineDriver(100, block_size=4)
    system = list(range(40))
    sequences = [
        engine.add_sequence([*system, *range(100 * k, 100 * k + 8)], 1 + k) for k in (1, 2, 3)
    ]
    engine.step()

    assert 100 - (10 + 3 * 2) == engine.steps.pool.free_blocks
    for left in (10 + 2 * 3, 10 + 3):  # a decoding sequence has one more block
        engine.step()
        assert 100 - left == engine.steps.pool.free_blocks
    engine.steps.remove(sequences[-1])
    assert 100 == engine.steps.pool.free_blocks


def test_sequence_removed_within_an_iteration_generates_no_token() -> None:
    engine = EngineDriver(100)
    left, stays = engine.add_sequence("abc", 5), engine.add_sequence("xyz", 5)
    step = engine.steps.plan()

    engine.steps.remove(left)

    assert [stays] == engine.steps.end(step)
    assert 0 == left.generated
    assert 97 == engine.steps.pool.free_blocks


def test_cached_prefixes_are_forgotten_with_their_last_block() -> None:
    """A service that runs for months must not store a name for every prompt."""
    engine = EngineDriver(8, block_size=4)
    for start in range(0, 4_000, 40):
        engine.run_sequence(range(start, start + 30), 2)

    assert len(engine.tree._roots) <= 1
    root = engine.tree._roots.get(None)
    assert root is None or len(root.children or ()) <= 2
