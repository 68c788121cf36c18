"""Streams: texts cut into pieces, and server-sent events."""

import json

from tests.harness.agents.exchange import Document

_PIECE = 7


def split_into_pieces(text: str) -> list[str]:
    """Return a text cut into pieces that end within words, as a model's tokens do."""
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def data_event(document: Document) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def named_event(document: Document) -> bytes:
    """Return a server-sent event named after the document's `type`."""
    return f"event: {document['type']}\n".encode() + data_event(document)
