"""What a predictor looks at of an application's input: hashed words and a few measures of form.

The text itself goes no further than the process that first had it. Words are hashed to one of
`BUCKETS` numbers, many words to one number: enough to learn from, too little to read.
"""

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

BUCKETS = 2**15
READ_CHARS = 20_000
"""Only so much of an input is split into words, so that an enormous one costs no more."""

MEASURES = (
    "chars",
    "words",
    "lines",
    "digits",
    "sentences",
    "questions",
    "commas",
    "capitals",
    "symbols",
    "distinct_words",
)
"""Counts that models take the logarithm of; chars and lines of the whole input, the rest of what is
read."""

_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_CAPITAL = re.compile(r"\b[A-Z]")
_SYMBOL = re.compile(r"[^\w\s.,?!]")
_SENTENCE = re.compile(r"[.?!](?:\s|$)")


@dataclass(frozen=True, slots=True)
class InputFeatures:
    """Term counts and measures of one input."""

    terms: tuple[int, ...]
    """Buckets that occur, ascending, from 0 to BUCKETS - 1."""
    counts: tuple[int, ...]
    """How often each occurs, at least 1."""
    measures: tuple[int, ...]
    """One for each of MEASURES, at least 0."""

    def to_dict(self) -> dict[str, list[int]]:
        """Return the fields as JSON can say them."""
        return {
            "terms": list(self.terms),
            "counts": list(self.counts),
            "measures": list(self.measures),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the features that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        names = ("terms", "counts", "measures")
        if wrong := sorted(set(names) ^ set(values)):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        terms, counts, measures = (_integers(name, values[name]) for name in names)
        if len(terms) != len(counts):
            raise ValueError(f"counts has {len(counts)} numbers: as many as terms are allowed")
        if any(a >= b for a, b in itertools.pairwise(terms)) or terms[-1:] >= (BUCKETS,):
            raise ValueError(f"terms must ascend from 0 to at most {BUCKETS - 1}")
        if len(measures) != len(MEASURES):
            raise ValueError(f"measures has {len(measures)} numbers: {len(MEASURES)} are allowed")
        return cls(terms, counts, measures)


def features_of(text: str) -> InputFeatures:
    """Return the features of an input; the same for the same text everywhere, in linear time."""
    read = text[:READ_CHARS]
    words = _WORD.findall(read.lower())
    terms = Counter(zlib.crc32(word.encode("utf-8", "replace")) % BUCKETS for word in words)
    ordered = sorted(terms)
    measures = (
        len(text),
        len(words),
        text.count("\n") + 1,
        len(_DIGIT.findall(read)),
        len(_SENTENCE.findall(read)),
        read.count("?"),
        read.count(","),
        len(_CAPITAL.findall(read)),
        len(_SYMBOL.findall(read)),
        len(terms),
    )
    return InputFeatures(tuple(ordered), tuple(terms[t] for t in ordered), measures)


def _integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(
        type(i) is not int or not 0 <= i < math.inf for i in value
    ):
        raise ValueError(f"{name} must be a list of integers >= 0")
    return tuple(value)
