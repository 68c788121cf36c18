"""Names of conversations: a call continues the call whose messages and answer it repeats.

The name of an answered call is a digest of its scope, of all turns that it sent and of the answer.
A call that continues the conversation sends the same turns first. So every beginning of its turns
that ends with a turn of the model is looked up by name, the longest first. The turns are digested
once, and no text is stored. Two calls with equal messages and answers have the same name, which
then identifies neither (`Directory`).

A sub-agent's conversation begins with the text that the model of its spawner gave to a tool. If the
harness is known, the answer gets a second name from this text, and a call that begins with the text
is looked up by that name.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from justitia_ray.recognition.turns import MODEL, Turn, lasting, merged, turns_of

Name = bytes
"""Digest of 16 bytes over the turns of a conversation, by which it is found again."""
MOST_ASKED = 16
"""Maximum number of beginnings of a conversation that are looked up, longest first. A client that
drops old turns has other beginnings anyway.
"""

_encode = msgspec.msgpack.Encoder().encode


class Conversation:
    """Conversation in the messages of a call, and the names of its beginnings."""

    def __init__(
        self, path: str, turns: list[Turn], scope: str, *, can_be_spawned: bool = False
    ) -> None:
        """Compute the names of the conversation's beginnings.

        Args:
            path: Path of the endpoint.
            turns: The turns so far.
            scope: Tenant and credential, within which conversations are matched.
            can_be_spawned: Whether the call may come from a sub-agent, or from an agent that spawns
                sub-agents.
        """
        self.path = path
        self._scope = scope
        self.can_be_spawned = can_be_spawned
        self._running = hashlib.sha256(f"{scope}\0{path}".encode())
        self._begun = turns[-1] if turns and turns[-1].role == MODEL else None
        """Beginning of the model's answer, if the caller sends it as the last turn; otherwise None.
        """
        names: list[Name] = []
        unnamed = sum(turn.role == MODEL for turn in turns) - MOST_ASKED
        self._unanswered: list[Turn] = []
        for turn in turns[:-1] if self._begun else turns:
            self._unanswered.append(turn)
            if turn.role == MODEL:
                self._running.update(_unambiguous_bytes(self._unanswered))
                self._unanswered.clear()
                unnamed -= 1
                if unnamed < 0:
                    names.append(self._running.digest()[:16])
        if self._begun is not None:
            names.append(self._name_with_answer(self._begun))
        if can_be_spawned and len(turns) == 1 and turns[0].role != MODEL:
            names.append(self.name_of_prompt(turns[0].text))
        self.beginnings = tuple(reversed(names))
        """Names of the earlier calls that this call may continue, longest first."""

    def name_after(self, answer: Turn) -> Name:
        """Return the conversation's name once the model has given an answer."""
        if self._begun is not None:
            [answer] = merged([self._begun, answer])
        return self._name_with_answer(answer)

    def name_of_prompt(self, prompt: str) -> Name:
        """Return the name of a conversation that begins with a prompt written by a model."""
        framed = _encode(ascii(prompt.strip()))
        return hashlib.sha256(f"{self._scope}\0spawned".encode() + framed).digest()[:16]

    def _name_with_answer(self, turn: Turn) -> Name:
        running = self._running.copy()
        running.update(_unambiguous_bytes([*self._unanswered, turn]))
        return running.digest()[:16]


def read_conversation(
    path: str, fields: Mapping[str, Any], scope: str, *, by_harness: bool = False
) -> Conversation | None:
    """Return the conversation in a call's messages; None if its path takes no messages.

    Args:
        path: Path of the endpoint.
        fields: The call's body, checked by the endpoint's reader.
        scope: See `Conversation`.
        by_harness: Whether a known harness sends the call.
    """
    turns = turns_of(path, fields)
    if turns is None:
        return None
    if by_harness:
        return Conversation(path, lasting(turns), scope, can_be_spawned=True)
    return Conversation(path, turns, scope)


def _unambiguous_bytes(turns: list[Turn]) -> bytes:
    """Return an unambiguous encoding of turns, for hashing."""
    try:
        return _encode(turns)
    except UnicodeEncodeError:  # a lone surrogate, valid in JSON but not in UTF-8
        return ascii(turns).encode()
