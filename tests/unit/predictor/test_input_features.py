"""Features of an input: small, bounded, equal on every machine, and without the text."""

import json
import subprocess
import sys

import pytest

from justitia_ray.predictor.input_features import (
    BUCKETS,
    MEASURES,
    READ_CHARS,
    InputFeatures,
    features_of,
)

ODD = {
    "empty": "",
    "blank": " \n\t ",
    "a megabyte": "lorem ipsum dolor. " * 60_000,
    "newlines": "\n" * 1_000_000,
    "one word": "a" * 1_000_000,
    "every word another": " ".join(map(str, range(200_000))),
    "Chinese": "你好，世界。" * 200_000,
    "emoji": "😀" * 500_000,
    "half a surrogate": "\ud800" * 1_000_000,
    "binary": "".join(map(chr, range(256))) * 4_000,
}


def measures_of(text: str) -> dict[str, int]:
    return dict(zip(MEASURES, features_of(text).measures, strict=True))


def test_text_measures_count_what_their_names_say() -> None:
    """Models learn from the counts, so a wrong one would make estimates worse without any error."""
    text = "Find 2 towns.\nHow big? 1200 or 35 km²\nThe last line. It has two sentences!\n"

    assert {
        "chars": 14 + 24 + 37,
        "lines": 4,
        "words": 3 + 6 + 7,
        "numbers": 3,
        "digits": 7,
        "capitals": 4,
        "sentences": 4,
        "last_line_chars": 36,
        "last_line_words": 7,
        "last_line_sentences": 2,
    } == measures_of(text)


def test_terms_of_an_input_ignore_case_and_punctuation() -> None:
    """A class has few samples from which to learn a word."""
    once, thrice = features_of("merge"), features_of("Merge, (MERGE) merge.")

    assert once.terms == thrice.terms
    assert (1,) == once.counts
    assert (3,) == thrice.counts


@pytest.mark.parametrize("name", ODD)
def test_odd_inputs_have_features_within_bounds(name: str) -> None:
    """Callers may send any text, but features must stay small and survive JSON."""
    features = features_of(ODD[name])

    assert len(MEASURES) == len(features.measures)
    assert len(features.terms) <= READ_CHARS
    assert all(0 <= term < BUCKETS for term in features.terms)
    assert features == InputFeatures.from_dict(json.loads(json.dumps(features.to_dict())))


def test_words_of_an_enormous_input_are_read_from_its_beginning() -> None:
    """The ingress computes features, and an input of 1 MB must not delay other requests."""
    enormous = "lorem ipsum dolor. " * 50_000

    features, read = features_of(enormous), features_of(enormous[:READ_CHARS])

    assert (read.terms, read.counts) == (features.terms, features.counts)
    assert len(enormous) == features.measures[MEASURES.index("chars")]


def test_input_features_are_equal_in_two_processes() -> None:
    """Ingresses and predictors are separate processes, between which Python's own hash differs."""
    text = "Merge the four NDAs into one, and keep 100 % of the clauses."
    code = (
        "from justitia_ray.predictor.input_features import features_of;"
        f"print(features_of({text!r}).to_dict())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout

    assert f"{features_of(text).to_dict()}\n" == other
