"""LlamaIndex: chat, stream, tool and schema, completions, and embeddings, in OpenAI's form."""

import json
import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # type: ignore[import-untyped]
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

from tests.e2e.frameworks import Weather


def weather(warm: bool) -> str:
    """Tell how the weather is in a city."""
    return "warm" if warm else "cold"


def main(generating: str, reading: str, key: str) -> None:
    options: dict[str, Any] = {
        "api_base": f"{generating}/v1",
        "api_key": key,
        "model": "tiny-llama",
        "max_tokens": 32,
        "temperature": 0,
    }
    chat = OpenAILike(**options, is_chat_model=True, is_function_calling_model=True)
    measuring = OpenAILike(**options, is_chat_model=True, logprobs=True, top_logprobs=2)
    shaping = OpenAILike(**options, is_chat_model=True, should_use_structured_outputs=True)
    completing = OpenAILike(**options)
    adapted = OpenAILike(**(options | {"model": "tiny-poet"}), is_chat_model=True)
    embeddings = OpenAILikeEmbedding(
        api_base=f"{reading}/v1", api_key=key, model_name="tiny-embedding"
    )
    said = [ChatMessage(role="user", content="a b c")]
    asked: dict[str, Any] = {
        "tools": [FunctionTool.from_defaults(weather)],
        "chat_history": said,
        "tool_choice": "weather",
    }
    *_, last = chat.stream_chat_with_tools(**asked)
    calls = [
        call
        for answer in (chat.chat_with_tools(**asked), last)
        for call in chat.get_tool_calls_from_response(answer)
    ]
    told = {
        "whole": chat.chat(said).message.content,
        "streamed": "".join(piece.delta or "" for piece in chat.stream_chat(said)),
        "called": [(call.tool_name, call.tool_kwargs) for call in calls],
        "shaped": shaping.as_structured_llm(Weather).chat(said).raw.model_dump(),
        "alternatives": [len(token) for token in measuring.chat(said).logprobs],
        "completed": completing.complete("a b c").text,
        "completed_in_pieces": "".join(
            piece.delta or "" for piece in completing.stream_complete("a b c")
        ),
        "adapted": adapted.chat(said).message.content,
        "sizes": [len(one) for one in embeddings.get_text_embedding_batch(["a b", "c"])],
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
