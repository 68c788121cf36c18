"""Turns of a conversation, reduced to the parts that clients send again unchanged.

A client sends the conversation again with every call, with changes: parts of texts are joined or
split, prompt-cache marks move, thoughts are left out, tool arguments are re-encoded. Role, text and
tool-call ids stay the same, so a turn consists of these. Consecutive messages of the model are one
turn.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES

MODEL = "assistant"
"""Role of the model's turns in a conversation."""
_UNSAID = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""Kinds of content parts with the model's reasoning, which clients may omit from later calls."""
_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
_SYSTEM = ("system", "developer")
_REMINDER = ("<system-reminder>", "</system-reminder>")
_BILLING_LINE = re.compile(
    r"\s*x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*;?)*[ \t]*(?:\r?\n)?"
)
"""First line of Claude Code's system prompt. It means nothing to a model, and its version and
checksum (`cc_version`, `cch`) change with every call.
"""


class Turn(NamedTuple):
    """Turn of a conversation: role, text, and ids of the tool calls that it makes or answers."""

    role: str
    text: str
    ids: tuple[str, ...] = ()


def turns_of(path: str, fields: Mapping[str, Any]) -> list[Turn] | None:
    """Return the turns in a call's messages; None if its path takes no messages.

    Args:
        path: Path of the endpoint.
        fields: The call's body, checked by the endpoint's reader.
    """
    if path == CHAT:
        return merged(map(_turn_of_message, _without_system_billing(fields["messages"])))
    if path == MESSAGES:
        system, messages = [], fields["messages"]
        if fields.get("system"):
            system = [_new_turn("system", _without_billing_line(fields["system"]))]
        else:
            messages = _without_system_billing(messages)
        said = (_new_turn(one.get("role", "user"), one.get("content")) for one in messages)
        return merged([*system, *said])
    if path == RESPONSES:
        given, instructions = fields.get("input"), fields.get("instructions")
        if isinstance(instructions, str):
            system = [Turn("system", _without_billing_line(instructions))]
        else:
            system = []
            given = _without_system_billing(given) if isinstance(given, list) else given
        if isinstance(given, str):
            return [*system, Turn("user", given.strip())]
        return merged([*system, *turns_of_items(given or ())])
    return None


def lasting(turns: Iterable[Turn]) -> list[Turn]:
    """Return turns without the parts that a harness changes when it resumes a session.

    System prompts contain the date and the state of files, and reminders in user messages move or
    disappear.
    """
    kept: list[Turn] = []
    for turn in turns:
        if turn.role == "system":
            continue
        if turn.role != MODEL and _REMINDER[0] in turn.text:
            turn = turn._replace(text=_without_reminders(turn.text))
        if turn.text or turn.ids:
            kept.append(turn)
    return merged(kept)


def _without_reminders(text: str) -> str:
    begin, end = _REMINDER
    kept, at = [], 0
    while (start := text.find(begin, at)) >= 0 and (stop := text.find(end, start)) >= 0:
        kept.append(text[at:start].strip())
        at = stop + len(end)
    return "".join((*kept, text[at:].strip()))


def _without_system_billing(messages: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Return messages with the billing line removed from a system message at the start."""
    if not messages or messages[0].get("role") not in _SYSTEM:
        return messages
    first = messages[0]
    content = _without_billing_line(first.get("content"))
    return chain(({**first, "content": content},), messages[1:])


def _without_billing_line(content: Any) -> Any:
    """Return a system prompt (a text, or blocks) without a billing line at its start."""
    if isinstance(content, str):
        return _BILLING_LINE.sub("", content, count=1) if _has_billing_line(content) else content
    if isinstance(content, list) and content:
        first = content[0]
        text = first.get("text") if isinstance(first, Mapping) else first
        if isinstance(text, str) and _has_billing_line(text):
            text = _without_billing_line(text)
            return [{**first, "text": text} if isinstance(first, Mapping) else text, *content[1:]]
    return content


def _has_billing_line(text: str) -> bool:
    return _BILLING_LINE.match(text) is not None


def turns_of_items(items: Iterable[Mapping[str, Any]]) -> Iterator[Turn]:
    """Yield the turns of OpenAI Responses items, from a body or an answer."""
    for item in items:
        kind = str(item.get("type", "message"))
        if kind in _UNSAID:
            continue
        if kind.endswith("_call"):
            yield Turn(MODEL, "", _as_ids(item.get("call_id") or item.get("id")))
        elif kind.endswith("_call_output"):
            text, ids = _read_content(item.get("output"))
            yield Turn("tool", text, (*_as_ids(item.get("call_id")), *ids))
        else:
            yield _new_turn(item.get("role") or MODEL, item.get("content"))


def merged(turns: Iterable[Turn]) -> list[Turn]:
    """Return turns with consecutive turns of the model joined."""
    found: list[Turn] = []
    for turn in turns:
        if found and turn.role == MODEL == found[-1].role:
            found[-1] = Turn(MODEL, found[-1].text + turn.text, found[-1].ids + turn.ids)
        else:
            found.append(turn)
    return found


def _turn_of_message(message: Mapping[str, Any]) -> Turn:
    role, content = message.get("role") or "user", message.get("content")
    calls, answered = message.get("tool_calls"), message.get("tool_call_id")
    if not calls and not answered:
        if type(content) is str:
            return Turn("system" if role in _SYSTEM else str(role), content.strip())
        return _new_turn(role, content)
    turn = _new_turn(role, content)
    made = [_tool_call_id(call) for call in calls] if isinstance(calls, list) else []
    return Turn(turn.role, turn.text, (*turn.ids, *made, *_as_ids(answered)))


def _tool_call_id(call: Any) -> str:
    if not isinstance(call, Mapping):
        return ""
    function = call.get("function")
    named = function.get("name") if isinstance(function, Mapping) else None
    return str(call.get("id") or named or "")


def _new_turn(role: Any, content: Any) -> Turn:
    text, ids = _read_content(content)
    return Turn("system" if role == "developer" else str(role), text, ids)


def _read_content(content: Any) -> tuple[str, tuple[str, ...]]:
    """Return the text of a message's content, and the ids of its tool calls."""
    if isinstance(content, str):
        return content.strip(), ()
    if not isinstance(content, list):
        return ("", ()) if content is None else (_canonical_text(content), ())
    texts: list[str] = []
    ids: list[str] = []
    for part in content:
        if not isinstance(part, Mapping):
            texts.append(part.strip() if isinstance(part, str) else _canonical_text(part))
            continue
        kind = str(part.get("type", ""))
        if kind in _TEXTS or (not kind and "text" in part):
            texts.append(str(part.get("text") or part.get("refusal") or "").strip())
        elif kind == "tool_use":
            ids.append(str(part.get("id") or part.get("name")))
        elif kind == "tool_result":
            text, inner = _read_content(part.get("content"))
            texts.append(text)
            ids += (str(part.get("tool_use_id")), *inner)
        elif kind not in _UNSAID:
            texts.append(_canonical_text(part))
    return "".join(texts), tuple(ids)


def _canonical_text(part: Any) -> str:
    """Return a canonical text of a part that is not text, such as an image."""
    if isinstance(part, Mapping):
        part = {name: value for name, value in part.items() if name != "cache_control"}
    return json.dumps(part, sort_keys=True)


def _as_ids(value: Any) -> tuple[str, ...]:
    return (str(value),) if value else ()
