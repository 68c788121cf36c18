"""LlamaIndex's function-calling agent on its model for OpenAI-like servers."""

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-untyped]

from tests.harness.agents.script import SYSTEM, TOOLS
from tests.harness.agents.talk import MODEL, ModelAddress


class LlamaIndexConversation:
    def __init__(self, place: ModelAddress, *, streamed: bool, history: Any = ()) -> None:
        self._streamed = streamed
        model = OpenAILike(
            api_base=f"{place.url}/v1",
            api_key=place.key,
            model=MODEL,
            is_chat_model=True,
            is_function_calling_model=True,
            async_http_client=place.lines.http,
            max_retries=0,
        )
        tools: Any = [FunctionTool.from_defaults(tool) for tool in TOOLS]
        self._agent = FunctionAgent(
            llm=model, tools=tools, system_prompt=SYSTEM, streaming=streamed
        )
        # Count words as tokens: the default tokenizer would be downloaded.
        self._memory = ChatMemoryBuffer.from_defaults(
            chat_history=list(history), token_limit=100_000, tokenizer_fn=str.split
        )

    async def ask_question(self, question: str) -> None:
        await self._agent.run(user_msg=question, memory=self._memory)

    def forked_conversation(self, place: ModelAddress) -> "LlamaIndexConversation":
        return LlamaIndexConversation(
            place, streamed=self._streamed, history=self._memory.get_all()
        )
