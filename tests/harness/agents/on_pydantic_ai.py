"""Pydantic AI's agent on its OpenAI models.

Its Anthropic model is left out: release 2.31, the last for OpenAI's SDK 2, fails with Anthropic's
SDK 2.
"""

from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.harness.agents.on_openai import openai_client
from tests.harness.agents.script import SYSTEM, TOOLS
from tests.harness.agents.talk import MODEL, ModelAddress


def openai_chat_model(place: ModelAddress) -> Model:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=openai_client(place)))


def openai_responses_model(place: ModelAddress) -> Model:
    return OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=openai_client(place)))


class PydanticAIConversation:
    def __init__(
        self,
        place: ModelAddress,
        *,
        model: Callable[[ModelAddress], Model],
        streamed: bool,
        history: Sequence[Any] = (),
    ) -> None:
        self._model, self._streamed = model, streamed
        self._agent = Agent(model(place), instructions=SYSTEM, tools=list(TOOLS))
        self._history = list(history)

    async def ask_question(self, question: str) -> None:
        result = await self._agent.run(
            question,
            message_history=self._history,
            event_stream_handler=_read_text if self._streamed else None,
        )
        self._history = result.all_messages()

    def forked_conversation(self, place: ModelAddress) -> "PydanticAIConversation":
        return PydanticAIConversation(
            place, model=self._model, streamed=self._streamed, history=self._history
        )


async def _read_text(_: Any, events: AsyncIterable[Any]) -> None:
    async for _event in events:
        pass
