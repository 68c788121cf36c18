"""The official Anthropic SDK in a tool loop, with `cache_control` on the last message."""

import json
from copy import deepcopy
from typing import Any

from anthropic import AsyncAnthropic

from tests.harness.agents.exchange import Document
from tests.harness.agents.script import SYSTEM, call_tool
from tests.harness.agents.talk import MODEL, ModelAddress

_CACHE_CONTROL = {"cache_control": {"type": "ephemeral"}}
_TOOLS: Any = [
    {
        "name": "look_up",
        "input_schema": {
            "type": "object",
            "properties": {"words": {"type": "string"}, "count": {"type": "integer"}},
        },
    },
    {
        "name": "measure",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "depth": {"type": "number"}},
        },
    },
]


def anthropic_client(place: ModelAddress) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=place.url, api_key=place.key, http_client=place.lines.http2, max_retries=0
    )


class MessagesConversation:
    """Conversation over `/v1/messages` whose history holds the SDK's own message objects.

    As command-line agents do, the last block of the last message carries the cache mark. A
    message's text becomes a list of blocks to carry it, and plain text again once the mark has
    moved on.
    """

    def __init__(self, place: ModelAddress, *, streamed: bool) -> None:
        self._client = anthropic_client(place)
        self._streamed = streamed
        self._history: list[Any] = []

    async def ask_question(self, question: str) -> None:
        self._history.append({"role": "user", "content": question})
        while True:
            blocks = (await self._submit_turn()).content
            self._history.append({"role": "assistant", "content": blocks})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": call_tool(block.name, json.dumps(block.input)),
                }
                for block in blocks
                if block.type == "tool_use"
            ]
            if not results:
                return
            self._history.append({"role": "user", "content": results})

    def forked_conversation(self, place: ModelAddress) -> "MessagesConversation":
        fork = MessagesConversation(place, streamed=self._streamed)
        fork._history = deepcopy(self._history)
        return fork

    async def _submit_turn(self) -> Any:
        *earlier, last = self._history
        asked: Any = {
            "model": MODEL,
            "max_tokens": 1024,
            "system": [{"type": "text", "text": SYSTEM, **_CACHE_CONTROL}],
            "messages": [*earlier, _with_cache_control(last)],
            "tools": _TOOLS,
        }
        if not self._streamed:
            return await self._client.messages.create(**asked)
        async with self._client.messages.stream(**asked) as stream:
            return await stream.get_final_message()


def _with_cache_control(message: Document) -> Document:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return message | {"content": [*blocks[:-1], blocks[-1] | _CACHE_CONTROL]}
