"""Messages to one reader, kept until the reader has acknowledged them.

A long-poll whose caller has gone still completes in the actor and would take its messages with it.
Therefore messages are numbered, each poll names the last one that its caller has read, and the rest
is sent again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Numbered messages to one reader, oldest first."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Message]] = deque()
        self._withdrawn: set[int] = set()
        """Numbers of messages in it that are not sent any more."""
        self.last = 0
        """Number of the last message put in."""

    def __len__(self) -> int:
        """Return the number of messages that are to be sent, and not acknowledged."""
        return len(self._messages) - len(self._withdrawn)

    def put(self, message: Message) -> None:
        """Add a message."""
        self.last += 1
        self._messages.append((self.last, message))

    def withdraw(self, number: int) -> None:
        """Drop a message, if it was not acknowledged; the reader may have had it. O(1)."""
        if self._messages and self._messages[0][0] <= number <= self.last:
            self._withdrawn.add(number)

    def unread(self, ack: int) -> list[tuple[int, Message]]:
        """Drop the messages up to number `ack`, which were read, and return the rest."""
        while self._messages and self._messages[0][0] <= ack:
            self._withdrawn.discard(self._messages.popleft()[0])
        if not self._withdrawn:
            return list(self._messages)
        return [one for one in self._messages if one[0] not in self._withdrawn]


class Cursor:
    """The reader's place in a mailbox, so that a message sent twice is read once."""

    def __init__(self) -> None:
        self.ack = 0

    def fresh(self, messages: Iterable[tuple[int, Message]]) -> list[Message]:
        """Return the messages not read before, and count them as read."""
        new = []
        for number, message in messages:
            if number > self.ack:
                self.ack = number
                new.append(message)
        return new

    def reset(self) -> None:
        """Go back to the start: another writer took over."""
        self.ack = 0
