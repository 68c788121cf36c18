"""Which outbox messages are sent after an application id is opened again."""

from dataclasses import replace

from justitia_ray.core.actions import Action
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from tests.unit.observability.recording_backend import ENDED


def _names(outbox: Outbox, ack: int) -> list[tuple[int, str]]:
    return [(number, end.application_id) for number, end in outbox.unread(ack)]


def _ends(*names: str) -> list[Action]:
    return [replace(ENDED, application_id=name) for name in names]


def test_unread_ends_of_an_application_are_withdrawn_and_no_others() -> None:
    outbox = Outbox(10)
    for end in _ends("a", "b", "a"):
        outbox.put(end)
    outbox.withdraw_end("a")
    outbox.put(*_ends("a"))

    assert [(12, "b"), (14, "a")] == _names(outbox, 10)
    outbox.withdraw_end("b")
    assert [(14, "a")] == _names(outbox, 12)
    assert 1 == len(outbox)


def test_end_that_was_read_is_forgotten() -> None:
    """A scheduler runs for months, so delivered ends must not accumulate."""
    outbox = Outbox(0)
    for end in _ends("a", "a", "b"):
        outbox.put(end)
    outbox.acknowledged(1)
    outbox.withdraw_end("a")
    outbox.withdraw_end("c")

    assert [(3, "b")] == _names(outbox, 1)
    outbox.acknowledged(3)
    assert not outbox._ends
    assert not outbox._ended


def test_ingress_that_has_no_outbox_has_nothing_to_withdraw() -> None:
    outboxes = Outboxes()
    outboxes.withdraw_end("i", "a")

    assert not outboxes.ingresses
