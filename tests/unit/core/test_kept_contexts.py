"""Predicted contents of a prefix cache that evicts contexts of live applications last."""

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.contexts import Context, Contexts
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.kept_contexts import KeptContexts
from tests.unit.core.test_contexts import idle_tokens


def create_contexts(*names: str, room: int = 1000) -> KeptContexts:
    """Return contexts of 100 tokens; a name in capitals is that of an ended application."""
    known = KeptContexts()
    for name in names:
        known.put(name, Context(100, 100), room)
        if name.isupper():
            known.end(name)
    return known


def test_contexts_of_ended_applications_are_evicted_first() -> None:
    known = create_contexts("a", "B", "c", "D")
    known.shrink(250)
    assert {"a": 100, "c": 100, "D": 50} == idle_tokens(known)
    known.shrink(150)

    assert {"a": 50, "c": 100} == idle_tokens(known)
    assert 150 == known.tokens == known.live_tokens


def test_eviction_cost_counts_only_contexts_of_live_applications() -> None:
    known = create_contexts("a", "B", "c", room=300)

    assert 0 == known.displaced(None, wanted=100, room=300)
    assert 50 == known.displaced(None, wanted=150, room=300)
    assert 0 == known.displaced(known.of("a")[0], wanted=200, room=300)
    assert 200 == known.displaced(None, wanted=900, room=300)


def test_eviction_of_a_live_context_keeps_other_live_contexts() -> None:
    known = create_contexts("a", "B", "c", "D")
    known.forget_before(known.of("c")[0])
    assert ["a", "c", "D"] == list(idle_tokens(known))
    known.forget_before(known.of("D")[0])

    assert ["D"] == list(idle_tokens(known))


def test_replica_that_holds_contexts_gets_a_table_of_held_contexts() -> None:
    core = SchedulerCore()
    for name, holds in (("holds", True), ("does not", False)):
        capacity = ReplicaCapacity(100, caches_prefixes=True, holds_contexts=holds)
        core.handle(ev.ReplicaPulled(name, capacity, 100), 0.0)

    tables = {name: type(one.contexts) for name, one in core.state.replicas.items()}
    assert {"holds": KeptContexts, "does not": Contexts} == tables
