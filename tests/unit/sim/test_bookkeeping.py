"""The small parts of a run: timetable, graph, memory, prefixes, V over time."""

import math

import pytest

from justitia_ray.sim.gps_history import GpsHistory
from justitia_ray.sim.inference_graph import InferenceGraph
from justitia_ray.sim.kv_memory import KvMemory
from justitia_ray.sim.prefix_cache import PrefixCache
from justitia_ray.sim.results import InferenceResult
from justitia_ray.sim.sequence import Sequence
from justitia_ray.sim.timetable import Timetable
from tests.unit.sim.small_run import app, engine


def sequence(prompt: int, made: int = 0, application_id: str = "a", client: str = "t") -> Sequence:
    """Return a sequence that gains tokens from iteration 0 on."""
    row = InferenceResult(application_id, "0", 0, 0, 0, None, None, prompt, 99)
    name = f"{application_id}/{prompt}"
    return Sequence(name, name, application_id, client, prompt, 99, row, prompt, made, 0, True)


def test_timetable_moves_forgets_and_takes_by_index() -> None:
    """An instant set before must not wake a replica again."""
    table = Timetable(3)
    table.set(2, 5.0)
    table.set(0, 7.0)
    table.set(0, 4.0)
    table.set(1, 3.0)
    table.set(1, None)

    assert 4.0 == table.next()
    assert [True, False, True] == [table.has(index) for index in range(3)]
    assert [0, 2] == table.take(6.0)
    assert (math.inf, []) == (table.next(), table.take(9.0))


def test_timetable_cleared_wakes_nobody_until_it_is_set_again() -> None:
    """When nothing waits, no replica has anything to ask for."""
    table = Timetable(2)
    table.set(0, 4.0)
    table.clear()

    assert (math.inf, False) == (table.next(), table.has(0))
    table.set(0, 4.0)
    assert [0] == table.take(4.0)


def test_graph_frees_what_waits_for_several_with_the_last() -> None:
    """A diamond; `after` may name one twice, in a file that was written by hand."""
    nothing = 0.0
    diamond = app(
        "a", (1, 1), (1, 1, ("0",), nothing), (1, 1, ("0",), nothing), (1, 1, ("1", "2", "1"), 0.0)
    )
    graph = InferenceGraph()

    assert ["0"] == [root.inference_id for root in graph.arrive(diamond)]
    assert ["1", "2"] == [i.inference_id for _, i in graph.finish("a", "0")]
    assert [] == graph.finish("a", "2")
    assert [(diamond, diamond.inferences[3])] == graph.finish("a", "1")
    assert [] == graph.finish("a", "3")
    assert [] == graph.finish("a", "3"), "it is forgotten by then"


def test_memory_overflows_when_the_next_iteration_needs_a_block_too_many() -> None:
    """5 and 6 tokens, M = 16 in blocks of 4: 8 + 8 until 7 and 8, then 8 + 12."""
    running = [sequence(5), sequence(6)]

    assert 2 == KvMemory(engine(16, block_size=4)).overflows_at(running, 11, 0, 10)
    assert 1 == KvMemory(engine(16, block_size=4)).overflows_at(running, 11, 0, 1)
    assert 2 == KvMemory(engine(16)).overflows_at(running, 11, 0, 10)
    assert 10 == KvMemory(engine(31)).overflows_at(running, 11, 0, 10)
    assert 9 == KvMemory(engine(30)).overflows_at(running, 11, 0, 10)


def test_memory_keeps_aside_once_for_each_client() -> None:
    """Two of t0 and one of t1, at 3 tokens each: 6 of 20."""
    running = [sequence(1, client="t0"), sequence(2, client="t0"), sequence(3, client="t1")]
    memory = KvMemory(engine(20, reserved_tokens_per_client=3, block_size=4))

    assert 14 == memory.room(running)
    assert 16 == memory.largest, "alone: 17 in whole blocks"
    assert 12 == memory.held(running, 0)
    assert 24 == memory.held(running, 4), "5, 6 and 7 tokens"


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
def test_prefix_saves_what_is_still_held_of_it(
    free: int, prompt: int, block_size: int, computed: int
) -> None:
    """A context of 15 + 5 tokens was kept.

    In blocks of 8 only 16 of it are whole; a prompt that is all of it computes one token; a shorter
    one is another prompt; and with 19 tokens free it has gone. It needs no room beside the prompt.
    """
    cache = PrefixCache(engine(1000, prefix_caching=True, block_size=block_size))
    cache.keep(sequence(15, 5))
    following = sequence(prompt)
    cache.use(following, free)

    assert computed == following.prefill_tokens


def test_prefix_used_least_recently_goes_first() -> None:
    """Both a and b hold 20 each; a is kept anew; c takes 60 of 90: b goes, and a stays with 20."""
    cache = PrefixCache(engine(1000, prefix_caching=True))
    for name in ("a", "b", "a"):
        cache.keep(sequence(15, 5, name))
    cache.use(sequence(60, application_id="c"), 90)
    found = []
    for name in ("a", "b"):
        following = sequence(30, application_id=name)
        cache.use(following, 90)
        found.append(following.prefill_tokens)

    assert [10, 30] == found


def test_v_is_linear_between_reports_and_rests_in_between() -> None:
    """V: 0 at 2 s, 10 at 4 s, rests till 8 s, 20 at 9 s; a tag of 15 was reached at 8.5 s."""
    history = GpsHistory()
    for virtual_time, now in ((0.0, 2.0), (10.0, 4.0), (10.0, 8.0), (20.0, 9.0)):
        history.note(virtual_time, now)

    assert [3.0, 4.0, 8.5] == [history.reached_at(tag, 99.0) for tag in (5.0, 10.0, 15.0)]
    assert 99.0 == history.reached_at(20.5, 99.0)
