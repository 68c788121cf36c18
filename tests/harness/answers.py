"""Answers as clients read them, and their difference from the fake engine's correct answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.serve.engines.fake_openai import FakeAnswer, parse_request
from justitia_ray.units import Tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete answer to a call, either unary or joined from a stream."""

    texts: tuple[str, ...]
    """Text of each choice."""
    finish_reasons: tuple[str | None, ...]
    """Finish reason of each choice."""
    prompt_tokens: Tokens
    output_tokens: Tokens


def unary_answer(body: Mapping[str, Any]) -> Answer:
    """Parse the JSON body of an answer that was not streamed.

    Raises:
        KeyError, TypeError: If it is none.
    """
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    texts = tuple(c["message"]["content"] if "message" in c else c["text"] for c in choices)
    reasons = tuple(choice["finish_reason"] for choice in choices)
    usage = body["usage"]
    return Answer(texts, reasons, usage["prompt_tokens"], usage["completion_tokens"])


def fake_answer(path: str, body: bytes, model: str, max_model_len: Tokens) -> Answer:
    """Return the fake engine's correct answer to a request; it depends only on the prompt."""
    unary = json.dumps(json.loads(body) | {"stream": False}).encode()
    request = parse_request(path, unary, model, max_model_len)
    return unary_answer(json.loads(FakeAnswer(request, model, "expected").body()))


@dataclass(slots=True)
class StreamedAnswer:
    """Joins the events of a stream into an answer, and records violations of the stream format."""

    _texts: dict[int, str] = field(default_factory=dict)
    _reasons: dict[int, str | None] = field(default_factory=dict)
    _usage: Mapping[str, Any] | None = None
    _ids: set[tuple[Any, Any]] = field(default_factory=set)
    """(id, creation time) of each event; a correct stream has one pair."""
    flaws: list[str] = field(default_factory=list)
    """Violations of the stream format, such as a second id."""

    def add_event(self, event: Mapping[str, Any]) -> None:
        self._ids.add((event.get("id"), event.get("created")))
        if event.get("usage"):
            if self._usage is not None:
                self.flaws.append("usage came twice")
            self._usage = event["usage"]
        for choice in event.get("choices", ()):
            index = int(choice["index"])
            if self._reasons.get(index) is not None:
                self.flaws.append("a chunk came after the end of its choice")
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
            self._texts[index] = self._texts.get(index, "") + (piece or "")
            self._reasons[index] = choice.get("finish_reason")

    def joined_answer(self) -> Answer:
        """Return the answer joined from all events; call after `[DONE]`."""
        if self._usage is None:
            self.flaws.append("usage did not come")
        if len(self._ids) != 1:
            self.flaws.append("the id of the answer changed in its middle")
        usage = self._usage or {"prompt_tokens": 0, "completion_tokens": 0}
        order = sorted(self._texts)
        return Answer(
            tuple(self._texts[index] for index in order),
            tuple(self._reasons[index] for index in order),
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )


def describe_difference(expected: Answer, found: Answer) -> str:
    """Describe how an answer differs from the correct one; empty if they are equal.

    The description gives positions only and quotes no text.
    """
    for index, (right, text) in enumerate(zip(expected.texts, found.texts, strict=False)):
        if right != text:
            pairs = zip(right, text, strict=False)
            same = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
            at = min(len(right), len(text)) if same is None else same
            return (
                f"choice {index} differs from character {at} on, {len(text)} characters in place"
                f" of {len(right)}"
            )
    if len(expected.texts) != len(found.texts):
        return f"choices: {len(found.texts)} in place of {len(expected.texts)}"
    for name in ("finish_reasons", "prompt_tokens", "output_tokens"):
        wanted, got = getattr(expected, name), getattr(found, name)
        if wanted != got:
            return f"{name}: {got} in place of {wanted}"
    return ""
