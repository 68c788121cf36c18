"""The OpenAI Agents SDK on its models of chat completions and of responses."""

from collections.abc import Sequence
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)

from tests.harness.agents.on_openai import openai_client
from tests.harness.agents.script import SYSTEM, TOOLS
from tests.harness.agents.talk import MODEL, ModelAddress

_QUIET = RunConfig(tracing_disabled=True)  # Otherwise the SDK reports every run to OpenAI.
_Model = type[OpenAIChatCompletionsModel] | type[OpenAIResponsesModel]


class OpenAIAgentsConversation:
    def __init__(
        self, place: ModelAddress, *, model: _Model, streamed: bool, history: Sequence[Any] = ()
    ) -> None:
        self._model, self._streamed = model, streamed
        self._agent = Agent(
            name="assistant",
            instructions=SYSTEM,
            tools=[function_tool(tool) for tool in TOOLS],
            model=model(MODEL, openai_client(place)),
        )
        self._history = list(history)

    async def ask_question(self, question: str) -> None:
        asked: Any = [*self._history, {"role": "user", "content": question}]
        if self._streamed:
            streaming = Runner.run_streamed(self._agent, asked, run_config=_QUIET)
            async for _ in streaming.stream_events():
                pass
            self._history = streaming.to_input_list()
        else:
            result = await Runner.run(self._agent, asked, run_config=_QUIET)
            self._history = result.to_input_list()

    def forked_conversation(self, place: ModelAddress) -> "OpenAIAgentsConversation":
        return OpenAIAgentsConversation(
            place, model=self._model, streamed=self._streamed, history=self._history
        )
