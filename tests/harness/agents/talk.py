"""What every kind of client is for the recording: a conversation that can be asked and forked."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import httpx
import httpx2

MODEL = "scripted"


@dataclass(frozen=True, slots=True)
class Lines:
    """Connections of all clients, closed together: their libraries leave that to the collector."""

    http: httpx.AsyncClient
    http2: httpx2.AsyncClient
    """For the library that takes no other one."""
    at_end: AsyncExitStack
    """Takes what else is to be closed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client finds its model."""

    url: str
    """Without `/v1`."""
    key: str
    lines: Lines

    def moved(self, url: str) -> "Place":
        """Return the same with another address."""
        return replace(self, url=url)


class Talk(Protocol):
    """A conversation of one client with its model."""

    async def ask(self, question: str) -> None:
        """Say something as the user, and go on until the model has answered in text."""

    def forked(self, place: Place) -> "Talk":
        """Return a conversation that has said the same so far, and goes its own way at a place."""


@asynccontextmanager
async def open_lines() -> AsyncIterator[Lines]:
    """Open connections for all clients, and close them in the end."""
    async with (
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as http,
        httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=60) as http2,
        AsyncExitStack() as at_end,
    ):
        yield Lines(http, http2, at_end)
