"""Count the tokens of a long text piece by piece, exactly, and stop where it is too long.

A tokenizer takes 1 to 4 µs a character, in one go, and makes some 200 bytes of each token: minutes
and gigabytes for the bodies of a few callers. In pieces it can be stopped and holds up others by
one piece only.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.protocol.inference_body import Counting
from justitia_ray.units import Tokens

PIECE = 16_384
"""Characters of a piece: 10 to 30 ms."""
_SEEN = 128
"""Characters on each side of a cut by which the tokenizer shows that it separates there."""
_SEARCHED = 2_048
"""Characters before the end of a piece that are searched for a cut."""
_TRIED = 4
"""Cuts that are tried in each piece."""
_DOUBT: Tokens = 64
"""Tokens that a cut in the middle of a word may make too many."""
_CUT = re.compile(r"(?<=\w)(?=[^\w]\w)")
"""Where words end: one side ends with a word, the other has a space or a sign before the next."""


@dataclass(slots=True)
class Ids:
    """Token ids of a text, as they are counted, and where in them some of its characters are."""

    places: Sequence[int] = ()
    """Numbers of characters that are looked for, in order."""
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    cuts: list[Tokens] = field(default_factory=list)
    """For each place, the tokens that end there or before; fewer while the text is not at its
    end."""
    characters: int = 0
    """Characters so far."""

    def add(self, text: str, encoded: Any) -> None:
        """Add a piece of the text, as the tokenizer encoded it, with offsets if a place is in it.

        Args:
            text: The piece.
            encoded: Its `Encoding`.
        """
        end = self.characters + len(text)
        while len(self.cuts) < len(self.places) and self.places[len(self.cuts)] <= end:
            place = self.places[len(self.cuts)] - self.characters
            within = bisect_right(encoded.offsets, place, key=lambda span: span[1])
            self.cuts.append(len(self.tokens) + within)
        self.tokens.extend(encoded.ids)
        self.characters = end

    def has_place_in(self, text: str) -> bool:
        """Return whether a place is in the next piece."""
        rest = self.places[len(self.cuts) :]
        return bool(rest) and rest[0] <= self.characters + len(text)

    def clear(self) -> None:
        """Begin again."""
        self.tokens, self.cuts, self.characters = array("I"), [], 0


class PieceCounter:
    """Counts tokens with a Hugging Face tokenizer.

    A text is cut where words end. A cut counts as exact if the tokenizer makes the same tokens of
    both sides together and of each alone, over some words: it splits there before it looks for
    tokens. What fits is counted whole where it makes no such cuts (a BPE without a pre-tokenizer).
    """

    def __init__(self, tokenizer: Any, piece: int = PIECE) -> None:
        self._tokenizer = tokenizer
        self._piece = piece
        self._rust = getattr(tokenizer, "backend_tokenizer", None)
        """The tokenizer below, which counts without the interpreter's lock and without offsets."""
        if self._rust is not None:
            self._rust.no_truncation()
            self._rust.no_padding()

    def count(
        self, text: str, most: Tokens | None, *, special: bool, ids: Ids | None = None
    ) -> Counting:
        """Count the tokens of a text.

        Args:
            text: The text.
            most: Tokens that are of interest: a text that has more may be counted as far as is
                certain. None: all.
            special: Whether the tokens that the tokenizer puts around a prompt are counted.
            ids: Gets the token ids, without special ones of a text in pieces; incomplete if the
                count ends before the text does. None: they are not wanted.
        """
        if len(text) <= 2 * self._piece:
            return self._tokens(text, special, ids)
        total, doubt, begin = 0, 0, 0
        while begin < len(text):
            end, is_exact = self._cut(text, begin)
            total += self._tokens(text[begin:end], False, ids)
            doubt += 0 if is_exact else _DOUBT
            begin = end
            if most is not None and total - doubt > most:
                return total - doubt
            yield
        if doubt:
            if ids is not None:
                ids.clear()
            return self._tokens(text, special, ids)
        return total + (self._tokenizer.num_special_tokens_to_add() if special else 0)

    def count_pair(self, first: str, second: str, most: Tokens | None) -> Counting:
        """Count the tokens of two texts that are read as one."""
        if len(first) + len(second) <= 2 * self._piece:
            return len(self._tokenizer(first, second).input_ids)
        total = yield from self.count(first, most, special=False)
        if most is None or total <= most:
            total += yield from self.count(second, most, special=False)
        return total + int(self._tokenizer.num_special_tokens_to_add(pair=True))

    def _cut(self, text: str, begin: int) -> tuple[int, bool]:
        """Return the end of the piece that begins here, and whether the tokenizer splits there."""
        end = begin + self._piece
        if end + _SEEN >= len(text):
            return len(text), True
        found = [cut.start() for cut in _CUT.finditer(text, end - _SEARCHED, end)]
        for cut in found[-_TRIED:]:
            left, right = text[cut - _SEEN : cut], text[cut : cut + _SEEN]
            if self._ids(left) + self._ids(right) == self._ids(left + right):
                return cut, True
        return (found[-1] if found else end), False

    def _tokens(self, text: str, special: bool, ids: Ids | None = None) -> Tokens:
        if self._rust is None:
            return len(self._tokenizer(text, add_special_tokens=special).input_ids)
        has_place = ids is not None and ids.has_place_in(text)
        encode = self._rust.encode_batch if has_place else self._rust.encode_batch_fast
        (encoded,) = encode([text], add_special_tokens=special)
        if ids is not None:
            ids.add(text, encoded)
        return len(encoded)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids
