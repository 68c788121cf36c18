"""LlamaIndex: chat, stream and tool, and embeddings, by its classes for OpenAI's form."""

import json
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # type: ignore[import-untyped]
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]


def weather(warm: bool) -> str:
    """Tell how it is there."""
    return "warm" if warm else "cold"


def main(generating: str, embedding: str) -> None:
    """Talk to two services by their addresses."""
    chat = OpenAILike(
        api_base=f"{generating}/v1",
        api_key="none",
        model="tiny-llama",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=32,
        temperature=0,
    )
    embeddings = OpenAILikeEmbedding(
        api_base=f"{embedding}/v1", api_key="none", model_name="tiny-embedding"
    )
    said = [ChatMessage(role="user", content="a b c")]
    tool = FunctionTool.from_defaults(weather)
    called = chat.chat_with_tools([tool], chat_history=said, tool_choice="weather")
    told = {
        "whole": chat.chat(said).message.content,
        "streamed": "".join(piece.delta or "" for piece in chat.stream_chat(said)),
        "called": [
            (call.tool_name, call.tool_kwargs) for call in chat.get_tool_calls_from_response(called)
        ],
        "sizes": [len(one) for one in embeddings.get_text_embedding_batch(["a b", "c"])],
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
