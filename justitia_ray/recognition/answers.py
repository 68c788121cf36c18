"""Read the model's turn from an answer as it passes; a call that continues it repeats the turn."""

from collections import defaultdict
from typing import Any

import msgspec

from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES
from justitia_ray.recognition.turns import MODEL, Turn, merged, turns_of_items

_LONGEST = 4 * 2**20
"""Maximum size of an event in bytes; answers with larger events are not used."""


class _ToolFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    id: str | None = None
    index: int | None = None
    function: _ToolFunction | None = None


class _ChatMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _ChatChoice(msgspec.Struct):
    index: int = 0
    message: _ChatMessage | None = None
    delta: _ChatMessage | None = None


class _ChatAnswer(msgspec.Struct):
    choices: list[_ChatChoice] = []


class _ContentBlock(msgspec.Struct):
    type: str = ""
    text: str | None = None
    id: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")
    partial_json: str | None = None


class _Message(msgspec.Struct):
    content: list[_ContentBlock] = []


class _MessageEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    content_block: _ContentBlock | None = None
    delta: _ContentBlock | None = None


class _Response(msgspec.Struct):
    output: list[dict[str, Any]] = []


class _ResponseEvent(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw(b"null")


_chat = msgspec.json.Decoder(_ChatAnswer).decode
_message = msgspec.json.Decoder(_Message).decode
_response = msgspec.json.Decoder(_Response).decode
_response_event = msgspec.json.Decoder(_ResponseEvent).decode
_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_message_event = msgspec.json.Decoder(_MessageEvent).decode


class _PartialTurn:
    """A model's answer that arrives in pieces."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.arguments: defaultdict[int, list[str]] = defaultdict(list)
        """Pieces of the JSON arguments of tool calls, by the index of the call."""

    def add_message(self, said: _ChatMessage | None) -> None:
        if said is None:
            return
        if said.content:
            self.texts.append(said.content)
        for number, call in enumerate(said.tool_calls or ()):
            named = call.id or (call.function and call.function.name)
            if named:
                self.ids.append(named)
            if call.function is not None and call.function.arguments:
                place = number if call.index is None else call.index
                self.arguments[place].append(call.function.arguments)

    def add_block(self, block: _ContentBlock | None, number: int) -> None:
        if block is None:
            return
        if block.text:
            self.texts.append(block.text)
        if block.type == "tool_use" and block.id:
            self.ids.append(block.id)
            if (given := bytes(block.input).decode()) != "{}":
                self.arguments[number].append(given)
        if block.partial_json:
            self.arguments[number].append(block.partial_json)

    def turn(self) -> Turn:
        return Turn(MODEL, "".join(self.texts).strip(), tuple(self.ids))


class AnswerReader:
    """Reads a model's answer, whole or as a stream of events, and notices when it is complete."""

    def __init__(self, path: str, *, stream: bool) -> None:
        self._stream = stream
        self._read = {
            CHAT: self._read_chat,
            MESSAGES: self._read_message,
            RESPONSES: self._read_items,
        }[path]
        self._rest = b""
        self._partial_turns: defaultdict[int, _PartialTurn] = defaultdict(_PartialTurn)
        self._arguments: list[str] = []
        self._turns: list[Turn] | None = None
        """Turns of a Responses answer; None until the answer is complete."""
        self._is_whole = False
        self._given_up = False

    @property
    def is_whole(self) -> bool:
        return self._is_whole and not self._given_up

    def add(self, chunk: bytes) -> None:
        """Read a chunk of the answer's body; stop reading if it has another format."""
        if self._given_up:
            return
        try:
            if self._stream:
                self._read_events(chunk)
            else:
                self._read(chunk)
                self._is_whole = True
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._given_up = True

    def turns(self) -> list[Turn]:
        """Return the model's turns, one for each choice, except empty turns."""
        said = self._turns
        if said is None:
            said = [saying.turn() for saying in self._partial_turns.values()]
        return [turn for turn in said if turn.text or turn.ids]

    def prompts(self) -> list[str]:
        """Return the `prompt` arguments of tool calls: the first messages of sub-agents."""
        given = [
            *(
                "".join(pieces)
                for one in self._partial_turns.values()
                for pieces in one.arguments.values()
            ),
            *self._arguments,
        ]
        found = []
        for text in given:
            try:
                prompt = _arguments(text.encode()).get("prompt")
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue  # arguments are no JSON object
            if isinstance(prompt, str) and prompt.strip():
                found.append(prompt)
        return found

    def _read_events(self, chunk: bytes) -> None:
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        if len(self._rest) > _LONGEST:
            self._given_up = True
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        self._is_whole = True
                    else:
                        self._read(data)

    def _read_chat(self, data: bytes) -> None:
        for choice in _chat(data).choices:
            self._partial_turns[choice.index].add_message(choice.message or choice.delta)

    def _read_message(self, data: bytes) -> None:
        saying = self._partial_turns[0]
        if not self._stream:
            for number, block in enumerate(_message(data).content):
                saying.add_block(block, number)
            return
        event = _message_event(data)
        saying.add_block(event.content_block, event.index)
        saying.add_block(event.delta, event.index)
        self._is_whole = self._is_whole or event.type == "message_stop"

    def _read_items(self, data: bytes) -> None:
        if self._stream:
            event = _response_event(data)
            if event.type != "response.completed":
                return
            data = bytes(event.response)
        items = _response(data).output
        self._turns = merged(turns_of_items(items))
        given = (item.get("arguments") for item in items)
        self._arguments = [text for text in given if isinstance(text, str)]
        self._is_whole = True
