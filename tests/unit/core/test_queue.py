"""The heap of applications: stale entries, compaction, another order."""

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.queue import Queue


def _inference(name: str, sequence: int, submitted_at: float = 0.0) -> Inference:
    return Inference(name, name[0], name, "i0", 1, 1, 1, 1, submitted_at, sequence)


def _application(name: str, *sequences: int) -> Application:
    application = Application(name, "class", "tenant", 1, 1, "i0", 0.0, ord(name))
    for sequence in sequences:
        application.enqueue(_inference(f"{name}{sequence}", sequence))
    return application


def _by_head(application: Application, head: Inference) -> tuple[float, ...]:
    return head.order


def _drain(queue: Queue) -> list[str]:
    """Take everything out in order, an inference at a time."""
    drained = []
    while (application := queue.first()) is not None:
        drained.append(application.waiting.popleft().request_id)
        queue.touch(application)
    return drained


def test_empty_queue_has_no_first() -> None:
    """Granting stops there."""
    queue = Queue(_by_head)

    assert (queue.first(), len(queue), "a" in queue) == (None, 0, False)


def test_first_is_the_application_with_the_least_key() -> None:
    """Whatever the order of the touches."""
    queue = Queue(_by_head)
    for application in (_application("b", 2, 5), _application("a", 3, 4), _application("c", 1)):
        queue.touch(application)

    assert _drain(queue) == ["c1", "b2", "a3", "a4", "b5"]
    assert len(queue) == 0


def test_application_with_nothing_waiting_is_out() -> None:
    """Its heap entry is stale and must not come up."""
    queue = Queue(_by_head)
    gone, other = _application("a", 1), _application("b", 2)
    queue.touch(gone)
    queue.touch(other)
    gone.waiting.clear()
    queue.touch(gone)

    assert (other, 1, False) == (queue.first(), len(queue), "a" in queue)

    queue.touch(gone)

    assert len(queue) == 1


def test_changed_key_moves_an_application() -> None:
    """Its entry under the old key is skipped, whether it was less or greater."""
    queue = Queue(_by_head)
    moving, other = _application("a", 1, 9), _application("b", 5)
    queue.touch(moving)
    queue.touch(other)
    first = moving.waiting.popleft()
    queue.touch(moving)

    assert other is queue.first()

    moving.enqueue(first)
    queue.touch(moving)

    assert _drain(queue) == ["a1", "b5", "a9"]


def test_touching_again_without_a_change_adds_no_entry() -> None:
    """Every submission of an application touches it; only its head counts."""
    queue = Queue(_by_head)
    application = _application("a", 1)
    for sequence in range(2, 500):
        application.enqueue(_inference(f"a{sequence}", sequence))
        queue.touch(application)

    assert len(queue._heap) == 1


def test_stale_entries_are_compacted() -> None:
    """An application that never comes first would otherwise leave an entry for each of its keys."""
    queue = Queue(_by_head)
    queue.touch(_application("a", 0))
    application = _application("b", 10_000)
    queue.touch(application)
    for sequence in range(9_999, 9_000, -1):
        application.enqueue(_inference(f"b{sequence}", sequence))
        queue.touch(application)

    assert len(queue._heap) <= 64 + 4 * 2 + 1

    drained = _drain(queue)

    assert (drained[0], drained[1], drained[-1], len(drained)) == ("a0", "b9001", "b10000", 1001)


def test_reorder_keeps_everything_under_another_key() -> None:
    """The policy of a running scheduler may change."""
    queue = Queue(_by_head)
    for application in (_application("a", 3), _application("b", 2), _application("c", 1)):
        queue.touch(application)
    queue.reorder(lambda application, head: (-head.sequence,))

    assert _drain(queue) == ["a3", "b2", "c1"]


def test_requeued_inference_takes_its_old_place() -> None:
    """First submitted first inside an application, even after a re-queue from the middle."""
    application = _application("a", 1, 2, 4)
    application.enqueue(_inference("a3", 3))
    application.enqueue(_inference("a0", 0))
    application.enqueue(_inference("a9", 9, submitted_at=-1.0))

    expected = ["a9", "a0", "a1", "a2", "a3", "a4"]

    assert expected == [inference.request_id for inference in application.waiting]
