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
    """Block pool with vLLM's order: what was freed first is evicted first."""

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


class Engine:
    """Engine that computes contexts in a pool of 20 blocks; a context is named by its tokens."""

    def __init__(self) -> None:
        self.pool = Pool(20)
        self.held = HeldContexts(self.pool, step_blocks=2)
        self.now = 0.0

    def start(self, *tokens: str) -> list[PoolBlock]:
        """Allocate a block for each token, those in the cache by a hit."""
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

    def end(self, blocks: list[PoolBlock], application: str = "", for_s: float = 0) -> None:
        if for_s:
            self.held.hold(application, blocks, self.now + for_s)
        self.pool.free_blocks(reversed(blocks))

    def call(self, *tokens: str, application: str = "", for_s: float = 0) -> None:
        self.end(self.start(*tokens), application, for_s)

    def lies(self, *tokens: str) -> bool:
        """Return whether all of these tokens are cached."""
        return {*tokens} <= {block.block_hash for block in self.pool.blocks}


@pytest.fixture
def engine() -> Engine:
    return Engine()


def ones(count: int) -> list[tuple[str, str]]:
    """Return single calls of two tokens each, without a common one."""
    return [(f"{n}a", f"{n}b") for n in range(count)]


def test_context_that_is_not_held_is_evicted_by_later_single_calls(engine: Engine) -> None:
    engine.call("x", "y", "z")
    for tokens in ones(10):
        engine.call(*tokens)

    assert not engine.lies("x")


def test_held_context_outlives_any_number_of_single_calls(engine: Engine) -> None:
    engine.call("x", "y", "z", application="a", for_s=_FOREVER)
    for tokens in ones(100):
        engine.call(*tokens)

    assert engine.lies("x", "y", "z")
    assert 20 == engine.pool.get_num_free_blocks()
    assert all(not block.ref_cnt for block in engine.pool.blocks)


def test_hold_ends_with_its_time(engine: Engine) -> None:
    engine.call("x", "y", "z", application="a", for_s=5.0)
    for tokens in ones(20):
        engine.call(*tokens)
    assert engine.lies("x", "y", "z")
    engine.now = 5.0
    for tokens in ones(40)[20:]:
        engine.call(*tokens)

    assert not engine.lies("x")
    assert 0 == len(engine.held)


def test_hold_ends_with_its_application(engine: Engine) -> None:
    engine.call("x", "y", application="a", for_s=_FOREVER)
    engine.call("u", "v", application="b", for_s=_FOREVER)
    engine.held.release("a")
    for tokens in ones(40):
        engine.call(*tokens)

    assert not engine.lies("x")
    assert engine.lies("u", "v")
    engine.held.release("a")


def test_running_inference_gets_all_memory(engine: Engine) -> None:
    """Held blocks are free: nothing waits or is preempted for a hold."""
    engine.call(*"abcdefghij", application="a", for_s=_FOREVER)
    large = engine.start(*(str(n) for n in range(20)))

    assert 0 == engine.pool.get_num_free_blocks()
    engine.end(large)
    for tokens in ones(20):
        engine.call(*tokens)
    assert 0 == len(engine.held), "an evicted context is held no longer"


def test_under_pressure_the_hold_that_ends_first_is_evicted_first(engine: Engine) -> None:
    engine.call("x1", "x2", application="x", for_s=9.0)
    engine.call("y1", "y2", application="y", for_s=3.0)
    engine.call("z1", "z2", application="z", for_s=6.0)
    for tokens in ones(20):
        engine.call(*tokens)
    engine.call(*(f"large{n}" for n in range(16)))

    assert engine.lies("x1", "x2", "z1")
    assert not engine.lies("y1")
    assert not engine.lies("y2")


def test_last_tokens_of_a_held_context_are_evicted_first(engine: Engine) -> None:
    """The beginning is of use without the end, and the end is not without the beginning."""
    engine.call("x", "y", "z", application="a", for_s=_FOREVER)
    for tokens in ones(20):
        engine.call(*tokens)
    engine.call(*(f"large{n}" for n in range(18)))

    assert engine.lies("x", "y")
    assert not engine.lies("z")


def test_next_inference_ends_the_hold_of_the_context_that_it_continues(engine: Engine) -> None:
    engine.call("x", "y", application="a", for_s=_FOREVER)
    running = engine.start("x", "y", "z")
    assert 0 == len(engine.held)
    engine.end(running, "a", _FOREVER)
    for tokens in ones(20):
        engine.call(*tokens)

    assert 1 == len(engine.held)
    assert engine.lies("x", "y", "z")


def test_parallel_inferences_of_an_application_keep_both_contexts(engine: Engine) -> None:
    first, second = engine.start("x", "y"), engine.start("x", "z")
    engine.end(first, "a", _FOREVER)
    engine.end(second, "a", _FOREVER)
    for tokens in ones(20):
        engine.call(*tokens)

    assert 2 == len(engine.held)
    assert engine.lies("x", "y", "z")


def test_at_most_three_quarters_of_the_free_blocks_are_kept_back(engine: Engine) -> None:
    for number in range(5):
        tokens = [f"{number}{token}" for token in "abcd"]
        engine.call(*tokens, application=str(number), for_s=10.0 + number)
    for number in range(5):
        engine.call(f"new{number}")
    engine.call(*(f"large{n}" for n in range(5)))

    assert [False, False, True, True, True] == [engine.lies(f"{n}a", f"{n}d") for n in range(5)]


def test_one_application_has_a_limited_number_of_holds(engine: Engine) -> None:
    for number in range(9):
        engine.call(f"{number}", application="a", for_s=_FOREVER)

    assert 8 == len(engine.held)


def test_block_without_cached_tokens_is_not_held(engine: Engine) -> None:
    blocks = engine.start("x", "y")
    blocks[1].block_hash = None
    engine.end(blocks, "a", _FOREVER)
    blank = engine.start("u")
    blank[0].block_hash = None
    engine.end(blank, "b", _FOREVER)

    assert 1 == len(engine.held)


def test_reset_of_the_cache_ends_all_holds(engine: Engine) -> None:
    engine.call("x", "y", application="a", for_s=_FOREVER)
    for block in engine.pool.blocks:
        block.block_hash = None
    for tokens in ones(20):
        engine.call(*tokens)

    assert 0 == len(engine.held)


def test_held_blocks_are_moved_at_most_four_times_for_each_block_taken() -> None:
    """A move costs time in the engine's loop."""
    engine, moved = Engine(), 0
    engine.call(*"abcdefghijklmno", application="a", for_s=_FOREVER)
    touch = engine.pool.touch

    def count(blocks: Sequence[Block]) -> None:
        nonlocal moved
        moved += len(blocks)
        touch(blocks)

    engine.pool.touch = count  # type: ignore[method-assign]
    for number in range(100):
        engine.call(f"single{number}")
    moved -= 100  # the calls touch their own blocks

    assert engine.lies(*"abcdefghijklm")
    assert 100 < moved <= 4 * 100


_STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # application
        st.integers(1, 9),  # tokens of its context
        st.sampled_from([0.0, 1.0, 5.0, _FOREVER]),  # time of the hold
        st.integers(0, 3),  # inferences that end afterwards
        st.floats(0.0, 2.0),  # time that passes
    ),
    max_size=40,
)


@given(_STEPS)
def test_held_blocks_are_never_nearer_to_eviction_than_was_counted(
    steps: list[tuple[str, int, float, int, float]],
) -> None:
    """If the count were too high, held blocks would be evicted without a move."""
    engine = Engine()
    running: list[tuple[list[PoolBlock], str, float]] = []
    for application, length, for_s, ends, passes_s in steps:
        tokens = [f"{application}{n}" for n in range(length)]
        if len(tokens) <= engine.pool.get_num_free_blocks():
            running.append((engine.start(*tokens), application, for_s))
        for blocks, name, held_s in running[:ends]:
            engine.end(blocks, name, held_s)
        del running[:ends]
        engine.now += passes_s
        moved = {block for block in engine.held._ids if not engine.pool.blocks[block].ref_cnt}
        queue = [block.block_id for block in engine.pool.queue]
        if len(engine.held):
            first = next((n for n, block in enumerate(queue) if block in moved), len(queue))
            assert first >= min(engine.held._in_front, len(queue))
    for blocks, _, _ in running:
        engine.end(blocks)
    assert 20 == engine.pool.get_num_free_blocks()
    assert all(not block.ref_cnt for block in engine.pool.blocks)
