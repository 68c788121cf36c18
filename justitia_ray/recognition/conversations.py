"""Names of conversations: a call is put with the earlier one whose messages and answer it repeats.

The name of an answered call is a digest of its scope, of all turns that it sent and of the answer.
A call that goes on from there sends the same turns first. So it asks for the names of its own
beginnings that end with a turn of the model, the longest first. The digests run over the turns
once, and no text is kept. Two calls that send the same and are answered the same have one name: it
is then nobody's (`Directory`).
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from justitia_ray.recognition.turns import MODEL, Turn, merged, turns_of

Name = bytes
"""A digest of 16 bytes."""
MOST_ASKED = 16
"""Beginnings that a call asks for at most: the longest ones. A client that cuts old turns off has
others anyway."""

_encode = msgspec.msgpack.Encoder().encode


class Conversation:
    """The conversation that a call sends."""

    def __init__(self, path: str, turns: list[Turn], scope: str) -> None:
        """Digest what was said.

        Args:
            path: Path of the endpoint.
            turns: What was said so far.
            scope: Whose conversations it may be one of: tenant and credential.
        """
        self.path = path
        self._running = hashlib.sha256(f"{scope}\0{path}".encode())
        self._begun = turns[-1] if turns and turns[-1].role == MODEL else None
        """Beginning of the model's own turn, where the caller gives one."""
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
        self.beginnings = tuple(reversed(names))
        """Names of the answered calls that it may go on from, the longest first."""

    def name_after(self, answer: Turn) -> Name:
        """Return the name of this call, once the model has answered so."""
        if self._begun is not None:
            [answer] = merged([self._begun, answer])
        return self._after(answer)

    def _after(self, turn: Turn) -> Name:
        running = self._running.copy()
        running.update(_framed([*self._unanswered, turn]))
        return running.digest()[:16]


def read_conversation(path: str, fields: Mapping[str, Any], scope: str) -> Conversation | None:
    """Return the conversation that a call sends, None if its path takes no messages.

    Args:
        path: Path of the endpoint.
        fields: The call's body, checked by the endpoint's reader.
        scope: See `Conversation`.
    """
    turns = turns_of(path, fields)
    return None if turns is None else Conversation(path, turns, scope)


def _framed(turns: list[Turn]) -> bytes:
    """Return turns up to one of the model's as bytes that no others have."""
    try:
        return _encode(turns)
    except UnicodeEncodeError:  # half of a surrogate pair: JSON may have it, UTF-8 may not
        return ascii(turns).encode()
