"""Mailboxes repeat messages until they are acknowledged, and cursors read each one once."""

from justitia_ray.protocol.mailbox import Cursor, Mailbox


def test_message_is_kept_until_its_reader_acknowledges_it() -> None:
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("a")
    mailbox.put("b")

    assert [(1, "a"), (2, "b")] == mailbox.unread_after(0) == mailbox.unread_after(0)
    assert [(2, "b")] == mailbox.unread_after(1)
    assert 1 == len(mailbox)
    assert [] == mailbox.unread_after(2)


def test_mailbox_message_number_is_never_used_twice() -> None:
    """A reader would take a second message of this number for a repetition."""
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("a")
    mailbox.unread_after(1)
    mailbox.put("b")

    assert [(2, "b")] == mailbox.unread_after(1)


def test_withdrawn_message_is_not_sent() -> None:
    mailbox = Mailbox[str]()
    for message in ("a", "b", "c"):
        mailbox.put(message)
    mailbox.withdraw(2)

    assert [(1, "a"), (3, "c")] == mailbox.unread_after(0)
    assert [(3, "c")] == mailbox.unread_after(1)
    assert 1 == len(mailbox)


def test_acknowledged_message_cannot_be_withdrawn() -> None:
    mailbox = Mailbox[str]()
    for message in ("a", "b", "c"):
        mailbox.put(message)
    mailbox.withdraw(2)
    mailbox.unread_after(2)
    mailbox.withdraw(1)

    assert 1 == len(mailbox)
    mailbox.withdraw(3)
    assert not mailbox
    assert [] == mailbox.unread_after(2)


def test_mailbox_message_sent_twice_is_read_once() -> None:
    cursor = Cursor()

    assert ["a", "b"] == cursor.fresh([(1, "a"), (2, "b")])
    assert [] == cursor.fresh(
        [(1, "a")]
    )  # The answer to a submission arrives after that of a later long-poll.
    assert 2 == cursor.ack
    assert ["c"] == cursor.fresh([(2, "b"), (3, "c")])
    assert 3 == cursor.ack


def test_mailbox_of_a_new_scheduler_is_read_from_its_first_message() -> None:
    cursor = Cursor()
    cursor.fresh([(5, "old")])
    cursor.reset()

    assert ["new"] == cursor.fresh([(1, "new")])
