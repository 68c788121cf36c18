"""LangChain: chat, stream, tool and schema in OpenAI's and Anthropic's form, and embeddings."""

import json
import sys
from functools import reduce
from operator import add
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.e2e.frameworks import Weather


def chat_answers(chat: Any) -> dict[str, Any]:
    """Return a chat model's answers: one whole, one streamed, one tool call, one by a schema."""
    with_tool = chat.bind_tools([Weather], tool_choice="Weather")
    calls = with_tool.invoke("a b c").tool_calls
    calls += reduce(add, with_tool.stream("a b c")).tool_calls
    shaped = chat.with_structured_output(Weather, method="json_schema")
    return {
        "whole": chat.invoke("a b c").text,
        "streamed": "".join(piece.text for piece in chat.stream("a b c")),
        "called": [(call["name"], call["args"]) for call in calls],
        "shaped": shaped.invoke("a b c").model_dump(),
        "batch": [answer.text for answer in chat.batch(["a b c", "d"])],
    }


def main(generating: str, reading: str, key: str) -> None:
    options: dict[str, Any] = {"api_key": key, "max_tokens": 32, "temperature": 0}
    of_openai: dict[str, Any] = options | {"base_url": f"{generating}/v1", "model": "tiny-llama"}
    openai = ChatOpenAI(**of_openai)
    several = ChatOpenAI(**(of_openai | {"n": 2, "temperature": 1}))
    measured = openai.bind(logprobs=True, top_logprobs=2).invoke("a b c")
    probabilities = measured.response_metadata["logprobs"]["content"]
    anthropic = ChatAnthropic(base_url=generating, model="tiny-llama", **options)  # type: ignore[call-arg]
    # By default, LangChain would send token ids from OpenAI's tokenizer.
    embeddings = OpenAIEmbeddings(
        base_url=f"{reading}/v1",
        api_key=key,  # type: ignore[arg-type]
        model="tiny-embedding",
        check_embedding_ctx_length=False,
    )
    told = {
        "openai": chat_answers(openai),
        "responses": chat_answers(ChatOpenAI(**of_openai, use_responses_api=True)),
        "anthropic": chat_answers(anthropic),
        "choices": len(several.generate([[HumanMessage("a b c")]]).generations[0]),
        "alternatives": [len(token["top_logprobs"]) for token in probabilities],
        "adapted": ChatOpenAI(**(of_openai | {"model": "tiny-poet"})).invoke("a b c").text,
        "sizes": [len(one) for one in embeddings.embed_documents(["a b", "c"])],
    }
    print(json.dumps(told))  # noqa: T201


main(*sys.argv[1:])
