"""Which outbox messages are sent after an application id is opened again."""

from dataclasses import replace

from justitia_ray.core.actions import Action
from justitia_ray.serve.scheduler.outboxes import Outbox, Outboxes
from tests.unit.observability.recording_backend import ENDED


def _unread_names(outbox: Outbox, ack: int) -> list[tuple[int, str]]:
    return [(number, end.application_id) for number, end in outbox.unread_after(ack)]


def _end_actions(*names: str) -> list[Action]:
    return [replace(ENDED, application_id=name) for name in names]


def test_withdrawal_removes_only_unread_end_messages_of_one_application() -> None:
    outbox = Outbox(10)
    for end in _end_actions("a", "b", "a"):
        outbox.put(end)
    outbox.withdraw_end("a")
    outbox.put(*_end_actions("a"))

    assert [(12, "b"), (14, "a")] == _unread_names(outbox, 10)
    outbox.withdraw_end("b")
    assert [(14, "a")] == _unread_names(outbox, 12)
    assert 1 == len(outbox)


def test_delivered_end_messages_are_forgotten() -> None:
    """A scheduler runs for months, so delivered messages must not accumulate."""
    outbox = Outbox(0)
    for end in _end_actions("a", "a", "b"):
        outbox.put(end)
    outbox.take_acknowledged(1)
    outbox.withdraw_end("a")
    outbox.withdraw_end("c")

    assert [(3, "b")] == _unread_names(outbox, 1)
    outbox.take_acknowledged(3)
    assert not outbox._ends
    assert not outbox._ended


def test_withdrawing_messages_without_an_outbox_has_no_effect() -> None:
    outboxes = Outboxes()
    outboxes.withdraw_end("i", "a")

    assert not outboxes.ingresses
