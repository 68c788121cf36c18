"""Features of an application's input: hashed words and a few measures of form.

The text itself does not leave the process that received it. Words are hashed to one of `BUCKETS`
numbers, many words to one number: enough for learning, too little to reconstruct the text.
"""

import itertools
import re
import string
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from justitia_ray.predictor.stored import Count, Stored

BUCKETS = 2**15
READ_CHARS = 20_000
"""Number of characters of an input that are split into words, to limit the time for huge inputs."""

MEASURES = (
    "chars",
    "lines",
    "words",
    "numbers",
    "digits",
    "capitals",
    "sentences",
    "last_line_chars",
    "last_line_words",
    "last_line_sentences",
)

_PUNCTUATION = str.maketrans(dict.fromkeys(r"""!"#$%&'()*+,-./:;<=>?@[\]^`{|}~""", " "))
"""ASCII punctuation that separates words. A table is five times as fast as a regular expression."""
_DIGITS = string.digits.encode()
_CAPITALS = string.ascii_uppercase.encode()
_SENTENCE = re.compile(r"[.?!](?:\s|$)")


@dataclass(frozen=True, slots=True)
class InputFeatures(Stored):
    """Counts of hashed words, and measures such as length, of one input text."""

    terms: tuple[Annotated[Count, Field(lt=BUCKETS)], ...]
    """Hash buckets of the words that occur, in ascending order."""
    counts: tuple[Count, ...]
    """Number of occurrences of each hash bucket, at least 1."""
    measures: Annotated[
        tuple[Count, ...], Field(min_length=len(MEASURES), max_length=len(MEASURES))
    ]
    """Length, word count and other measures of the input."""

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        if len(self.terms) != len(self.counts):
            raise ValueError(f"counts has {len(self.counts)} numbers: as many as terms are allowed")
        if any(a >= b for a, b in itertools.pairwise(self.terms)):
            raise ValueError("terms must ascend")
        return self


def features_of(text: str) -> InputFeatures:
    """Return the features of an input text, in linear time."""
    read = text[:READ_CHARS]
    words = Counter(_split_words(read))
    terms: dict[int, int] = {}
    for word, count in words.items():
        bucket = zlib.crc32(word.encode("utf-8", "replace")) % BUCKETS
        terms[bucket] = terms.get(bucket, 0) + count
    encoded = read.encode("utf-8", "replace")
    last_line = text[-READ_CHARS:].rstrip().rpartition("\n")[2]
    measures = (
        len(text),
        text.count("\n") + 1,
        words.total(),
        sum(count for word, count in words.items() if word[0].isdigit()),
        len(encoded) - len(encoded.translate(None, _DIGITS)),
        len(encoded) - len(encoded.translate(None, _CAPITALS)),
        len(_SENTENCE.findall(read)),
        len(last_line),
        len(_split_words(last_line)),
        len(_SENTENCE.findall(last_line)),
    )
    ordered = sorted(terms)
    return InputFeatures(tuple(ordered), tuple(terms[t] for t in ordered), measures)


def _split_words(text: str) -> list[str]:
    return text.lower().translate(_PUNCTUATION).split()
