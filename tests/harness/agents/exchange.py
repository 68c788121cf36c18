"""Calls of agents and their answers, as sent over the connection."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """HTTP call of an agent with its answer, byte for byte.

    Attributes:
        client: Name of the kind of client, a key of `CLIENTS`.
        run: The run of an agent that the call belongs to; its forks belong to it, too.
        branch: 0, or the fork's number within the run.
        path: Such as `/v1/messages`, with what the client adds as a query.
        headers: As the client sent them, in their order.
        request: Body of the call.
        response: Body of the answer: a JSON document, or all events of a stream.
        streamed: Whether the answer is a stream.
        asked_at: When the call arrived; arrivals and ends of answers are numbered together.
        answered_at: When the last byte of the answer was sent.
    """

    client: str
    run: int
    branch: int
    path: str
    headers: tuple[tuple[str, str], ...]
    request: bytes
    response: bytes
    streamed: bool
    asked_at: int
    answered_at: int


Document = dict[str, Any]
