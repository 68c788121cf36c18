"""Where chats may differ that begin alike: after the system prompt, and around the last messages.

The places are found by the messages' own words in the rendered text. A place that is not found, or
at another one, makes prompts share fewer beginnings that the queue knows of, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import text_of

_SOUGHT = 200
"""Characters of a message that are looked for."""
_OF_SYSTEM = ("system", "developer")


def chat_cuts(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return places of a rendered chat, in characters, in order: at most three.

    They are the ends of tools and system prompt, of what was said up to the model's last answer,
    and of all but the last message.

    Args:
        text: The chat, as the template renders it.
        messages: Its messages.
    """
    roles = [message.get("role") for message in messages]
    first = next((n for n, role in enumerate(roles) if role not in _OF_SYSTEM), None)
    if first is None:
        return ()
    begin = 0
    for message in messages[:first]:
        words = _words(message)
        begin = max(begin, text.find(words, begin) + len(words))
    found = {text.find(_words(messages[first]), begin)}
    end = len(text)
    for message, role in zip(reversed(messages), reversed(roles), strict=True):
        if role == "assistant":
            found.add(end)
            break
        end = text.rfind(_words(message), begin, end)
        if end < 0:
            break
        if message is messages[-1]:
            found.add(end)
    return tuple(sorted(place for place in found if 0 < place < len(text)))


def _words(message: Mapping[str, Any]) -> str:
    """Return the beginning of what a message says, without space around it."""
    try:
        return text_of(message.get("content"), "messages").strip()[:_SOUGHT].rstrip()
    except RequestError:
        return ""
