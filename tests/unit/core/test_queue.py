"""The queue: clients and applications in order, parked or set aside, and another order."""

import random

from justitia_ray.core.entities import Application
from justitia_ray.core.queue import LazyHeap, Queue
from tests.unit.core.stub_policy import (
    StubPolicy,
    create_application,
    create_inference,
    enqueue_inference,
)


def _create_queue(policy: StubPolicy | None = None, *applications: Application) -> Queue:
    queue = Queue()
    policy = policy if policy is not None else StubPolicy()
    queue.reorder(policy, policy)
    for waiting in applications:
        queue.touch(waiting)
    return queue


def _drain_queue(queue: Queue) -> list[str]:
    """Remove all inferences in order, one at a time."""
    drained = []
    while (first := queue.first()) is not None:
        taken = first.waiting.first
        first.waiting.remove_inference(taken)
        drained.append(taken.request_id)
        queue.touch(first)
    return drained


def test_empty_queue_has_no_first_application() -> None:
    queue = _create_queue()

    assert (None, None) == (queue.first(), queue.first_client())
    assert (0, False, False) == (len(queue), "a" in queue, queue.client_waits("a"))
    assert queue.next_eligible() is None


def test_first_of_the_queue_is_the_application_with_the_least_key() -> None:
    queue = _create_queue(
        None,
        create_application("b", 2, 5),
        create_application("a", 3, 4),
        create_application("c", 1),
    )

    assert ["c1", "b2", "a3", "a4", "b5"] == _drain_queue(queue)
    assert 0 == len(queue)


def test_queue_lists_the_first_application_of_each_client_in_order() -> None:
    queue = _create_queue(
        StubPolicy(by_tenant=True),
        create_application("b", 2, tenant="t1"),
        create_application("a", 3, tenant="t0"),
        create_application("c", 1, tenant="t0"),
    )

    assert ["c", "b"] == [head.application_id for head in queue.heads()]
    assert [] == list(_create_queue().heads())


def test_queue_skips_an_application_without_waiting_inferences() -> None:
    policy = StubPolicy()
    gone, other = create_application("a", 1), create_application("b", 2)
    queue = _create_queue(policy, gone, other)
    gone.waiting.remove_inference(gone.waiting.first)
    queue.touch(gone)
    queue.touch(gone)

    assert (other, 1, False) == (queue.first(), len(queue), "a" in queue)
    assert ["a"] == policy.gone


def test_client_without_waiting_inferences_leaves_the_queue_before_the_next_lookup() -> None:
    """A policy such as VTC lifts a client's counter when the client returns to the queue."""
    policy = StubPolicy()
    gone = create_application("a", 1)
    queue = _create_queue(policy, gone)
    gone.waiting.remove_inference(gone.waiting.first)
    queue.touch(gone)

    assert (["a"], False) == (policy.gone, queue.client_waits("a"))


def test_queue_computes_the_key_of_a_client_once_per_event() -> None:
    """Below a tree node a key is expensive, and one event may update a client three times."""
    policy = StubPolicy()
    queue = _create_queue(policy, create_application("a", 1), create_application("b", 2))
    queue.touch_client("a")
    queue.touch_client("a")

    assert 0 == policy.asked
    assert ("a", "a") == (queue.first_client(), queue.first_client())
    assert 2 == policy.asked  # one key per client


def test_changed_key_moves_an_application_in_the_queue() -> None:
    moving, other = create_application("a", 1, 9), create_application("b", 5)
    queue = _create_queue(None, moving, other)
    first = moving.waiting.first
    moving.waiting.remove_inference(first)
    queue.touch(moving)

    assert other is queue.first()

    enqueue_inference(moving, first)
    queue.touch(moving)

    assert ["a1", "b5", "a9"] == _drain_queue(queue)


def test_first_of_the_queue_is_the_first_application_of_the_first_tenant() -> None:
    """The tenant with the least key is first, then its applications in their order."""
    late, early = create_application("a", 4, tenant="t"), create_application("b", 2, 5, tenant="t")
    other = create_application("c", 3, tenant="u")
    queue = _create_queue(StubPolicy(by_tenant=True), late, early, other)

    assert "t" == queue.first_client()
    assert (3, True) == (len(queue), queue.client_waits("u"))
    assert ["b2", "c3", "a4", "b5"] == _drain_queue(queue)


def test_parked_client_waits_until_it_is_eligible() -> None:
    """A policy may hold a client back although there is room."""
    policy = StubPolicy()
    policy.eligible["a"] = 60.0
    queue = _create_queue(policy, create_application("a", 1), create_application("b", 2))

    assert ("b", 60.0) == (queue.first_client(), queue.next_eligible())
    queue.now = 59.0
    queue.unpark()
    assert "b" == queue.first_client()
    assert queue.client_waits("a")
    queue.now = 60.0
    queue.unpark()
    assert ("a", None) == (queue.first_client(), queue.next_eligible())


def test_parked_client_returns_when_it_becomes_eligible_early() -> None:
    """The driver must not be woken for the old time."""
    policy = StubPolicy()
    policy.eligible["a"] = 60.0
    queue = _create_queue(policy, create_application("a", 1))
    assert 60.0 == queue.next_eligible()
    policy.eligible["a"] = 0.0
    queue.touch_client("a")

    assert ("a", None) == (queue.first_client(), queue.next_eligible())


def test_parked_client_without_waiting_inferences_is_forgotten() -> None:
    policy = StubPolicy()
    policy.eligible["a"] = 60.0
    parked = create_application("a", 1)
    queue = _create_queue(policy, parked)
    assert 60.0 == queue.next_eligible()
    parked.waiting.remove_inference(parked.waiting.first)
    queue.touch(parked)

    assert (None, 0) == (queue.next_eligible(), len(queue))


def test_skipped_application_keeps_its_place_while_the_next_one_passes() -> None:
    """The client still waits, so a policy must not treat it as gone."""
    policy = StubPolicy()
    first, second = create_application("a", 1), create_application("b", 2)
    queue = _create_queue(policy, first, second)
    queue.unschedule(first)
    queue.touch_client("a")

    assert (second, True, []) == (queue.first(), queue.client_waits("a"), policy.gone)
    queue.touch(first)
    assert first is queue.first()


def test_tenant_of_a_skipped_application_offers_its_other_applications() -> None:
    first, second = create_application("a", 1, tenant="t"), create_application("b", 2, tenant="t")
    queue = _create_queue(StubPolicy(by_tenant=True), first, second)
    queue.unschedule(first)

    assert second is queue.first()
    queue.touch(first)
    assert first is queue.first()


def test_reordering_the_queue_by_another_key_keeps_all_inferences() -> None:
    queue = _create_queue(
        None, create_application("a", 3), create_application("b", 2), create_application("c", 1)
    )
    other = StubPolicy()
    other.reverse = True
    queue.reorder(other, other)

    assert ["a3", "b2", "c1"] == _drain_queue(queue)


def test_requeued_inference_returns_to_its_old_queue_place() -> None:
    """Inferences of an application are served in the order of submission, also after a re-queue."""
    made = create_application("a", 1, 2, 4)
    enqueue_inference(made, create_inference("a3", 3))
    enqueue_inference(made, create_inference("a0", 0))
    enqueue_inference(made, create_inference("a9", 9, submitted_at=-1.0))

    expected = ["a9", "a0", "a1", "a2", "a3", "a4"]
    assert expected == [waiting.request_id for waiting in made.waiting]


def test_removed_inference_is_not_in_the_queue() -> None:
    made = create_application("a", 1, 2)
    first = made.waiting.first
    made.waiting.remove_inference(first)

    assert first not in made.waiting
    assert made.waiting.first in made.waiting
    assert ["a2"] == [waiting.request_id for waiting in made.waiting]


def test_updating_an_unchanged_application_adds_no_heap_entry() -> None:
    """Every submission updates its application in the queue."""
    heap = LazyHeap()
    for _ in range(500):
        heap.put("a", (1.0,))

    assert 1 == len(heap._heap)


def test_stale_heap_entries_are_compacted() -> None:
    """An application that never comes first would otherwise leave an entry for each of its keys."""
    heap = LazyHeap()
    heap.put("a", (0.0,))
    for key in range(10_000, 9_000, -1):
        heap.put("b", (float(key),))

    assert len(heap._heap) <= 64 + 4 * 2 + 1
    assert ["a", "b"] == list(heap)
    assert (9001.0,) == heap.key("b")
    heap.drop("a")
    assert ("b", 1, False) == (heap.first(), len(heap), "a" in heap)


def test_single_application_leaves_no_stale_heap_entries() -> None:
    """If every application is a client, old keys would take most of the memory."""
    heap = LazyHeap()
    heap.put("gone", (0.0,))
    heap.drop("gone")
    for key in range(50):
        heap.put("a", (float(key),))

    assert (1, "a", (49.0,)) == (len(heap._heap), heap.first(), heap.key("a"))


def test_iterated_heap_is_sorted_after_any_changes() -> None:
    lots, heap = random.Random(3), LazyHeap()
    for _ in range(2_000):
        name = f"n{lots.randrange(300)}"
        if lots.random() < 0.2:
            heap.drop(name)
        else:
            heap.put(name, (lots.randrange(1_000), int(name[1:])))
        if lots.random() < 0.02:
            assert list(heap) == list(heap.in_order())
            assert heap.first() == next(heap.in_order(), None)


def test_ordered_queue_lists_all_applications_of_a_client() -> None:
    policy = StubPolicy(by_tenant=True)
    queue = _create_queue(
        policy,
        create_application("a", 1, tenant="t"),
        create_application("b", 4, tenant="t"),
        create_application("c", 2, tenant="u"),
        create_application("d", 3, tenant="v"),
        create_application("e", 5, tenant="u"),
    )
    policy.eligible["v"] = 10.0
    queue.touch_client("v")

    assert ["a", "c", "b", "e"] == [waiting.application_id for waiting in queue.in_order()]
    assert [] == list(_create_queue().in_order())
