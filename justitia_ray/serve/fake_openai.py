"""The two OpenAI paths that the fake engine serves: reading bodies, making answers.

It answers in vLLM's form, errors included, as far as clients rely on it. It is not a second
implementation of the OpenAI surface: that one is vLLM's, see `vllm_engine`.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from justitia_ray.errors import (
    ContextLengthExceeded,
    RequestError,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.units import Tokens

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

_TOKENS_PER_MESSAGE: Tokens = 4
_DEFAULT_MAX_TOKENS: Tokens = 16
VOCABULARY = 1000
"""Token ids are below it."""


@dataclass(frozen=True, slots=True)
class FakePrompt:
    """One prompt of a request; its text decides every token that follows it."""

    text: str
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """A valid request body."""

    chat: bool
    prompts: tuple[FakePrompt, ...]
    n: int
    """Choices of each prompt."""
    max_tokens: Tokens
    """Tokens of each choice; the fake engine always makes all of them."""
    stream: bool
    include_usage: bool
    """Whether a stream ends with a usage chunk."""


def count_prompt_tokens(path: str, body: Mapping[str, Any]) -> Tokens:
    """Return the prompt tokens of a body, each prompt counted once, as `usage` counts them.

    The rule of all fake models: one token for each word between white space, and 4 for each chat
    message; a prompt of token ids has as many tokens as ids.

    Raises:
        RequestError: If the path is not served or the body holds no valid prompt.
    """
    return sum(prompt.tokens for prompt in _prompts(path, body))


def parse_request(
    path: str, body: bytes, served_model_name: str, max_model_len: Tokens
) -> FakeRequest:
    """Return the request that a body holds.

    Raises:
        RequestError: If it holds none; `error_answer` makes the answer of it.
    """
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    prompts = _prompts(path, fields)
    model = fields.get("model")
    if model is not None and model != served_model_name:
        raise UnknownModel(
            f"The model `{model}` does not exist. Valid aliases: {served_model_name}.", "model"
        )
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    return FakeRequest(
        chat=path == CHAT_PATH,
        prompts=prompts,
        n=_positive(fields, "n") or 1,
        max_tokens=_max_tokens(fields, max(prompt.tokens for prompt in prompts), max_model_len),
        stream=_flag(fields, "stream"),
        include_usage=_flag(options, "include_usage"),
    )


def error_answer(error: RequestError) -> tuple[int, bytes]:
    """Return the status and body with which vLLM would answer such an error."""
    not_found = isinstance(error, UnknownModel | UnsupportedOperation)
    status, kind = (404, "NotFoundError") if not_found else (400, "BadRequestError")
    answer = {"message": error.message, "type": kind, "param": error.param, "code": status}
    return status, json.dumps({"error": answer}).encode()


class FakeAnswer:
    """Makes the answer to one request. Sequence k is choice k mod n of prompt k div n.

    The same request always gets the same text: token i depends on the prompt's text, the choice
    and i alone.
    """

    def __init__(self, request: FakeRequest, model: str, response_id: str) -> None:
        self._request = request
        self._sequences = range(len(request.prompts) * request.n)
        self._response_id = f"{'chatcmpl' if request.chat else 'cmpl'}-{response_id}"
        self._common = {
            "created": 0,  # the fake engine knows no wall clock
            "model": model,
        }

    def opening(self) -> bytes:
        """Return the events of a stream that come before the first token."""
        if not self._request.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk([self._choice(k, None, delta=delta)]) for k in self._sequences)

    def tokens(self, sequence: int, start: int, stop: int) -> tuple[int, ...]:
        """Return the ids of the tokens of a sequence from one position to before another."""
        prompt, choice = divmod(sequence, self._request.n)
        # crc32, not hash(): the text must be the same in every process.
        seed = zlib.crc32(f"{self._request.prompts[prompt].text}\0{choice}".encode())
        return tuple(zlib.crc32(f"\0{i}".encode(), seed) % VOCABULARY for i in range(start, stop))

    def events(self, sequence: int, start: int, tokens: Iterable[int]) -> bytes:
        """Return the events of a stream that bring these tokens, an event a token."""
        return b"".join(self._event(sequence, i, token) for i, token in enumerate(tokens, start))

    def _event(self, sequence: int, i: int, token: int) -> bytes:
        text = text_of_tokens([token])
        content: dict[str, Any] = (
            {"delta": {"content": text}} if self._request.chat else {"text": text}
        )
        finish_reason = "length" if i + 1 == self._request.max_tokens else None
        return self._chunk([self._choice(sequence, finish_reason, **content)])

    def closing(self) -> bytes:
        """Return the events of a stream that come after the last token."""
        usage = self._chunk([], usage=self._usage()) if self._request.include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def body(self) -> bytes:
        """Return the body of an answer that is not streamed."""
        choices = []
        for k in self._sequences:
            text = text_of_tokens(self.tokens(k, 0, self._request.max_tokens))
            content: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text}}
                if self._request.chat
                else {"text": text}
            )
            choices.append(self._choice(k, "length", **content))
        kind = "chat.completion" if self._request.chat else "text_completion"
        answer = {"id": self._response_id, "object": kind} | self._common
        return json.dumps(answer | {"choices": choices, "usage": self._usage()}).encode()

    def _choice(self, index: int, finish_reason: str | None, **content: Any) -> dict[str, Any]:
        return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._request.chat else "text_completion"
        head = {"id": self._response_id, "object": kind} | self._common
        chunk = head | {"choices": choices, **more}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    def _usage(self) -> dict[str, Tokens]:
        prompt_tokens = sum(prompt.tokens for prompt in self._request.prompts)
        completion_tokens = len(self._sequences) * self._request.max_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }


def text_of_tokens(tokens: Iterable[int]) -> str:
    """Return the text that tokens stand for."""
    return "".join(f"w{token} " for token in tokens)


def _prompts(path: str, body: Mapping[str, Any]) -> tuple[FakePrompt, ...]:
    if path == CHAT_PATH:
        return (_chat_prompt(body.get("messages")),)
    if path == COMPLETIONS_PATH:
        return _completion_prompts(body.get("prompt"))
    raise UnsupportedOperation(
        f"the fake engine does not serve {path}; allowed: {CHAT_PATH}, {COMPLETIONS_PATH}"
    )


def _chat_prompt(messages: Any) -> FakePrompt:
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message", "messages")
    lines = []
    words = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError("messages: every message must be an object with a role", "messages")
        content = message.get("content") or ""
        if isinstance(content, list):
            parts = [part.get("text", "") for part in content if isinstance(part, dict)]
            content = " ".join(str(part) for part in parts)
        lines.append(f"{message['role']}: {content}")
        words += len(str(content).split())
    return FakePrompt("\n".join(lines), words + _TOKENS_PER_MESSAGE * len(messages))


def _completion_prompts(prompt: Any) -> tuple[FakePrompt, ...]:
    batch = prompt if isinstance(prompt, list) and not _is_token_ids(prompt) else [prompt]
    prompts = []
    for one in batch:
        if isinstance(one, str):
            prompts.append(FakePrompt(one, len(one.split())))
        elif _is_token_ids(one):
            prompts.append(FakePrompt(" ".join(map(str, one)), len(one)))
        else:
            raise RequestError("prompt must be text, token ids, or a list of either", "prompt")
    if not prompts or not all(one.tokens for one in prompts):
        raise RequestError("prompt must not be empty", "prompt")
    return tuple(prompts)


def _is_token_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)


def _max_tokens(fields: Mapping[str, Any], prompt_tokens: Tokens, max_model_len: Tokens) -> Tokens:
    wanted = _positive(fields, "max_completion_tokens") or _positive(fields, "max_tokens")
    room = max_model_len - prompt_tokens
    if room < (wanted or 1):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {wanted or 1} output tokens and your prompt contains {prompt_tokens}.",
            "input_tokens",
        )
    return wanted or min(_DEFAULT_MAX_TOKENS, room)


def _positive(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise RequestError(f"{key} must be an integer of at least 1, got {value!r}", key)
    return value


def _flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{key} must be true or false, got {value!r}", key)
    return bool(value)
