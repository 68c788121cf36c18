"""Request bodies of calls on a running service."""

import json
from typing import Any

from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS

__all__ = ["CHAT", "COMPLETIONS", "chat", "completion", "encoded_json"]

Json = dict[str, Any]


def chat(words: str = "how are you", max_tokens: int = 4, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": words}], "max_tokens": max_tokens, **fields}


def completion(prompt: str = "one two three", max_tokens: int = 4, **fields: Any) -> Json:
    """Return a completion request with a fixed output length, as in a replayed workload."""
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}


def encoded_json(body: Json) -> bytes:
    return json.dumps(body).encode()
