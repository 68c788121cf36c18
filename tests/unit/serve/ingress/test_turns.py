"""Turns are shared fairly between the tenants of each level and between a tenant's calls."""

import random
from collections import Counter

from justitia_ray.serve.ingress.turns import Place, Turns


def _take_turn(turns: Turns[str], cost: float = 1.0) -> str:
    """Give the first waiting call a turn, charge its cost, requeue it, and return its name."""
    place = turns.first()
    assert place is not None
    turns.take(place)
    turns.charge(place, cost)
    turns.line_up(place)
    assert place.item is not None
    return place.item


def test_tenants_share_turns_equally_at_each_level_of_the_tree() -> None:
    """Two teams of one tenant together get as much as another tenant."""
    turns: Turns[str] = Turns()
    for tenant, calls in (("a/x", 1), ("a/y", 5), ("b", 3)):
        for call in range(calls):
            turns.join(tenant, f"{tenant} {call}")
    taken = Counter(_take_turn(turns) for _ in range(240))

    by_tenant: Counter[str] = Counter()
    for name, count in taken.items():
        by_tenant[name.split()[0]] += count
    assert {"a/x": 60, "a/y": 60, "b": 120} == by_tenant
    assert {12} == {count for name, count in taken.items() if name.startswith("a/y")}
    assert {40} == {count for name, count in taken.items() if name.startswith("b")}


def test_tenants_with_costly_turns_get_fewer_turns() -> None:
    turns: Turns[str] = Turns()
    turns.join("dear", "dear")
    turns.join("cheap", "cheap")
    taken: Counter[str] = Counter()
    for _ in range(110):
        place = turns.first()
        assert place is not None
        taken[_take_turn(turns, 10.0 if place.item == "dear" else 1.0)] += 1

    assert {"dear": 10, "cheap": 100} == taken


def test_new_tenant_gets_the_next_turn_and_no_credit_for_the_past() -> None:
    turns: Turns[str] = Turns()
    turns.join("a", "a")
    for _ in range(100):
        _take_turn(turns)
    turns.join("b", "b")
    taken = [_take_turn(turns) for _ in range(6)]

    assert "b" in taken[:2]
    assert 3 == taken.count("b")


def test_sequential_calls_of_a_tenant_get_only_its_share_of_turns() -> None:
    """A tenant's debt outlives its call while another tenant waits."""
    turns: Turns[str] = Turns()
    turns.join("steady", "steady")
    taken: Counter[str] = Counter()
    single = turns.join("single", "single")
    for _ in range(100):
        taken[_take_turn(turns)] += 1
        if taken["single"]:
            turns.leave(single)
            single = turns.join("single", "single")

    assert abs(taken["steady"] - taken["single"]) <= 2


def test_every_waiting_call_gets_a_turn_in_random_runs() -> None:
    draw = random.Random(3)
    turns: Turns[int] = Turns()
    alive: dict[int, Place[int]] = {}
    for number in range(2_000):
        tenant = "/".join(draw.choice("abc") for _ in range(draw.randint(1, 3)))
        alive[number] = turns.join(tenant, number)
        if draw.random() < 0.3:
            turns.leave(alive.pop(draw.choice(list(alive))))
        if draw.random() < 0.7 and (place := turns.first()) is not None:
            turns.take(place)
            turns.charge(place, draw.random())
            if draw.random() < 0.5:
                turns.line_up(place)
            else:
                assert place.item is not None
                turns.leave(alive.pop(place.item))
    while (place := turns.first()) is not None:
        turns.take(place)
        assert place.item is not None
        turns.leave(alive.pop(place.item))

    assert not alive
    assert not turns
    assert not turns._root.children
