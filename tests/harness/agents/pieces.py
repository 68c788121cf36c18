"""What streams are made of: texts cut into pieces, and server-sent events."""

import json

from tests.harness.agents.exchange import Document

_PIECE = 7


def in_pieces(text: str) -> list[str]:
    """Return a text cut as tokens would cut it: within words."""
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def data_event(document: Document) -> bytes:
    """Return an event without a name."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def named_event(document: Document) -> bytes:
    """Return an event that is named by the document's type."""
    return f"event: {document['type']}\n".encode() + data_event(document)
