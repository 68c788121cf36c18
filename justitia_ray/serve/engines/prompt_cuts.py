"""Find the positions in a prompt at which chats with a common beginning may diverge.

The positions are found by searching for the messages' words in the rendered text. If a position is
missing or wrong, the scheduler only finds fewer shared prefixes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import text_of

_SOUGHT = 200
"""Number of characters of a message that are searched for in the rendered chat."""
_OF_SYSTEM = ("system", "developer")


def chat_cuts(text: str, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return up to three positions at which other chats may diverge from a rendered chat.

    The positions are the end of tools and system prompt, the end of the model's last answer, and
    the end of the last message but one.

    Args:
        text: The rendered chat.
        messages: Messages of the chat.
    """
    roles = [message.get("role") for message in messages]
    first = next((n for n, role in enumerate(roles) if role not in _OF_SYSTEM), None)
    if first is None:
        return ()
    begin = 0
    for message in messages[:first]:
        words = _first_words(message)
        begin = max(begin, text.find(words, begin) + len(words))
    found = {text.find(_first_words(messages[first]), begin)}
    end = len(text)
    for message, role in zip(reversed(messages), reversed(roles), strict=True):
        if role == "assistant":
            found.add(end)
            break
        end = text.rfind(_first_words(message), begin, end)
        if end < 0:
            break
        if message is messages[-1]:
            found.add(end)
    return tuple(sorted(place for place in found if 0 < place < len(text)))


def _first_words(message: Mapping[str, Any]) -> str:
    """Return the first `_SOUGHT` characters of a message's text, stripped of white space."""
    try:
        return text_of(message.get("content"), "messages").strip()[:_SOUGHT].rstrip()
    except RequestError:
        return ""
