"""Held contexts are evicted last, while every free block stays free."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.serve.engines.held_contexts import Block, HeldContexts

_FOREVER = 1000.0


@dataclass(eq=False)
class PoolBlock:
    """Block with the attributes of vLLM's `KVCacheBlock`."""

    block_id: int
    ref_cnt: int = 0
    is_null: bool = False
    block_hash: object | None = None


class Pool:
    """Block pool with vLLM's order: the block that was freed first is evicted first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = [PoolBlock(n) for n in range(blocks)]
        self.queue = list(self.blocks)

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if not block.ref_cnt:
                self.queue.remove(self.blocks[block.block_id])
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.queue.append(self.blocks[block.block_id])

    def get_num_free_blocks(self) -> int:
        return len(self.queue)


class ContextEngine:
    """Engine that computes contexts in a pool of 20 blocks; a context is named by its tokens."""

    def __init__(self) -> None:
        self.pool = Pool(20)
        self.held = HeldContexts(self.pool, step_blocks=2)
        self.now = 0.0

    def start_call(self, *tokens: str) -> list[PoolBlock]:
        """Allocate a block for each token; cached tokens are found."""
        cached = {block.block_hash: block for block in self.pool.blocks if block.block_hash}
        found = [cached[token] for token in tokens if token in cached]
        self.held.make_room(len(tokens) - len(found), self.now)
        self.pool.touch(found)
        new = self.pool.queue[: len(tokens) - len(found)]
        self.pool.touch(new)
        blocks = [*found, *new]
        for block, token in zip(blocks, tokens, strict=True):
            block.block_hash = token
        self.held.allocated([block.block_id for block in blocks], self.now)
        return blocks

    def end_call(self, blocks: list[PoolBlock], application: str = "", for_s: float = 0) -> None:
        if for_s:
            self.held.hold(application, blocks, self.now + for_s)
        self.pool.free_blocks(reversed(blocks))

    def run_call(self, *tokens: str, application: str = "", for_s: float = 0) -> None:
        self.end_call(self.start_call(*tokens), application, for_s)

    def is_cached(self, *tokens: str) -> bool:
        return {*tokens} <= {block.block_hash for block in self.pool.blocks}


@pytest.fixture
def engine() -> ContextEngine:
    return ContextEngine()


def single_calls(count: int) -> list[tuple[str, str]]:
    """Return single calls of two tokens each, without a common token."""
    return [(f"{n}a", f"{n}b") for n in range(count)]


def test_context_without_a_hold_is_evicted_by_later_calls(engine: ContextEngine) -> None:
    engine.run_call("x", "y", "z")
    for tokens in single_calls(10):
        engine.run_call(*tokens)

    assert not engine.is_cached("x")


def test_held_context_survives_any_number_of_single_calls(engine: ContextEngine) -> None:
    engine.run_call("x", "y", "z", application="a", for_s=_FOREVER)
    for tokens in single_calls(100):
        engine.run_call(*tokens)

    assert engine.is_cached("x", "y", "z")
    assert 20 == engine.pool.get_num_free_blocks()
    assert all(not block.ref_cnt for block in engine.pool.blocks)


def test_context_hold_ends_at_its_expiry_time(engine: ContextEngine) -> None:
    engine.run_call("x", "y", "z", application="a", for_s=5.0)
    for tokens in single_calls(20):
        engine.run_call(*tokens)
    assert engine.is_cached("x", "y", "z")
    engine.now = 5.0
    for tokens in single_calls(40)[20:]:
        engine.run_call(*tokens)

    assert not engine.is_cached("x")
    assert 0 == len(engine.held)


def test_hold_of_a_context_ends_with_its_application(engine: ContextEngine) -> None:
    engine.run_call("x", "y", application="a", for_s=_FOREVER)
    engine.run_call("u", "v", application="b", for_s=_FOREVER)
    engine.held.release("a")
    for tokens in single_calls(40):
        engine.run_call(*tokens)

    assert not engine.is_cached("x")
    assert engine.is_cached("u", "v")
    engine.held.release("a")


def test_running_inference_may_use_the_memory_of_all_held_contexts(engine: ContextEngine) -> None:
    """Held blocks are free, so no inference waits or is preempted for a hold."""
    engine.run_call(*"abcdefghij", application="a", for_s=_FOREVER)
    large = engine.start_call(*(str(n) for n in range(20)))

    assert 0 == engine.pool.get_num_free_blocks()
    engine.end_call(large)
    for tokens in single_calls(20):
        engine.run_call(*tokens)
    assert 0 == len(engine.held), "an evicted context is held no longer"


def test_context_with_the_earliest_end_of_hold_is_evicted_first(engine: ContextEngine) -> None:
    engine.run_call("x1", "x2", application="x", for_s=9.0)
    engine.run_call("y1", "y2", application="y", for_s=3.0)
    engine.run_call("z1", "z2", application="z", for_s=6.0)
    for tokens in single_calls(20):
        engine.run_call(*tokens)
    engine.run_call(*(f"large{n}" for n in range(16)))

    assert engine.is_cached("x1", "x2", "z1")
    assert not engine.is_cached("y1")
    assert not engine.is_cached("y2")


def test_end_of_a_held_context_is_evicted_before_its_beginning(engine: ContextEngine) -> None:
    """The beginning of a context is useful without its end, not the reverse."""
    engine.run_call("x", "y", "z", application="a", for_s=_FOREVER)
    for tokens in single_calls(20):
        engine.run_call(*tokens)
    engine.run_call(*(f"large{n}" for n in range(18)))

    assert engine.is_cached("x", "y")
    assert not engine.is_cached("z")


def test_next_inference_of_an_application_ends_the_hold_of_its_context(
    engine: ContextEngine,
) -> None:
    engine.run_call("x", "y", application="a", for_s=_FOREVER)
    running = engine.start_call("x", "y", "z")
    assert 0 == len(engine.held)
    engine.end_call(running, "a", _FOREVER)
    for tokens in single_calls(20):
        engine.run_call(*tokens)

    assert 1 == len(engine.held)
    assert engine.is_cached("x", "y", "z")


def test_parallel_inferences_of_an_application_keep_both_contexts(engine: ContextEngine) -> None:
    first, second = engine.start_call("x", "y"), engine.start_call("x", "z")
    engine.end_call(first, "a", _FOREVER)
    engine.end_call(second, "a", _FOREVER)
    for tokens in single_calls(20):
        engine.run_call(*tokens)

    assert 2 == len(engine.held)
    assert engine.is_cached("x", "y", "z")


def test_at_most_three_quarters_of_the_free_blocks_are_held(engine: ContextEngine) -> None:
    for number in range(5):
        tokens = [f"{number}{token}" for token in "abcd"]
        engine.run_call(*tokens, application=str(number), for_s=10.0 + number)
    for number in range(5):
        engine.run_call(f"new{number}")
    engine.run_call(*(f"large{n}" for n in range(5)))

    assert [False, False, True, True, True] == [
        engine.is_cached(f"{n}a", f"{n}d") for n in range(5)
    ]


def test_number_of_holds_of_an_application_is_bounded(engine: ContextEngine) -> None:
    for number in range(9):
        engine.run_call(f"{number}", application="a", for_s=_FOREVER)

    assert 8 == len(engine.held)


def test_kv_block_without_cached_tokens_is_not_held(engine: ContextEngine) -> None:
    blocks = engine.start_call("x", "y")
    blocks[1].block_hash = None
    engine.end_call(blocks, "a", _FOREVER)
    blank = engine.start_call("u")
    blank[0].block_hash = None
    engine.end_call(blank, "b", _FOREVER)

    assert 1 == len(engine.held)


def test_reset_of_the_prefix_cache_ends_all_holds(engine: ContextEngine) -> None:
    engine.run_call("x", "y", application="a", for_s=_FOREVER)
    for block in engine.pool.blocks:
        block.block_hash = None
    for tokens in single_calls(20):
        engine.run_call(*tokens)

    assert 0 == len(engine.held)


def test_cached_blocks_are_counted_for_each_expiry_time_of_a_hold(engine: ContextEngine) -> None:
    engine.run_call("x", "y", "z", application="a", for_s=3.0)
    engine.run_call("u", "v", application="b", for_s=5.0)

    assert [(5.0, 2), (3.0, 3)] == engine.held.cached_blocks(0.0)


def test_block_of_two_held_contexts_counts_once_until_the_later_expiry(
    engine: ContextEngine,
) -> None:
    engine.run_call("x", "y", application="a", for_s=5.0)
    engine.run_call("x", "z", "w", application="b", for_s=3.0)

    assert [(5.0, 2), (3.0, 2)] == engine.held.cached_blocks(0.0)
    assert [(5.0, 2)] == engine.held.cached_blocks(3.0)


def test_evicted_blocks_of_a_held_context_are_not_counted(engine: ContextEngine) -> None:
    engine.run_call("x", "y", "z", application="a", for_s=_FOREVER)
    for tokens in single_calls(20):
        engine.run_call(*tokens)
    engine.run_call(*(f"large{n}" for n in range(18)))

    assert [(_FOREVER, 2)] == engine.held.cached_blocks(0.0)
    engine.run_call(*(f"all{n}" for n in range(20)))
    assert [] == engine.held.cached_blocks(0.0)


def test_change_counter_rises_at_the_begin_and_end_of_a_hold(engine: ContextEngine) -> None:
    seen = [engine.held.changes]
    engine.run_call("x", "y", application="a", for_s=_FOREVER)
    seen.append(engine.held.changes)
    engine.held.release("a")
    seen.append(engine.held.changes)
    engine.held.release("a")
    engine.run_call("u")
    seen.append(engine.held.changes)

    assert seen[0] < seen[1] < seen[2] == seen[3]


def test_held_blocks_are_moved_at_most_four_times_per_allocated_block() -> None:
    """Moving blocks takes time in the engine's loop."""
    engine, moved = ContextEngine(), 0
    engine.run_call(*"abcdefghijklmno", application="a", for_s=_FOREVER)
    touch = engine.pool.touch

    def count_and_touch(blocks: Sequence[Block]) -> None:
        nonlocal moved
        moved += len(blocks)
        touch(blocks)

    engine.pool.touch = count_and_touch  # type: ignore[method-assign]
    for number in range(100):
        engine.run_call(f"single{number}")
    moved -= 100  # The calls touch their own blocks.

    assert engine.is_cached(*"abcdefghijklm")
    assert 100 < moved <= 4 * 100


_STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # application
        st.integers(1, 9),  # tokens of its context
        st.sampled_from([0.0, 1.0, 5.0, _FOREVER]),  # time of the hold
        st.integers(0, 3),  # Inferences that end afterwards.
        st.floats(0.0, 2.0),  # time that passes
    ),
    max_size=40,
)


@given(_STEPS)
def test_held_blocks_are_moved_before_eviction_reaches_them(
    steps: list[tuple[str, int, float, int, float]],
) -> None:
    """If held blocks were nearer, they would be evicted before they are moved."""
    engine = ContextEngine()
    running: list[tuple[list[PoolBlock], str, float]] = []
    for application, length, for_s, ends, passes_s in steps:
        tokens = [f"{application}{n}" for n in range(length)]
        if len(tokens) <= engine.pool.get_num_free_blocks():
            running.append((engine.start_call(*tokens), application, for_s))
        for blocks, name, held_s in running[:ends]:
            engine.end_call(blocks, name, held_s)
        del running[:ends]
        engine.now += passes_s
        moved = {block for block in engine.held._ids if not engine.pool.blocks[block].ref_cnt}
        queue = [block.block_id for block in engine.pool.queue]
        if len(engine.held):
            first = next((n for n, block in enumerate(queue) if block in moved), len(queue))
            assert first >= min(engine.held._in_front, len(queue))
    for blocks, _, _ in running:
        engine.end_call(blocks)
    counted = engine.held.cached_blocks(engine.now)
    assert all(ends_at > engine.now for ends_at, _ in counted)
    assert sum(blocks for _, blocks in counted) <= 20
    assert [] == engine.held.cached_blocks(engine.now + _FOREVER), "every hold ends by itself"
    assert 20 == engine.pool.get_num_free_blocks()
    assert all(not block.ref_cnt for block in engine.pool.blocks)
