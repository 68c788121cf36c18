"""What answers are taken to mean."""

import json

import pytest

from justitia_ray.client.answers import completion, json_object, response_error
from justitia_ray.client.transport import Response
from justitia_ray.errors import ResponseError

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}


def test_choices_are_ordered_by_index() -> None:
    """The service may give them in the order in which they ended."""
    answer = completion(
        {
            "choices": [
                {"index": 1, "text": "second", "finish_reason": "length"},
                {"index": 0, "text": "first", "finish_reason": "stop"},
            ],
            "usage": USAGE,
        }
    )

    assert answer.choices == ("first", "second")
    assert (
        answer.text,
        answer.finish_reason,
        answer.prompt_tokens,
        answer.output_tokens,
    ) == ("first", "stop", 3, 5)


def test_a_tool_call_has_empty_text() -> None:
    """Its `content` is null, which is no text and no error."""
    choice = {"index": 0, "message": {"content": None, "tool_calls": []}}

    assert completion({"choices": [choice], "usage": USAGE}).text == ""


@pytest.mark.parametrize("answer", [{}, {"choices": [], "usage": USAGE}, {"choices": 1}])
def test_what_is_no_completion_is_a_response_error(answer: dict[str, object]) -> None:
    """An agent catches one error for whatever the service did wrong, not a KeyError."""
    with pytest.raises(ResponseError, match="not a completion"):
        completion(answer)


def test_an_openai_error_keeps_its_fields() -> None:
    """Callers decide by code and by when to try again."""
    body = json.dumps({"error": {"message": "full", "code": "queue_full"}}).encode()

    error = response_error(429, {"retry-after": "2.5"}, body)

    assert error.args == (429, "full", "queue_full", 2.5)


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_retry_after_that_is_no_delay_is_ignored(value: str) -> None:
    """A bad header must neither raise nor make the client wait for ever."""
    assert response_error(503, {"retry-after": value}, b"").retry_after_s is None


def test_a_page_that_is_not_ours_is_quoted_in_part() -> None:
    """A proxy's error page says who answered; all of it would flood a log."""
    error = response_error(502, {}, b"<html>" + b"x" * 1000)

    assert error.message == "<html>" + "x" * 194


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_an_answer_that_is_no_object_is_a_response_error(body: bytes) -> None:
    """Something else than the service answered."""
    with pytest.raises(ResponseError, match="not a JSON object"):
        json_object(Response(200, {}, body))


def test_a_redirect_is_no_success() -> None:
    """It is not followed, and its body is not an answer."""
    with pytest.raises(ResponseError, match="302"):
        json_object(Response(302, {}, b"{}"))
