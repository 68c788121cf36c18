"""Messages to one reader, kept until the reader has acknowledged them.

A long-poll whose caller has gone still completes in the actor and would take its messages with it.
Therefore messages are numbered, each poll names the last one that its caller has read, and the rest
is sent again.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Numbered messages to one reader, oldest first."""

    def __init__(self) -> None:
        self._messages: deque[tuple[int, Message]] = deque()
        self.last = 0
        """Number of the last message put in."""

    def __len__(self) -> int:
        """Return the number of messages not acknowledged."""
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Add a message."""
        self.last += 1
        self._messages.append((self.last, message))

    def withdraw(self, unwanted: Callable[[Message], bool]) -> None:
        """Drop messages that were not acknowledged; the reader may have had them."""
        kept = [(number, message) for number, message in self._messages if not unwanted(message)]
        self._messages = deque(kept)

    def unread(self, ack: int) -> list[tuple[int, Message]]:
        """Drop the messages up to number `ack`, which were read, and return the rest."""
        while self._messages and self._messages[0][0] <= ack:
            self._messages.popleft()
        return list(self._messages)


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
