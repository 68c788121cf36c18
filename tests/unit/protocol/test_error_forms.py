"""Clients of each family are told of an error in the form that they read."""

import json
from typing import Any

import pytest

from justitia_ray.errors import (
    BodyTooLarge,
    EngineError,
    JustitiaError,
    QueueFull,
    RequestError,
    UnknownModel,
)
from justitia_ray.protocol.error_forms import engine_error_in_form, error_event, error_in_form
from justitia_ray.protocol.messages_body import COUNT_TOKENS, MESSAGES
from justitia_ray.protocol.openai_body import CHAT
from justitia_ray.protocol.responses_body import RESPONSES


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x", "max_tokens"), "invalid_request_error"),
        (UnknownModel("x", "model"), "not_found_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (QueueFull("x"), "rate_limit_error"),
        (EngineError("x"), "api_error"),
    ],
)
def test_anthropics_clients_read_their_own_form(path: str, error: JustitiaError, kind: str) -> None:
    """The types are those of Anthropic's reference: agents retry by them."""
    assert {"type": "error", "error": {"type": kind, "message": "x"}} == error_in_form(path, error)


def test_engines_error_is_turned_into_the_form_of_the_path() -> None:
    """A malformed message is answered in OpenAI's form by vLLM; what is no error is left alone."""
    said = b'{"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 400}}'
    turned = {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}

    assert turned == json.loads(engine_error_in_form(MESSAGES, 400, said))
    assert said == engine_error_in_form(CHAT, 400, said)
    assert b"<html>" == engine_error_in_form(MESSAGES, 502, b"<html>")
    assert b"[]" == engine_error_in_form(MESSAGES, 502, b"[]")


def test_path_that_an_engine_has_not_is_an_error_in_the_form_of_the_path() -> None:
    """An embedding model has no chats: its web framework says so in a form of its own."""
    said = b'{"detail": "Not Found"}'

    chat = json.loads(engine_error_in_form(CHAT, 404, said))["error"]
    assert ("NotFoundError", 404) == (chat["type"], chat["code"])
    assert "/v1/chat/completions with: Not Found" in chat["message"]
    message = json.loads(engine_error_in_form(MESSAGES, 404, said))
    assert "not_found_error" == message["error"]["type"]


def event(path: str) -> tuple[str | None, Any]:
    """Return name and data of the event with which a stream on a path fails."""
    lines = error_event(path, EngineError("cut"), 7).decode().splitlines()
    name = lines[0].removeprefix("event: ") if lines[0].startswith("event: ") else None
    return name, json.loads(lines[-2 if not lines[-1] else -1].removeprefix("data: "))


def test_stream_ends_with_an_event_of_its_own_protocol() -> None:
    """A client that waits for the end of one would wait for ever on an event it does not know."""
    api_error = {"type": "error", "error": {"type": "api_error", "message": "cut"}}
    response = {"type": "error", "code": "engine_error", "message": "cut", "param": None}

    assert ("error", api_error) == event(MESSAGES)
    assert ("error", response | {"sequence_number": 7}) == event(RESPONSES)
    name, chat = event(CHAT)
    assert (None, "cut", "engine_error") == (name, chat["error"]["message"], chat["error"]["code"])
