"""Streams that a test holds open while it breaks something."""

import asyncio
import json
from typing import Any

import httpx

from tests.integration.bodies import COMPLETIONS


class OpenStream:
    """A stream of completions that is read in the background from the start."""

    def __init__(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.events: list[str] = []
        """Data of its events, as far as it has come."""
        self._task = asyncio.create_task(self._read(http, body | {"stream": True}))

    async def _read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", COMPLETIONS, json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))

    def has_begun(self) -> bool:
        """Return whether a token has come."""
        return bool(self.events)

    @property
    def lease_id(self) -> str:
        """The lease that it runs under: the fake engine names its answers so."""
        identifier: str = json.loads(self.events[0])["id"]
        return identifier.removeprefix("cmpl-")

    async def end(self) -> str:
        """Read to the end and return the data of the last event."""
        await self._task
        return self.events[-1]
