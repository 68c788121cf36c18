"""Common interface of every kind of client: ask a question, and fork the conversation."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import httpx
import httpx2

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Lines:
    """HTTP clients of all runs, closed together: the libraries leave that to the collector."""

    http: httpx.AsyncClient
    http2: httpx2.AsyncClient
    """HTTP/2 client, for the library that accepts no other."""
    at_end: AsyncExitStack
    """Stack for further objects that must be closed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Address and key of the model for one client."""

    url: str
    """Base address without `/v1`."""
    key: str
    lines: Lines

    def moved(self, url: str) -> "Place":
        return replace(self, url=url)


class Talk(Protocol):
    """Conversation of one client with its model."""

    async def ask(self, question: str) -> None:
        """Send a user message and go on until the model answers in text."""

    def forked(self, place: Place) -> "Talk":
        """Return a copy of the conversation that continues independently at another address."""


@asynccontextmanager
async def open_lines() -> AsyncIterator[Lines]:
    async with (
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as http,
        httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=60) as http2,
        AsyncExitStack() as at_end,
    ):
        yield Lines(http, http2, at_end)
