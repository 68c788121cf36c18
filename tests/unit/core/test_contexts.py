"""Predicted contents of a replica's prefix cache, by the engine's order of eviction."""

from justitia_ray.core.contexts import Context, Contexts


def create_contexts(*names: str, tokens: int = 100, room: int = 1000) -> Contexts:
    known = Contexts()
    for name in names:
        known.put(name, Context(tokens, tokens), room)
    return known


def idle_tokens(known: Contexts) -> dict[str, int]:
    return {name: context.tokens for name, context in known.idle()}


def test_least_recently_used_contexts_are_evicted_first() -> None:
    known = create_contexts("a", "b", "c", room=250)

    assert {"a": 50, "b": 100, "c": 100} == idle_tokens(known)
    known.put("d", Context(100, 100), 250)
    assert {"b": 50, "c": 100, "d": 100} == idle_tokens(known)
    assert 250 == known.tokens == known.live_tokens


def test_context_in_use_is_not_evicted() -> None:
    known = create_contexts("a", "b")
    held = known.hold("a", 110)

    assert held is not None
    assert {"b": 100} == idle_tokens(known)
    assert held is known.continued_by("a", 110)
    known.release("a", held, Context(110, 120), 150)
    assert {"b": 30, "a": 120} == idle_tokens(known)


def test_context_shared_by_two_leases_is_in_use_until_both_end() -> None:
    known = create_contexts("a")
    first, second = known.hold("a", 100), known.hold("a", 130)

    assert first is second
    assert first is not None
    known.release("a", first, None, 1000)
    assert {} == idle_tokens(known)
    known.release("a", first, Context(110, 115), 1000)
    assert {"a": 115} == idle_tokens(known)


def test_two_continuations_leave_two_contexts_with_a_shared_beginning() -> None:
    known = create_contexts("a")
    forked = known.hold("a", 100)
    assert forked is known.hold("a", 130)
    assert forked is not None
    known.release("a", forked, Context(130, 140), 1000, begun_with=100)
    known.release("a", forked, Context(120, 125), 1000, begun_with=100)

    sides = [known.continued_by("a", prompt) for prompt in (130, 129)]
    assert [140, 125] == [None if side is None else side.tokens for side in sides]
    assert 140 + 25 == known.tokens == known.live_tokens


def test_forgetting_one_of_two_contexts_keeps_their_shared_beginning() -> None:
    known = create_contexts("a")
    forked = known.hold("a", 100)
    assert forked is known.hold("a", 130)
    assert forked is not None
    known.release("a", forked, Context(130, 140), 1000, begun_with=100)
    known.release("a", forked, Context(120, 125), 1000, begun_with=100)
    known.forget("a", forked)

    assert 125 == known.tokens == known.live_tokens


def test_lease_that_continues_a_context_extends_it() -> None:
    known = create_contexts("a")
    for prompt in (120, 140):
        held = known.hold("a", prompt)
        assert held is not None
        known.release("a", held, Context(prompt, prompt + 10), 1000, begun_with=held.tokens)

    assert {"a": 150} == idle_tokens(known)
    assert 1 == len(known)


def test_agent_and_its_sub_agent_have_separate_contexts() -> None:
    known = create_contexts("a")
    sub_agent = known.begin("a", 10)
    known.release("a", sub_agent, Context(10, 15), 1000)

    assert sub_agent is known.continued_by("a", 30)
    agent = known.continued_by("a", 110)
    assert agent is not sub_agent
    assert agent is not None
    assert 100 == agent.tokens
    assert 115 == known.tokens == known.live_tokens


def test_application_has_a_limited_number_of_contexts() -> None:
    known = create_contexts("a", room=10**9)
    for tokens in range(20, 0, -1):
        begun = known.begin("a", tokens)
        known.release("a", begun, Context(tokens, tokens), 10**9)

    assert 8 == len(known)
    assert known.continued_by("a", 100) is not None
    assert 8 == known.continued_by("a", 100).prompt_tokens  # type: ignore[union-attr]


def test_first_prompt_of_an_application_becomes_its_context() -> None:
    known = Contexts()
    begun = known.begin("a", 100)

    assert begun is not None
    assert begun is known.hold("a", 120)
    assert begun is known.begin("a", 130)
    assert 3 == begun.leases


def test_lease_without_prefill_keeps_the_contexts() -> None:
    known = create_contexts("a")
    held = known.hold("a", 500)
    assert held is not None
    known.release("a", held, None, 1000)

    assert {"a": 100} == idle_tokens(known)


def test_idle_contexts_get_no_memory_that_leases_hold() -> None:
    known = create_contexts("a", "b")
    known.shrink(100)

    assert {"b": 100} == idle_tokens(known)
    known.shrink(-5)
    assert {} == idle_tokens(known)
    assert 0 == known.tokens == known.live_tokens


def test_evicted_context_implies_eviction_of_all_less_recent_contexts() -> None:
    known = create_contexts("a", "b", "c")
    missed = known.hold("b", 100)
    assert missed is not None
    known.forget_before(missed)

    assert {"c": 100} == idle_tokens(known)


def test_eviction_of_a_restored_context_evicts_no_other_restored_context() -> None:
    known = Contexts()
    for name in ("a", "b"):
        known.assume_context(name, 100, 1000)
    missed = known.hold("b", 100)
    assert missed is not None
    known.forget_before(missed)

    assert {"a": 100} == idle_tokens(known)


def test_context_forgotten_while_in_use_stays_forgotten() -> None:
    known = create_contexts("a")
    held = known.hold("a", 100)
    assert held is not None
    known.forget("a", held)
    known.release("a", held, Context(100, 110), 1000)

    assert {} == idle_tokens(known)


def test_new_lease_evicts_idle_contexts_of_live_applications() -> None:
    known = create_contexts("a", "b", tokens=400)
    known.end("a")

    assert 400 == known.live_tokens
    assert 0 == known.displaced(None, 200, 1000)
    assert 50 == known.displaced(None, 300, 1000)
    assert 400 == known.displaced(None, 5000, 1000)
    own = known.continued_by("b", 400)
    assert 0 == known.displaced(own, 600, 1000)


def test_number_of_contexts_is_limited_and_long_contexts_are_kept() -> None:
    known = create_contexts("long", room=10**9)
    for number in range(5000):
        known.put(f"a{number}", Context(1, 1), 10**9)

    assert 4096 == len(known)
    assert 100 + 4095 == known.tokens
    assert known.continued_by("long", 100) is not None
    assert known.continued_by("a0", 1) is None
