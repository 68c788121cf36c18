"""`/tokenize` and `/detokenize` of the fake engine: a token for each word."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.serve.fake_openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    VOCABULARY,
    count_prompt_tokens,
    text_of_tokens,
)
from justitia_ray.units import Tokens

TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"


def answer_tokens(path: str, body: bytes, max_model_len: Tokens) -> bytes:
    """Return the answer to a call on one of the two paths, in vLLM's form.

    Raises:
        RequestError: If the body holds nothing to make tokens or text of.
    """
    fields = json.loads(body)
    if path == DETOKENIZE_PATH:
        return json.dumps({"prompt": text_of_tokens(_ids(fields))}).encode()
    is_chat = "messages" in fields
    count = count_prompt_tokens(CHAT_PATH if is_chat else COMPLETIONS_PATH, fields)
    words = " ".join(_texts(fields)).split()
    # The frame of a chat has tokens but no words.
    tokens = [0] * (count - len(words)) + [zlib.crc32(word.encode()) % VOCABULARY for word in words]
    answer = {"count": count, "max_model_len": max_model_len, "tokens": tokens, "token_strs": None}
    return json.dumps(answer).encode()


def _texts(fields: Mapping[str, Any]) -> list[str]:
    if "messages" not in fields:
        return [fields["prompt"]] if isinstance(fields["prompt"], str) else []
    return [
        message["content"]
        for message in fields["messages"]
        if isinstance(message.get("content"), str)
    ]


def _ids(fields: Mapping[str, Any]) -> list[int]:
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RequestError("tokens must be a list of token ids", "tokens")
    return tokens
