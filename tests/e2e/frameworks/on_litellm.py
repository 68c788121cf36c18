"""LiteLLM: chat in three forms, stream, tool, schema, embeddings, and vLLM's rankings."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of prices

import litellm

from tests.e2e.frameworks import Weather

_TOOL = {
    "type": "function",
    "function": {"name": "Weather", "parameters": Weather.model_json_schema()},
}
_NAMED: Any = {"type": "function", "function": {"name": "Weather"}}


def rank_documents(reading: str, model: str, key: str) -> list[int]:
    ranked: Any = litellm.rerank(
        model=f"hosted_vllm/{model}",
        query="a b",
        documents=["c", "a b"],
        api_base=reading,
        api_key=key,
    )
    return [result["index"] for result in ranked.results]


def main(generating: str, reading: str, key: str) -> None:
    at: dict[str, Any] = {"api_base": f"{generating}/v1", "api_key": key}
    said = [{"role": "user", "content": "a b c"}]
    limits: dict[str, Any] = {"max_tokens": 32, "temperature": 0}
    chat: dict[str, Any] = {"model": "openai/tiny-llama", "messages": said, **at, **limits}
    anthropic = chat | {"model": "anthropic/tiny-llama", "api_base": generating}
    forced: dict[str, Any] = {"tools": [_TOOL], "tool_choice": _NAMED}
    answers: list[Any] = [
        litellm.completion(**chat, **forced),
        litellm.stream_chunk_builder(list(litellm.completion(**chat, **forced, stream=True))),
        litellm.completion(**anthropic, **forced),
    ]
    calls = [call.function for answer in answers for call in answer.choices[0].message.tool_calls]
    pieces: Any = litellm.completion(**chat, stream=True)
    whole: Any = litellm.completion(**chat)
    message: Any = litellm.completion(**anthropic)
    shaped: Any = litellm.completion(**chat, response_format=Weather)
    several: Any = litellm.completion(**(chat | {"temperature": 1}), n=2)
    measured: Any = litellm.completion(**chat, logprobs=True, top_logprobs=2)
    adapted: Any = litellm.completion(**(chat | {"model": "openai/tiny-poet"}))
    batch: Any = litellm.text_completion(
        model="text-completion-openai/tiny-llama", prompt=["a", "b c"], **at, **limits
    )
    response: Any = litellm.responses(
        model="openai/tiny-llama", input="a b c", max_output_tokens=32, temperature=0, **at
    )
    embedded: Any = litellm.embedding(
        model="openai/tiny-embedding",
        input=["a b", "c"],
        api_base=f"{reading}/v1",
        api_key=key,
    )
    told = {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces),
        "anthropic": message.choices[0].message.content,
        "response": response.output_text,
        "called": [(call.name, json.loads(call.arguments)) for call in calls],
        "shaped": json.loads(shaped.choices[0].message.content),
        "choices": len(several.choices),
        "alternatives": [len(token.top_logprobs) for token in measured.choices[0].logprobs.content],
        "adapted": adapted.choices[0].message.content,
        "batch": [choice.text for choice in batch.choices],
        "sizes": [len(one["embedding"]) for one in embedded.data],
        "ranking": rank_documents(reading, "tiny-embedding", key),
        "pair_ranking": rank_documents(reading, "tiny-reranker", key),
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
