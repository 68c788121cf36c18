"""Count the tokens of a long text piece by piece, exactly, and stop once the text is too long.

A tokenizer takes 1 to 4 µs per character in one uninterruptible call and some 200 bytes per token:
minutes and gigabytes for a few large bodies. Counting in pieces can be stopped, and delays other
calls by one piece only.
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
"""Number of characters that are tokenized at once (10 to 30 ms)."""
_SEEN = 128
"""Number of characters tokenized on each side of a cut, to check that no token crosses the cut."""
_SEARCHED = 2_048
"""Number of characters at the end of a piece of text that are searched for a cut."""
_TRIED = 4
"""Maximum number of cuts that are tried in each piece of a text."""
_DOUBT: Tokens = 64
"""Maximum number of extra tokens that are counted because a text was cut inside a word."""
_CUT = re.compile(r"(?<=\w)(?=[^\w]\w)")
"""Regular expression for the end of a word, where a long text may be cut for tokenizing."""


@dataclass(slots=True)
class Ids:
    """Token ids of a text counted piece by piece, and the token positions of given characters."""

    places: Sequence[int] = ()
    """Character positions whose token positions are wanted, in ascending order."""
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    cuts: list[Tokens] = field(default_factory=list)
    """Number of tokens before each character position in `places`; complete when the whole text is
    counted.
    """
    characters: int = 0
    """Number of characters of the text counted so far."""

    def add(self, text: str, encoded: Any) -> None:
        """Add a piece of the text; its encoding needs offsets if it contains one of `places`.

        Args:
            text: The piece.
            encoded: The tokenizer's `Encoding` of the piece.
        """
        end = self.characters + len(text)
        while len(self.cuts) < len(self.places) and self.places[len(self.cuts)] <= end:
            place = self.places[len(self.cuts)] - self.characters
            within = bisect_right(encoded.offsets, place, key=lambda span: span[1])
            self.cuts.append(len(self.tokens) + within)
        self.tokens.extend(encoded.ids)
        self.characters = end

    def has_place_in(self, text: str) -> bool:
        """Return whether the next piece of text contains one of `places`."""
        rest = self.places[len(self.cuts) :]
        return bool(rest) and rest[0] <= self.characters + len(text)

    def clear(self) -> None:
        self.tokens, self.cuts, self.characters = array("I"), [], 0


class PieceCounter:
    """Counts the tokens of long texts piece by piece with a Hugging Face tokenizer.

    A text is cut at ends of words. A cut is exact if the tokenizer splits the text there anyway:
    tokenizing some words on both sides together gives the same tokens as tokenizing each side
    alone. If a cut is not exact (a BPE without a pre-tokenizer), a text within the limit is counted
    as a whole.
    """

    def __init__(self, tokenizer: Any, piece: int = PIECE) -> None:
        self._tokenizer = tokenizer
        self._piece = piece
        self._rust = getattr(tokenizer, "backend_tokenizer", None)
        """The underlying Rust tokenizer, which counts without Python's global lock."""
        if self._rust is not None:
            self._rust.no_truncation()
            self._rust.no_padding()

    def count(
        self, text: str, most: Tokens | None, *, special: bool, ids: Ids | None = None
    ) -> Counting:
        """Count the tokens of a text, yielding between pieces.

        Args:
            text: The text.
            most: Counting may stop once the text is certain to have more tokens. None: no limit.
            special: Whether to count the special tokens that the tokenizer adds around a prompt.
            ids: Receives the token ids, without special ones if the text is counted in pieces;
                incomplete if counting stops early. None: ids are not needed.
        """
        if len(text) <= 2 * self._piece:
            return self._count_tokens(text, special, ids)
        total, doubt, begin = 0, 0, 0
        while begin < len(text):
            end, is_exact = self._end_of_piece(text, begin)
            total += self._count_tokens(text[begin:end], False, ids)
            doubt += 0 if is_exact else _DOUBT
            begin = end
            if most is not None and total - doubt > most:
                return total - doubt
            yield
        if doubt:
            if ids is not None:
                ids.clear()
            return self._count_tokens(text, special, ids)
        return total + (self._tokenizer.num_special_tokens_to_add() if special else 0)

    def count_pair(self, first: str, second: str, most: Tokens | None) -> Counting:
        """Count the tokens of two texts that the model reads as one sequence."""
        if len(first) + len(second) <= 2 * self._piece:
            return len(self._tokenizer(first, second).input_ids)
        total = yield from self.count(first, most, special=False)
        if most is None or total <= most:
            total += yield from self.count(second, most, special=False)
        return total + int(self._tokenizer.num_special_tokens_to_add(pair=True))

    def _end_of_piece(self, text: str, begin: int) -> tuple[int, bool]:
        """Return the end of the piece of text from `begin`, and whether no token crosses it."""
        end = begin + self._piece
        if end + _SEEN >= len(text):
            return len(text), True
        found = [cut.start() for cut in _CUT.finditer(text, end - _SEARCHED, end)]
        for cut in found[-_TRIED:]:
            left, right = text[cut - _SEEN : cut], text[cut : cut + _SEEN]
            if self._token_ids(left) + self._token_ids(right) == self._token_ids(left + right):
                return cut, True
        return (found[-1] if found else end), False

    def _count_tokens(self, text: str, special: bool, ids: Ids | None = None) -> Tokens:
        if self._rust is None:
            return len(self._tokenizer(text, add_special_tokens=special).input_ids)
        has_place = ids is not None and ids.has_place_in(text)
        encode = self._rust.encode_batch if has_place else self._rust.encode_batch_fast
        (encoded,) = encode([text], add_special_tokens=special)
        if ids is not None:
            ids.add(text, encoded)
        return len(encoded)

    def _token_ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return ids
