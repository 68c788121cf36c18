"""Request bodies, answers and tokens of the fake engine.

Answers, including errors, have vLLM's form as far as clients rely on it. The OpenAI surface of the
service is vLLM's own, see `vllm_engine`; this module does not implement it a second time.
"""

import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from justitia_ray.errors import (
    ContextLengthExceeded,
    RequestError,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.protocol.cache_scope import reads_cache
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, parse_chat, parse_completion
from justitia_ray.protocol.inference_body import (
    USUAL_OUTPUT,
    Conversation,
    InferenceBody,
    Prompt,
    PromptCount,
    boolean,
    read_object,
    text_of,
)
from justitia_ray.units import Tokens

TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"

_TOKENS_PER_MESSAGE: Tokens = 4
VOCABULARY = 1000
"""Number of token ids of the fake engine; all ids are smaller."""


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """A validated request to the fake engine."""

    chat: bool
    body: InferenceBody
    prompts: list[list[str]]
    """Token ids of each prompt of the request."""
    max_tokens: Tokens
    """Number of tokens of each choice, all of which the fake engine generates."""
    include_usage: bool
    """Whether a stream ends with a chunk of token usage."""

    @property
    def prompt_tokens(self) -> list[Tokens]:
        """Number of tokens of each prompt of the request."""
        return [len(prompt) for prompt in self.prompts]

    @property
    def reads_cache(self) -> bool:
        """Whether the prompts may be read from the prefix cache."""
        return reads_cache(self.body)


FakeWords = Callable[[int, int], Iterable[str]]
"""Function that returns the words of an answer between two token positions, as a follow-up prompt
contains them.
"""


def count_prompt(prompt: Prompt, *, wants_ids: bool = False) -> PromptCount:
    """Return the number of tokens of a prompt, as `usage` reports it.

    All fake models use one rule: one token for each word between white space, and 4 for each chat
    message; a prompt of token ids has one token for each id.

    Args:
        prompt: The prompt.
        wants_ids: Whether the result includes token ids; equal words get equal ids.

    Raises:
        RequestError: If the prompt is empty, or a message has no role.
    """
    tokens, ends = _tokens_and_ends(prompt)
    if not wants_ids:
        return PromptCount(len(tokens))
    ids = array("I", map(zlib.crc32, map(str.encode, tokens)))
    cuts = _chat_cuts(prompt.messages, ends) if isinstance(prompt, Conversation) else ()
    return PromptCount(len(tokens), ids=ids, cuts=cuts)


def _chat_cuts(messages: Sequence[dict[str, Any]], ends: list[Tokens]) -> tuple[Tokens, ...]:
    """Return the token positions at which prefixes of a chat end; see `prompt_cuts.chat_cuts`.

    Args:
        messages: Messages of a chat.
        ends: Tokens up to the end of each message.
    """
    roles = [message["role"] for message in messages]
    first = next((n for n, role in enumerate(roles) if role != "system"), len(roles))
    answers = [n + 1 for n, role in enumerate(roles) if role == "assistant"]
    said = {first, *answers[-1:], len(roles) - 1}
    return tuple(sorted(ends[n - 1] for n in said if 0 < n < len(roles)))


def _prompt_words(prompt: Prompt) -> list[str]:
    return _tokens_and_ends(prompt)[0]


def _tokens_and_ends(prompt: Prompt) -> tuple[list[str], list[Tokens]]:
    """Return a prompt's token ids, and the number of tokens up to the end of each message.

    The 4 tokens that each message has besides its words follow the words, so that a prompt with its
    answer is a prefix of the continued conversation.
    """
    ends: list[Tokens] = []
    if isinstance(prompt, Conversation):
        tokens: list[str] = []
        for message in prompt.messages:
            role = message.get("role")
            if not isinstance(role, str):
                raise RequestError(
                    "messages: every message must be an object with a role", "messages"
                )
            tokens += text_of(message.get("content"), "messages").split()
            tokens += [f"\0{role}"] * _TOKENS_PER_MESSAGE
            ends.append(len(tokens))
    else:
        tokens = _prompt_parts(prompt)
    if not tokens:
        raise RequestError("prompt must not be empty", "prompt")
    return tokens, ends


def _prompt_parts(prompt: Prompt) -> list[str]:
    if isinstance(prompt, list):
        return [str(token) for token in prompt]
    return (prompt if isinstance(prompt, str) else prompt.text).split()


def parse_request(
    path: str, body: bytes, served_model_name: str, max_model_len: Tokens
) -> FakeRequest:
    """Return the validated request in a JSON body.

    Raises:
        RequestError: If the body is invalid; `error_answer` turns the error into an answer.
    """
    if path not in (CHAT, COMPLETIONS):
        raise UnsupportedOperation(
            f"the fake engine does not serve {path}; allowed: {CHAT}, {COMPLETIONS}"
        )
    read = parse_body(path, body, [served_model_name], max_model_len)
    prompts = [_prompt_words(prompt) for prompt in read.prompts]
    if read.keeps is not None:
        prompts = [prompt[-read.keeps :] for prompt in prompts]
    longest = max(map(len, prompts))
    left = max_model_len - longest
    if left <= 0:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"prompt contains {longest}.",
            "input_tokens",
        )
    options = read.fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    return FakeRequest(
        chat=path == CHAT,
        body=read,
        prompts=prompts,
        max_tokens=min(read.max_tokens or USUAL_OUTPUT, left),
        include_usage=boolean(options, "include_usage"),
    )


def error_answer(error: RequestError) -> tuple[int, bytes]:
    """Return the status and body with which vLLM answers a refused request."""
    not_found = isinstance(error, UnknownModel | UnsupportedOperation)
    status, kind = (404, "NotFoundError") if not_found else (400, "BadRequestError")
    answer = {"message": error.message, "type": kind, "param": error.param, "code": status}
    return status, json.dumps({"error": answer}).encode()


class FakeAnswer:
    """Answer of the fake engine; sequence k is choice k mod n of prompt k div n, with n choices.

    Equal requests get equal text: token i depends only on the prompt's text, the choice and i.
    """

    def __init__(self, request: FakeRequest, model: str, response_id: str) -> None:
        self._request = request
        self._is_chat = request.chat
        self._sequences = range(len(request.prompts) * request.body.n)
        self._response_id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{response_id}"
        self._model = model
        # Unlike hash(), crc32 gives every process the same text.
        self._seeds = [
            zlib.crc32(f"{text}\0{choice}".encode())
            for text in map(_seed_text, request.body.prompts)
            for choice in range(request.body.n)
        ]

    def opening(self) -> bytes:
        """Return the events that a stream starts with, before the first token."""
        if not self._is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk_bytes([self._choice_fields(k, None, delta=delta)]) for k in self._sequences
        )

    def tokens(self, sequence: int, start: int, stop: int) -> tuple[int, ...]:
        """Return the token ids of a sequence between positions `start` and `stop`."""
        seed = self._seeds[sequence]
        return tuple(zlib.crc32(f"\0{i}".encode(), seed) % VOCABULARY for i in range(start, stop))

    def words(self, sequence: int) -> FakeWords:
        """Return a function from token positions to a sequence's words in a follow-up prompt."""
        is_ids = isinstance(self._request.body.prompts[sequence // self._request.body.n], list)
        form = "{}" if is_ids else "w{}"
        return lambda start, stop: map(form.format, self.tokens(sequence, start, stop))

    def events(self, sequence: int, start: int, tokens: Iterable[int]) -> bytes:
        """Return one stream event for each of the given tokens."""
        events = []
        for i, token in enumerate(tokens, start):
            text = text_of_tokens([token])
            content: Any = {"delta": {"content": text}} if self._is_chat else {"text": text}
            finish_reason = "length" if i + 1 == self._request.max_tokens else None
            events.append(
                self._chunk_bytes([self._choice_fields(sequence, finish_reason, **content)])
            )
        return b"".join(events)

    def closing(self, cached_tokens: Tokens | None = None) -> bytes:
        """Return the events that end a stream, after the last token.

        Args:
            cached_tokens: Value of `cached_tokens` in `usage`; None: omitted.
        """
        usage = (
            self._chunk_bytes([], usage=self._usage_fields(cached_tokens))
            if self._request.include_usage
            else b""
        )
        return usage + b"data: [DONE]\n\n"

    def body(self, cached_tokens: Tokens | None = None) -> bytes:
        """Return the body of a unary answer, with its usage."""
        choices = []
        for k in self._sequences:
            text = text_of_tokens(self.tokens(k, 0, self._request.max_tokens))
            message = {"role": "assistant", "content": text}
            content: Any = {"message": message} if self._is_chat else {"text": text}
            choices.append(self._choice_fields(k, "length", **content))
        kind = "chat.completion" if self._is_chat else "text_completion"
        return self._answer_bytes(kind, choices, usage=self._usage_fields(cached_tokens))

    def _choice_fields(
        self, index: int, finish_reason: str | None, **content: Any
    ) -> dict[str, Any]:
        return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}

    def _chunk_bytes(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return b"data: " + self._answer_bytes(kind, choices, **more) + b"\n\n"

    def _answer_bytes(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        # `created` is constant, because the fake engine reads no wall clock.
        head = {"id": self._response_id, "object": kind, "created": 0, "model": self._model}
        return json.dumps({**head, "choices": choices, **more}).encode()

    def _usage_fields(self, cached_tokens: Tokens | None) -> dict[str, Any]:
        prompt_tokens = sum(self._request.prompt_tokens)
        completion_tokens = len(self._sequences) * self._request.max_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        if cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        return usage


def _seed_text(prompt: Prompt) -> str:
    """Return a text made from a prompt, which determines all generated tokens."""
    if isinstance(prompt, Conversation):
        return "\n".join(
            f"{turn['role']}: {text_of(turn.get('content'), 'messages')}"
            for turn in prompt.messages
        )
    return prompt if isinstance(prompt, str) else " ".join(_prompt_parts(prompt))


def text_of_tokens(tokens: Iterable[int]) -> str:
    """Return the text of token ids."""
    return "".join(f"w{token} " for token in tokens)


def answer_tokens(path: str, body: bytes, max_model_len: Tokens) -> bytes:
    """Return the fake engine's answer to `/tokenize` or `/detokenize`, in vLLM's form.

    Raises:
        RequestError: If the body holds neither tokens nor text.
    """
    fields = read_object(body)
    if path == DETOKENIZE_PATH:
        return json.dumps({"prompt": text_of_tokens(_token_ids(fields))}).encode()
    parse = parse_chat if "messages" in fields else parse_completion
    prompts = parse(path, fields, max_model_len).prompts
    count = sum(len(_prompt_words(prompt)) for prompt in prompts)
    words = [word for prompt in prompts for word in _prompt_parts(prompt)]
    # A chat message has 4 tokens besides its words; they have the token id 0.
    tokens = [0] * (count - len(words)) + [zlib.crc32(word.encode()) % VOCABULARY for word in words]
    answer = {"count": count, "max_model_len": max_model_len, "tokens": tokens, "token_strs": None}
    return json.dumps(answer).encode()


def _token_ids(fields: dict[str, Any]) -> list[int]:
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RequestError("tokens must be a list of token ids", "tokens")
    return tokens
