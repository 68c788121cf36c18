"""Calls that stay open while a test inspects or breaks the service."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.eventually import eventually
from tests.harness.answers import Answer, StreamedAnswer
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import ENDLESS, SEATS, Json, Service


class OpenStream:
    """Streamed completion that a background task reads from the start."""

    def __init__(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.events: list[str] = []
        """Data of the events received so far."""
        self._task = asyncio.create_task(self._read_events(http, body | {"stream": True}))

    async def _read_events(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", COMPLETIONS, json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self.events.append(line.removeprefix("data: "))

    def has_begun(self) -> bool:
        """Return whether a token has arrived."""
        return bool(self.events)

    def has_ended(self) -> bool:
        return self._task.done()

    @property
    def lease_id(self) -> str:
        """Lease id of the stream, which the fake engine uses as the answer's id."""
        identifier: str = json.loads(self.events[0])["id"]
        return identifier.removeprefix("cmpl-")

    @property
    def usage(self) -> Json:
        """Usage of an ended stream, from its last event before `[DONE]`."""
        usage: Json = json.loads(self.events[-2])["usage"]
        return usage

    async def close_stream(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> str:
        """Read the stream to its end, and return the data of the last event."""
        await self._task
        return self.events[-1]

    async def answer(self) -> Answer:
        """Read a stream with usage to its end, and return its answer; fail if its form is wrong."""
        assert "[DONE]" == await self.end()
        joined = StreamedAnswer()
        for event in self.events[:-1]:
            joined.add_event(json.loads(event))
        answer = joined.joined_answer()
        assert [] == joined.flaws
        return answer


@asynccontextmanager
async def occupy_all_seats(
    service: Service, http: httpx.AsyncClient, seats: int = SEATS
) -> AsyncIterator[None]:
    """Fill every replica during a `with` block, each by one call with many choices."""
    await service.until(lambda s: s["in_flight"] == 0, "every seat is free")
    body = completion(max_tokens=ENDLESS, n=seats, model=service.config.model.name)
    calls = [
        asyncio.create_task(http.post(COMPLETIONS, json=body, timeout=None))
        for _ in range(service.replicas)
    ]
    try:
        await service.until(lambda s: s["in_flight"] == service.replicas, "every seat is taken")
        yield
    finally:
        await cancel_calls(calls)


async def state_when_idle(http: httpx.AsyncClient, application: str) -> Json:
    """Return the application's state once it has no waiting and no running inference.

    A caller may get its answer before the scheduler learns of the end, which is in the next pull.
    """
    known: Json = {}

    async def is_idle() -> bool:
        nonlocal known
        known = (await http.get(f"/v1/applications/{application}")).json()
        return bool(0 == known["waiting"] == known["running"])

    await eventually(is_idle, f"nothing of {application} waits or runs")
    return known


async def virtual_finish_times(http: httpx.AsyncClient, names: Iterable[str]) -> dict[str, float]:
    known = {name: (await http.get(f"/v1/applications/{name}")).json() for name in names}
    return {name: float(one["virtual_finish_time"]) for name, one in known.items()}


async def cancel_calls(calls: list["asyncio.Task[httpx.Response]"]) -> None:
    for call in calls:
        call.cancel()
    # Closing a connection during a read raises an httpx error.
    await asyncio.gather(*calls, return_exceptions=True)
