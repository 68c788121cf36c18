"""A wrong answer is found, whatever is wrong with it."""

from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.chaos.answers import Answer, StreamedAnswer, difference, unary_answer
from tests.unit.chaos.made_up import RIGHT

BODY: dict[str, Any] = {
    "choices": [
        {"index": 1, "message": {"content": "b"}, "finish_reason": "stop"},
        {"index": 0, "text": "a", "finish_reason": "length"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def chunk(text: str, reason: str | None = None, identifier: str = "cmpl-1-2") -> dict[str, Any]:
    return {
        "id": identifier,
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
    }


USAGE = {
    "id": "cmpl-1-2",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def joined(*events: dict[str, Any]) -> tuple[Answer, list[str]]:
    streamed = StreamedAnswer()
    for event in events:
        streamed.add(event)
    return streamed.whole(), streamed.flaws


def test_unary_answer_is_read_by_choice() -> None:
    """Choices may come in any order, of chats or of completions."""
    assert Answer(("a", "b"), ("length", "stop"), 3, 2) == unary_answer(BODY)


def test_stream_is_joined_to_the_unary_answer() -> None:
    """One comparison serves both."""
    assert (RIGHT, []) == joined(chunk("w1 "), chunk("w2 ", "length"), USAGE)


@pytest.mark.parametrize(
    ("events", "flaw"),
    [
        ((chunk("w1 w2 ", "length"), USAGE, USAGE), "usage came twice"),
        ((chunk("w1 w2 ", "length"),), "usage did not come"),
        ((chunk("w1 ", "length"), chunk("w2 ", "length"), USAGE), "a chunk came after the end"),
        ((chunk("w1 "), chunk("w2 ", "length", "cmpl-9-9"), USAGE), "the id of the answer changed"),
    ],
)
def test_flaw_of_a_stream_is_told(events: tuple[dict[str, Any], ...], flaw: str) -> None:
    """The text may be right by luck."""
    _, flaws = joined(*events)

    assert [True] == [told.startswith(flaw) for told in flaws]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (replace(RIGHT, texts=("w1 w3 ",)), "choice 0 differs from character 4 on"),
        (replace(RIGHT, texts=("w1 w2 w2 ",)), "choice 0 differs from character 6 on"),
        (replace(RIGHT, texts=("w1 ",)), "choice 0 differs from character 3 on"),
        (replace(RIGHT, texts=("w1 w2 ", "x")), "choices: 2 in place of 1"),
        (replace(RIGHT, finish_reasons=(None,)), "finish_reasons: "),
        (replace(RIGHT, prompt_tokens=5), "prompt_tokens: 5 in place of 3"),
        (replace(RIGHT, output_tokens=4), "output_tokens: 4 in place of 2"),
    ],
)
def test_difference_is_told_without_the_text(found: Answer, told: str) -> None:
    """A missing chunk, one that came twice, and wrong usage are all wrong answers."""
    assert difference(RIGHT, found).startswith(told)
    assert "w1" not in difference(RIGHT, found)


def test_right_answer_differs_in_nothing() -> None:
    """Else every run would fail."""
    assert "" == difference(RIGHT, replace(RIGHT))
