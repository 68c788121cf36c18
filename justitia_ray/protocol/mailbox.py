"""Messages to one reader, stored until the reader has acknowledged them.

A long-poll whose caller has disconnected still completes in the actor, and its messages would be
lost. Therefore messages are numbered, each poll contains the number of the last message read, and
unread messages are sent again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Numbered messages to one reader, oldest first, kept until the reader acknowledges them."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Message]] = deque()
        self._withdrawn: set[int] = set()
        """Numbers of stored messages that must not be sent any more."""
        self.last = 0
        """Number of the latest message."""

    def __len__(self) -> int:
        """Return the number of messages that are to be sent and not acknowledged."""
        return len(self._messages) - len(self._withdrawn)

    def put(self, message: Message) -> None:
        self.last += 1
        self._messages.append((self.last, message))

    def withdraw(self, number: int) -> None:
        """Stop sending an unacknowledged message, which may have been read already. O(1)."""
        if self._messages and self._messages[0][0] <= number <= self.last:
            self._withdrawn.add(number)

    def unread_after(self, ack: int) -> list[tuple[int, Message]]:
        """Return the unread messages after number `ack`, and drop the messages up to `ack`."""
        while self._messages and self._messages[0][0] <= ack:
            self._withdrawn.discard(self._messages.popleft()[0])
        if not self._withdrawn:
            return list(self._messages)
        return [one for one in self._messages if one[0] not in self._withdrawn]


class Cursor:
    """Position of a mailbox's reader, which skips messages that it has read before."""

    def __init__(self) -> None:
        self.ack = 0

    def fresh(self, messages: Iterable[tuple[int, Message]]) -> list[Message]:
        """Return the messages that the reader has not read before, and mark them as read."""
        new = []
        for number, message in messages:
            if number > self.ack:
                self.ack = number
                new.append(message)
        return new

    def reset(self) -> None:
        """Start again from the first message, because another process sends the messages now."""
        self.ack = 0
