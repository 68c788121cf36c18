"""A race of two tenants for one engine: the order in which their waiting calls are answered."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx

from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import ENDLESS, Service

SEATS = 4
"""Number of seats (concurrent inferences) of the only engine."""
FEW, MANY = 5, 50
"""Number of calls of each of the two tenants; each call is an application."""
AHEAD = 3 * SEATS
"""Largest allowed lead of one tenant's answers over another's, at equal weights. Without sharing by
tenant, the tenant with many calls would lead by 45.
"""
_OUTPUT = 100
"""Output tokens of a call: the first calls run until all calls have arrived."""
_BLOCKER = "blocker"

Steps = list[tuple[int, int]]
"""(answers of one tenant, answers of the other) after each answer."""


async def race_two_tenants(
    service: Service,
    blocker: httpx.AsyncClient,
    many: Sequence[httpx.AsyncClient],
    few: Sequence[httpx.AsyncClient],
) -> Steps:
    """Queue the calls of two tenants before any of them runs, then serve them.

    Args:
        service: With one engine of `SEATS` seats.
        blocker: Client of a third tenant, which has the engine until all calls wait.
        many: The client of each call of one tenant.
        few: The client of each call of the other tenant, which has fewer.

    Returns:
        Answers to both, after each answer until the second tenant has all.
    """
    answered: Counter[bool] = Counter()
    steps: Steps = []

    async def submit_call(client: httpx.AsyncClient, *, is_of_few: bool) -> None:
        answer = await client.post(COMPLETIONS, json=completion("w", _OUTPUT))
        assert 200 == answer.status_code
        answered[is_of_few] += 1
        if not steps or steps[-1][1] < len(few):
            steps.append((answered[False], answered[True]))

    async with asyncio.TaskGroup() as group, _all_seats_taken(service, blocker):
        for client in many:
            group.create_task(submit_call(client, is_of_few=False))
        for client in few:
            group.create_task(submit_call(client, is_of_few=True))
        waiting = len(many) + len(few)
        await service.until(lambda status: status["waiting"] == waiting, "all calls wait")
    return steps


@asynccontextmanager
async def _all_seats_taken(service: Service, blocker: httpx.AsyncClient) -> AsyncIterator[None]:
    """Occupy every seat of the engine during a `with` block."""
    name = f"{_BLOCKER}-{uuid4().hex}"  # The id of a cancelled application takes no calls.
    headers = {"x-justitia-application": name}
    body = completion("w", ENDLESS)
    calls = [
        asyncio.create_task(blocker.post(COMPLETIONS, json=body, headers=headers))
        for _ in range(SEATS)
    ]
    await service.until(lambda status: status["in_flight"] == SEATS, "every seat is taken")
    try:
        yield
    finally:
        assert 200 == (await blocker.delete(f"/v1/applications/{name}")).status_code
        await asyncio.gather(*calls)
