"""LangChain's agent on its OpenAI and Anthropic models."""

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from tests.harness.agents.script import SYSTEM, TOOLS
from tests.harness.agents.talk import MODEL, ModelAddress


def openai_chat_model(place: ModelAddress, *, streamed: bool) -> Any:
    return ChatOpenAI(**_openai_options(place), streaming=streamed)


def openai_responses_model(place: ModelAddress, *, streamed: bool) -> Any:
    return ChatOpenAI(**_openai_options(place), streaming=streamed, use_responses_api=True)


def anthropic_model(place: ModelAddress, *, streamed: bool) -> Any:
    options: dict[str, Any] = {"api_key": place.key, "model": MODEL, "max_tokens": 1024}
    model = ChatAnthropic(base_url=place.url, streaming=streamed, **options)
    place.lines.at_end.push_async_callback(model._async_client.close)
    return model


class LangChainConversation:
    def __init__(
        self, place: ModelAddress, *, model: Callable[..., Any], streamed: bool, history: Any = ()
    ) -> None:
        self._model, self._streamed = model, streamed
        self._agent: Any = create_agent(
            model(place, streamed=streamed), tools=list(TOOLS), system_prompt=SYSTEM
        )
        self._history = list(history)

    async def ask_question(self, question: str) -> None:
        asked = {"messages": [*self._history, {"role": "user", "content": question}]}
        self._history = (await self._agent.ainvoke(asked))["messages"]

    def forked_conversation(self, place: ModelAddress) -> "LangChainConversation":
        return LangChainConversation(
            place, model=self._model, streamed=self._streamed, history=self._history
        )


def _openai_options(place: ModelAddress) -> dict[str, Any]:
    return {
        "base_url": f"{place.url}/v1",
        "api_key": place.key,
        "model": MODEL,
        "http_async_client": place.lines.http,
        "max_retries": 0,
    }
