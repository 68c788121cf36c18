"""What is known to lie idle in a replica's prefix cache: the engine's order of eviction."""

from justitia_ray.core.contexts import Contexts


def contexts(*names: str, tokens: int = 100, room: int = 1000) -> Contexts:
    known = Contexts()
    for name in names:
        known.put(name, tokens, room)
    return known


def lying(known: Contexts) -> dict[str, int]:
    return {name: known.tokens_of(name) for name in known}


def test_context_lies_where_its_last_lease_ended() -> None:
    known = contexts("a")

    assert 100 == known.tokens_of("a")
    assert 0 == known.tokens_of("b")


def test_contexts_used_first_make_room_for_those_used_last() -> None:
    known = contexts("a", "b", "c", room=250)

    assert {"a": 50, "b": 100, "c": 100} == lying(known)
    known.put("d", 100, 250)
    assert {"b": 50, "c": 100, "d": 100} == lying(known)


def test_context_in_use_is_taken_out_and_comes_back_as_the_last_used() -> None:
    known = contexts("a", "b")
    taken = known.take("a")

    assert taken is not None
    assert {"b": 100} == lying(known)
    known.put("a", 120, 150)
    assert {"b": 30, "a": 120} == lying(known)


def test_short_call_of_an_application_does_not_hide_its_long_context() -> None:
    known = contexts("a")
    known.put("a", 10, 1000)

    assert {"a": 100} == lying(known)
    assert 100 == known.tokens


def test_memory_that_leases_took_holds_no_context() -> None:
    known = contexts("a", "b")
    known.shrink(100)

    assert {"b": 100} == lying(known)
    known.shrink(-5)
    assert {} == lying(known)
    assert 0 == known.tokens


def test_context_that_was_not_found_says_that_older_ones_are_gone() -> None:
    known = contexts("a", "b", "c")
    missed = known.take("b")
    assert missed is not None
    known.note_missing(missed)

    assert {"c": 100} == lying(known)


def test_names_are_bounded() -> None:
    known = contexts(*(f"a{n}" for n in range(5000)), tokens=1, room=10**9)

    assert 4096 == len(known) == known.tokens
    assert 0 == known.tokens_of("a0")
    assert 1 == known.tokens_of("a4999")
