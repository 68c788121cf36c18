"""LangChain: chat, stream and tool in OpenAI's and in Anthropic's form, and embeddings."""

import json
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Weather(BaseModel):
    """How it is there."""

    warm: bool


def talked(chat: Any) -> dict[str, Any]:
    """Return what a chat model says whole, in pieces, and when it has to call a tool."""
    called = chat.bind_tools([Weather], tool_choice="Weather").invoke("a b c")
    return {
        "whole": chat.invoke("a b c").text,
        "streamed": "".join(piece.text for piece in chat.stream("a b c")),
        "called": [(call["name"], call["args"]) for call in called.tool_calls],
    }


def main(generating: str, embedding: str) -> None:
    """Talk to two services by their addresses."""
    options: dict[str, Any] = {"api_key": "none", "max_tokens": 32, "temperature": 0}
    openai = ChatOpenAI(base_url=f"{generating}/v1", model="tiny-llama", **options)
    anthropic = ChatAnthropic(base_url=generating, model="tiny-llama", **options)  # type: ignore[call-arg]
    # By default it would send token ids, of OpenAI's tokenizer.
    embeddings = OpenAIEmbeddings(
        base_url=f"{embedding}/v1",
        api_key="none",  # type: ignore[arg-type]
        model="tiny-embedding",
        check_embedding_ctx_length=False,
    )
    told = {
        "openai": talked(openai),
        "anthropic": talked(anthropic),
        "sizes": [len(one) for one in embeddings.embed_documents(["a b", "c"])],
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
