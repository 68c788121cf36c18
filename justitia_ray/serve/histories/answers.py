"""What a client of a history asks, what it should be answered, and what it was answered."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from justitia_ray.serve.fake_openai import FakeAnswer, parse_request
from justitia_ray.serve.histories.plan import PlannedInference
from justitia_ray.units import Tokens

PATH = "/v1/completions"
_EVENT = "data: "
_DONE = "[DONE]"


class Verdict(StrEnum):
    """How a call of a client ended, for the client."""

    OPEN = "open"
    """It has not."""
    ANSWERED = "answered"
    REFUSED = "refused"
    LEFT = "left"
    """The client went away."""
    CUT = "cut"
    """A stream that ended with an error event."""


@dataclass(slots=True)
class CallRecord:
    """One call of a client, over all its retries."""

    planned: PlannedInference
    application_id: str | None
    cancelled: bool = False
    """Its owner has cancelled the application."""
    verdict: Verdict = Verdict.OPEN
    detail: str = ""
    tries: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    """By choice."""


def body_of(planned: PlannedInference, model: str) -> bytes:
    """Return the body of a call."""
    fields: dict[str, Any] = {
        "model": model,
        "prompt": planned.prompt,
        "max_tokens": planned.max_tokens,
        "n": planned.choices,
    }
    if planned.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(fields).encode()


def expected_texts(planned: PlannedInference, model: str, max_model_len: Tokens) -> dict[int, str]:
    """Return the text of each choice: the fake engine's is a function of the prompt."""
    request = parse_request(PATH, body_of(planned, model), model, max_model_len)
    whole = json.loads(FakeAnswer(request, model, "").body())
    return {choice["index"]: choice["text"] for choice in whole["choices"]}


def read_answer(record: CallRecord, status: int, raw: bytes) -> None:
    """Take in what a client was answered."""
    if status != 200:
        record.verdict, record.detail = Verdict.REFUSED, f"{status} {raw[:200]!r}"
        return
    record.verdict, record.texts = Verdict.ANSWERED, {}
    if record.planned.stream:
        _read_events(record, raw.decode())
        return
    answer = json.loads(raw)
    record.texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    _check_usage(record, answer["usage"])


def _read_events(record: CallRecord, text: str) -> None:
    done = 0
    for event in text.split("\n\n"):
        if not event.startswith(_EVENT):
            continue  # a comment, or nothing
        if done:
            record.detail = "something follows [DONE]"
        if event == _EVENT + _DONE:
            done += 1
            continue
        chunk = json.loads(event[len(_EVENT) :])
        if "error" in chunk:
            record.verdict, record.detail = Verdict.CUT, str(chunk["error"].get("message"))
            return
        for choice in chunk["choices"]:
            index = choice["index"]
            record.texts[index] = record.texts.get(index, "") + choice["text"]
        if chunk.get("usage"):
            _check_usage(record, chunk["usage"])
    if done != 1:
        record.detail = f"[DONE] came {done} times"


def _check_usage(record: CallRecord, usage: dict[str, Tokens]) -> None:
    planned = record.planned
    expected = (len(planned.prompt.split()), planned.choices * planned.max_tokens)
    found = (usage["prompt_tokens"], usage["completion_tokens"])
    if found != expected:
        record.detail = f"usage is {found}, {expected} is right"
