"""The official OpenAI SDK in a tool loop, as in its examples."""

from copy import deepcopy
from typing import Any

from openai import AsyncOpenAI

from tests.harness.agents.exchange import Document
from tests.harness.agents.script import SYSTEM, call_tool
from tests.harness.agents.talk import MODEL, ModelAddress

_SCHEMAS: dict[str, Document] = {
    "look_up": {
        "type": "object",
        "properties": {"words": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["words", "count"],
        "additionalProperties": False,
    },
    "measure": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "depth": {"type": "number"}},
        "required": ["place", "depth"],
        "additionalProperties": False,
    },
}
_CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in _SCHEMAS.items()
]
_RESPONSES_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": schema, "strict": True}
    for name, schema in _SCHEMAS.items()
]


def openai_client(place: ModelAddress) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{place.url}/v1", api_key=place.key, http_client=place.lines.http, max_retries=0
    )


class ChatConversation:
    """Conversation by unary chat completions; its history holds the SDK's message objects."""

    def __init__(self, place: ModelAddress) -> None:
        self._client = openai_client(place)
        self._history: list[Any] = [{"role": "system", "content": SYSTEM}]

    async def ask_question(self, question: str) -> None:
        self._history.append({"role": "user", "content": question})
        while calls := await self._submit_turn():
            for call_id, name, arguments in calls:
                told = call_tool(name, arguments)
                self._history.append({"role": "tool", "tool_call_id": call_id, "content": told})

    def forked_conversation(self, place: ModelAddress) -> "ChatConversation":
        fork = type(self)(place)
        fork._history = deepcopy(self._history)
        return fork

    async def _submit_turn(self) -> list[tuple[str, str, str]]:
        answer = await self._client.chat.completions.create(
            model=MODEL, messages=self._history, tools=_CHAT_TOOLS
        )
        message = answer.choices[0].message
        self._history.append(self._history_entry(message))
        return _function_calls(message)

    def _history_entry(self, message: Any) -> Any:
        return message


class DumpedChatConversation(ChatConversation):
    """Conversation by unary chat completions whose history holds plain dictionaries."""

    def _history_entry(self, message: Any) -> Any:
        return message.model_dump()


class HelpedChatConversation(ChatConversation):
    """Conversation by streamed chat completions; the SDK's own helper joins the chunks."""

    async def _submit_turn(self) -> list[tuple[str, str, str]]:
        async with self._client.chat.completions.stream(
            model=MODEL, messages=self._history, tools=_CHAT_TOOLS
        ) as stream:
            answer = await stream.get_final_completion()
        message = answer.choices[0].message
        self._history.append(message)
        return _function_calls(message)


class JoinedChatConversation(ChatConversation):
    """Conversation by streamed chat completions; the class itself joins the chunks."""

    async def _submit_turn(self) -> list[tuple[str, str, str]]:
        text = ""
        calls: dict[int, list[str]] = {}
        async for chunk in await self._client.chat.completions.create(
            model=MODEL, messages=self._history, tools=_CHAT_TOOLS, stream=True
        ):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for piece in delta.tool_calls or ():
                call = calls.setdefault(piece.index, ["", "", ""])
                call[0] += piece.id or ""
                if piece.function is not None:
                    call[1] += piece.function.name or ""
                    call[2] += piece.function.arguments or ""
        message: Document = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for call_id, name, arguments in calls.values()
            ]
        self._history.append(message)
        return [(call_id, name, arguments) for call_id, name, arguments in calls.values()]


class ResponsesConversation:
    """Conversation over `/v1/responses`; each output is added to the next input."""

    def __init__(self, place: ModelAddress, *, streamed: bool) -> None:
        self._client = openai_client(place)
        self._streamed = streamed
        self._history: list[Any] = []

    async def ask_question(self, question: str) -> None:
        self._history.append({"role": "user", "content": question})
        while True:
            output = await self._submit_turn()
            self._history += output
            calls = [item for item in output if item.type == "function_call"]
            if not calls:
                return
            self._history += [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": call_tool(call.name, call.arguments),
                }
                for call in calls
            ]

    def forked_conversation(self, place: ModelAddress) -> "ResponsesConversation":
        fork = ResponsesConversation(place, streamed=self._streamed)
        fork._history = deepcopy(self._history)
        return fork

    async def _submit_turn(self) -> list[Any]:
        asked: Any = {
            "model": MODEL,
            "instructions": SYSTEM,
            "input": self._history,
            "tools": _RESPONSES_TOOLS,
        }
        if not self._streamed:
            return list((await self._client.responses.create(**asked)).output)
        async with self._client.responses.stream(**asked) as stream:
            return list((await stream.get_final_response()).output)


def _function_calls(message: Any) -> list[tuple[str, str, str]]:
    return [
        (call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
        if call.type == "function"
    ]
