"""LiteLLM: chat in both forms, stream, tool, embeddings, and a ranking by its provider for vLLM."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches its list of prices

import litellm

_TOOL = {
    "type": "function",
    "function": {
        "name": "Weather",
        "parameters": {
            "type": "object",
            "properties": {"warm": {"type": "boolean"}},
            "required": ["warm"],
            "additionalProperties": False,
        },
    },
}
_NAMED: Any = {"type": "function", "function": {"name": "Weather"}}


def main(generating: str, embedding: str) -> None:
    """Talk to two services by their addresses."""
    chat: dict[str, Any] = {
        "model": "openai/tiny-llama",
        "messages": [{"role": "user", "content": "a b c"}],
        "api_base": f"{generating}/v1",
        "api_key": "none",
        "max_tokens": 32,
        "temperature": 0,
    }
    anthropic = chat | {"model": "anthropic/tiny-llama", "api_base": generating}
    called: Any = litellm.completion(**chat, tools=[_TOOL], tool_choice=_NAMED)
    pieces: Any = litellm.completion(**chat, stream=True)
    whole: Any = litellm.completion(**chat)
    message: Any = litellm.completion(**anthropic)
    embedded: Any = litellm.embedding(
        model="openai/tiny-embedding",
        input=["a b", "c"],
        api_base=f"{embedding}/v1",
        api_key="none",
    )
    ranked: Any = litellm.rerank(
        model="hosted_vllm/tiny-embedding",
        query="a b",
        documents=["c", "a b"],
        api_base=embedding,
        api_key="none",
    )
    told = {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces),
        "anthropic": message.choices[0].message.content,
        "called": [
            (call.function.name, json.loads(call.function.arguments))
            for call in called.choices[0].message.tool_calls
        ],
        "sizes": [len(one["embedding"]) for one in embedded.data],
        "ranking": [result["index"] for result in ranked.results],
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
