"""Two tenants that always have something waiting, and what each has been served."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import httpx

from tests.integration.bodies import COMPLETIONS, completion

INFERENCES = 4
"""Of each application, all at once: as many as the engine has seats."""
AHEAD = 6 * INFERENCES
"""Most by which a tenant is ahead of another of equal weight: two applications of either when one
ends, and as much again for callers that are late on busy cores. Shared by application, a crowd of
ten times as many is ahead by ten times what the other gets."""
FEW, MANY = 4, 40
"""Callers of the two tenants: so many that something of each waits, however late they are."""
_OUTPUT = 30


async def race(
    crowds: Mapping[str, Sequence[httpx.AsyncClient]], few: str, rounds: int
) -> list[tuple[int, int]]:
    """Let tenants run applications of equal size, one after the other for each of their callers.

    Args:
        crowds: The callers of each of two tenants, by the tenant's name.
        few: The tenant that ends the race, with so many applications served.
        rounds: How many.

    Returns:
        Inferences that each tenant was served, in the order of `crowds`, after each application.
    """
    served: Counter[str] = Counter()
    steps: list[tuple[int, int]] = []
    first, second = crowds
    is_over = asyncio.Event()

    async def run(tenant: str, client: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not is_over.is_set():
            turn += 1
            name = f"race-{tenant}-{number}-{turn}"
            opening = {"application_class": "race", "application_id": name, "input": "w"}
            assert 200 == (await client.post("/v1/applications", json=opening)).status_code
            headers = {"x-justitia-application": name}
            body = completion("w " * 10, _OUTPUT)
            calls = [
                client.post(COMPLETIONS, json=body, headers=headers) for _ in range(INFERENCES)
            ]
            assert {200} == {answer.status_code for answer in await asyncio.gather(*calls)}
            await client.post(f"/v1/applications/{name}/close")
            served[tenant] += INFERENCES
            if not is_over.is_set():
                steps.append((served[first], served[second]))
            if served[few] >= rounds * INFERENCES:
                is_over.set()

    async with asyncio.TaskGroup() as group:
        for tenant, clients in crowds.items():
            for number, client in enumerate(clients):
                group.create_task(run(tenant, client, number))
    return steps
