"""Common interface of all agent clients: ask a question, and fork the conversation."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import httpx
import httpx2

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class SharedClients:
    """HTTP clients that all conversations share and that the test closes itself."""

    http: httpx.AsyncClient
    http2: httpx2.AsyncClient
    """HTTP/2 client for the Anthropic SDK, which accepts no other."""
    at_end: AsyncExitStack
    """Stack of further objects to close at the end."""


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """Address and API key of the model for one client."""

    url: str
    """Base address without `/v1`."""
    key: str
    lines: SharedClients

    def with_url(self, url: str) -> "ModelAddress":
        return replace(self, url=url)


class Conversation(Protocol):
    async def ask_question(self, question: str) -> None:
        """Send a user message, and run tool calls until the model answers in text."""

    def forked_conversation(self, place: ModelAddress) -> "Conversation":
        """Return a copy of the conversation that continues independently at another address."""


@asynccontextmanager
async def open_http_clients() -> AsyncIterator[SharedClients]:
    async with (
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as http,
        httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=60) as http2,
        AsyncExitStack() as at_end,
    ):
        yield SharedClients(http, http2, at_end)
