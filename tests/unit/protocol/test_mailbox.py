"""Mailboxes repeat messages until they are acknowledged, and cursors read each one once."""

from justitia_ray.protocol.mailbox import Cursor, Mailbox


def test_message_is_kept_until_its_reader_has_acknowledged_it() -> None:
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("a")
    mailbox.put("b")

    assert [(1, "a"), (2, "b")] == mailbox.unread(0) == mailbox.unread(0)
    assert [(2, "b")] == mailbox.unread(1)
    assert 1 == len(mailbox)
    assert [] == mailbox.unread(2)


def test_number_is_never_given_twice() -> None:
    """A reader would mistake the second message for the first."""
    mailbox: Mailbox[str] = Mailbox()
    mailbox.put("a")
    mailbox.unread(1)
    mailbox.put("b")

    assert [(2, "b")] == mailbox.unread(1)


def test_message_that_is_withdrawn_is_not_sent() -> None:
    mailbox = Mailbox[str]()
    for message in ("a", "b", "c"):
        mailbox.put(message)
    mailbox.withdraw(2)

    assert [(1, "a"), (3, "c")] == mailbox.unread(0)
    assert [(3, "c")] == mailbox.unread(1)
    assert 1 == len(mailbox)


def test_message_that_was_acknowledged_is_not_withdrawn() -> None:
    """A withdrawn message no longer counts as unread either."""
    mailbox = Mailbox[str]()
    for message in ("a", "b", "c"):
        mailbox.put(message)
    mailbox.withdraw(2)
    mailbox.unread(2)
    mailbox.withdraw(1)

    assert 1 == len(mailbox)
    mailbox.withdraw(3)
    assert not mailbox
    assert [] == mailbox.unread(2)


def test_message_sent_twice_is_read_once() -> None:
    cursor = Cursor()

    assert ["a", "b"] == cursor.fresh([(1, "a"), (2, "b")])
    assert [] == cursor.fresh([(1, "a")])  # a submission's answer, overtaken by a long-poll's
    assert 2 == cursor.ack
    assert ["c"] == cursor.fresh([(2, "b"), (3, "c")])
    assert 3 == cursor.ack


def test_reset_cursor_reads_another_writer_from_the_start() -> None:
    cursor = Cursor()
    cursor.fresh([(5, "old")])
    cursor.reset()

    assert ["new"] == cursor.fresh([(1, "new")])
