"""Names of conversations: a call belongs to the earlier one whose messages and answer it repeats.

The name of an answered call is a digest of its scope, of all turns that it sent and of the answer.
A call that continues it sends the same turns first. So its own beginnings that end with a turn of
the model are looked up by name, the longest first. The turns are digested once, and no text is
stored. Two calls with equal messages and answers have one name, which then identifies neither
(`Directory`).

A sub-agent begins with the text that its spawner's model gave to a tool. Where a harness is known,
the answer has a second name by this text, and a call that begins with it is looked up by that name.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from justitia_ray.recognition.turns import MODEL, Turn, lasting, merged, turns_of

Name = bytes
"""Name of a conversation: a digest of 16 bytes."""
MOST_ASKED = 16
"""Largest number of beginnings that are looked up, the longest ones. A client that cuts off old
turns has other beginnings anyway."""

_encode = msgspec.msgpack.Encoder().encode


class Conversation:
    """The conversation that a call sends."""

    def __init__(
        self, path: str, turns: list[Turn], scope: str, *, can_be_spawned: bool = False
    ) -> None:
        """Compute the names of the beginnings.

        Args:
            path: Path of the endpoint.
            turns: The turns so far.
            scope: Tenant and credential, within which conversations are matched.
            can_be_spawned: Whether the call may come from a sub-agent, or from an agent that spawns
                some.
        """
        self.path = path
        self._scope = scope
        self.can_be_spawned = can_be_spawned
        self._running = hashlib.sha256(f"{scope}\0{path}".encode())
        self._begun = turns[-1] if turns and turns[-1].role == MODEL else None
        """Start of the model's answer, if the caller sends one as the last turn; otherwise None."""
        names: list[Name] = []
        unnamed = sum(turn.role == MODEL for turn in turns) - MOST_ASKED
        self._unanswered: list[Turn] = []
        for turn in turns[:-1] if self._begun else turns:
            self._unanswered.append(turn)
            if turn.role == MODEL:
                self._running.update(_framed(self._unanswered))
                self._unanswered.clear()
                unnamed -= 1
                if unnamed < 0:
                    names.append(self._running.digest()[:16])
        if self._begun is not None:
            names.append(self._after(self._begun))
        if can_be_spawned and len(turns) == 1 and turns[0].role != MODEL:
            names.append(self.name_of_prompt(turns[0].text))
        self.beginnings = tuple(reversed(names))
        """Names of the answered calls that this one may continue, the longest first."""

    def name_after(self, answer: Turn) -> Name:
        """Return the name of this call once the model has given an answer."""
        if self._begun is not None:
            [answer] = merged([self._begun, answer])
        return self._after(answer)

    def name_of_prompt(self, prompt: str) -> Name:
        """Return the name of a conversation that begins with a prompt that a model wrote."""
        framed = _encode(ascii(prompt.strip()))
        return hashlib.sha256(f"{self._scope}\0spawned".encode() + framed).digest()[:16]

    def _after(self, turn: Turn) -> Name:
        running = self._running.copy()
        running.update(_framed([*self._unanswered, turn]))
        return running.digest()[:16]


def read_conversation(
    path: str, fields: Mapping[str, Any], scope: str, *, by_harness: bool = False
) -> Conversation | None:
    """Return the conversation that a call sends, None if its path takes no messages.

    Args:
        path: Path of the endpoint.
        fields: The call's body, checked by the endpoint's reader.
        scope: See `Conversation`.
        by_harness: Whether a known harness sends it.
    """
    turns = turns_of(path, fields)
    if turns is None:
        return None
    if by_harness:
        return Conversation(path, lasting(turns), scope, can_be_spawned=True)
    return Conversation(path, turns, scope)


def _framed(turns: list[Turn]) -> bytes:
    """Return an unambiguous byte encoding of turns, to be hashed."""
    try:
        return _encode(turns)
    except UnicodeEncodeError:  # half of a surrogate pair: valid in JSON, not in UTF-8
        return ascii(turns).encode()
