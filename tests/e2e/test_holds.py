"""Contexts held on real engines while processes die: turns go on, and nothing is held for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
import ray

from justitia_ray.units import Seconds, Tokens
from tests.e2e.conftest import OPERATOR, REPLACED_WITHIN_S
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.key_ring import KeyRing
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

_GAP_S: Seconds = 2.0
"""Longest tool gap in which a test looks for held contexts; a context is held for three seconds."""
_BUSY_S: Seconds = 60.0
"""Seconds within which the end of a hold is reported, even on busy cores."""
_BEGIN: Tokens = 96
"""Tokens of an agent's context before its first turn."""
_GROWS: Tokens = 32
"""Tokens that each turn adds."""


class _Agents:
    """Agents that take turns at the same time; each has an application class of its own.

    Contexts of a class with few gaps are held for three seconds, however long its gaps are: turns
    are too short for the time of a prompt token to be learned.
    """

    def __init__(self, name: str, http: httpx.AsyncClient, count: int = 4) -> None:
        self._http = http
        self._prompts = {f"{name}-{number}": [100 + number] * _BEGIN for number in range(count)}
        self._turns = 0

    async def take_turns(self) -> None:
        """Let each agent submit a longer prompt, and check that each is answered."""
        self._turns += 1
        for prompt in self._prompts.values():
            prompt += [200 + self._turns] * _GROWS
        answers = await asyncio.gather(*map(self._take_turn, self._prompts))

        assert [200] * len(answers) == [answer.status_code for answer in answers]

    async def _take_turn(self, name: str) -> httpx.Response:
        headers = {"x-justitia-application": name, "x-justitia-class": name}
        body = completion("", temperature=0) | {"prompt": self._prompts[name]}
        return await self._http.post(COMPLETIONS, json=body, headers=headers)

    async def end(self) -> None:
        """Close the agents' applications."""
        for name in self._prompts:
            assert 200 == (await self._http.post(f"/v1/applications/{name}/close")).status_code


class _Status:
    """Reader of the held contexts in `GET /v1/status`."""

    def __init__(self, service: Service, http: httpx.AsyncClient, keys: KeyRing) -> None:
        self._service = service
        self._http = http
        self._headers = {"authorization": f"Bearer {keys.secrets[OPERATOR]}"}

    async def held(self) -> dict[str, tuple[int, Tokens]]:
        """Return held contexts and tokens by replica; empty while there is no scheduler."""
        answer = await self._http.get("/v1/status", headers=self._headers)
        if answer.status_code != 200:
            return {}
        kept = {name: one["kept"] for name, one in answer.json()["replicas"].items()}
        return {
            name: (one["held_contexts"], one["held_kv_tokens"])
            for name, one in kept.items()
            if one is not None
        }

    async def holder(self, agents: _Agents) -> str:
        """Let agents take turns until a replica holds contexts in between; return the replica."""

        async def any_holder() -> str | None:
            held = await self.held()
            return next((name for name, (_, tokens) in held.items() if tokens >= _BEGIN), None)

        async with asyncio.timeout(REPLACED_WITHIN_S):
            while True:
                await agents.take_turns()
                with suppress(AssertionError):
                    name: str = await eventually(any_holder, "contexts are held", _GAP_S)
                    break
        return name

    async def until_gone(self, replica_id: str) -> None:
        """Wait until a dead replica is no longer listed and its successor is."""

        async def has_gone() -> bool:
            held = await self.held()
            return bool(held) and replica_id not in held

        await eventually(has_gone, "its holds are not shown", REPLACED_WITHIN_S, every_s=0.2)
        await self._service.wait_until_complete(REPLACED_WITHIN_S)

    async def until_none_held(self) -> None:
        """Wait until no replica holds a context."""
        replicas = await self._service.pulling_replicas()
        longest_s = [await self._service.probe(name, "longest_hold_s") for name in replicas]
        none = dict.fromkeys(replicas, (0, 0))

        async def none_held() -> bool:
            return await self.held() == none

        assert 2 == len(replicas)
        assert max(longest_s) > _GAP_S
        await eventually(none_held, "no replica holds a context", max(longest_s) + _BUSY_S)


@pytest_asyncio.fixture(loop_scope="session")
async def http(holding: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with holding.http() as client:
        yield client
    await holding.until_idle()


@pytest.fixture
def status(holding: Service, http: httpx.AsyncClient, keys: KeyRing) -> _Status:
    return _Status(holding, http, keys)


async def test_agents_continue_and_context_holds_expire_when_the_scheduler_dies(
    holding: Service, http: httpx.AsyncClient, status: _Status
) -> None:
    """The new scheduler does not know of holds, so each lasts until its time limit."""
    agents = _Agents("one", http)
    await status.holder(agents)
    before = await holding.status()
    ray.kill(holding.scheduler(), no_restart=False)
    await agents.take_turns()  # a late machine may kill the scheduler after these
    await holding.until(
        lambda after: before["epoch"] < after["epoch"],
        "a new scheduler leads",
        REPLACED_WITHIN_S,
    )
    await agents.take_turns()
    await agents.end()

    await status.until_none_held()


@pytest.mark.long
async def test_agents_continue_when_engine_replica_and_scheduler_are_killed(
    holding: Service, http: httpx.AsyncClient, status: _Status
) -> None:
    agents = _Agents("three", http)
    holder = await status.holder(agents)
    (pid,) = await holding.probe(holder, "engine_pids")
    psutil.Process(pid).kill()
    await agents.take_turns()
    await status.until_gone(holder)

    holder = await status.holder(agents)
    holding.kill_replica(holder)
    await agents.take_turns()
    await status.until_gone(holder)

    await status.holder(agents)
    ray.kill(holding.scheduler(), no_restart=False)
    await agents.take_turns()
    await agents.end()
    await holding.wait_until_complete(REPLACED_WITHIN_S)
    await status.until_none_held()
