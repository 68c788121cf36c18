"""A long wait, an engine's death and an exhausted quota, with all clients at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from tests.e2e.harnesses.clients import CLIENTS, CodingAgent
from tests.e2e.harnesses.conftest import DIES, OPERATOR, WAITS, GuardedService
from tests.e2e.harnesses.installed import installed_package
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.plays import check_application, check_calls
from tests.e2e.harnesses.scenarios import ENDLESS, ENDS, HOG, LONG, LONG_WORDS, TOOLS
from tests.e2e.harnesses.service import SEATS, SPENT
from tests.e2e.harnesses.session import ClientRun, ClientSession, new_session
from tests.eventually import eventually

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.harness]

_SILENT_S = 12
"""Number of keep-alive events, one per second, after which a client that gives up silent streams
would have done so.
"""
_COME_WITHIN_S = 240.0
"""Longest time in seconds in which five clients start on two cores."""


@dataclass(frozen=True, slots=True)
class RunningClient:
    session: ClientSession
    tenant: str
    run: asyncio.Task[ClientRun]

    def __str__(self) -> str:
        return str(self.session.client)

    async def check(self, said: str, guarded: GuardedService) -> None:
        """Check that the client ends normally, as one application whose tokens are all metered."""
        ended = await self.run
        assert 0 == ended.status, ended
        assert said in ended.output, ended
        check_calls(self.session)
        # A harness exits after its answer, even if its request for a chat title still waits.
        await check_application(self.session, guarded, self.tenant, may_leave=True)


@asynccontextmanager
async def start_all_clients(
    guarded: GuardedService,
    directory: Path,
    tenant_of: Callable[[CodingAgent], str],
    *,
    model: str,
    script: str,
    impatient: bool = False,
) -> AsyncIterator[list[RunningClient]]:
    for client in CLIENTS:
        installed_package(client.package)
    async with AsyncExitStack() as stack:
        playing = []
        for client in CLIENTS:
            own, tenant = directory / str(client), tenant_of(client)
            own.mkdir()
            key = guarded.secrets[tenant]
            begun = await stack.enter_async_context(
                new_session(client, guarded.url, own, model=model, key=key, impatient=impatient)
            )
            run = asyncio.create_task(begun.run_client(f"{client.program}-{script}"))
            stack.push_async_callback(_end_client, run)
            playing.append(RunningClient(begun, tenant, run))
        yield playing


async def _end_client(run: asyncio.Task[ClientRun]) -> None:
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def check_each_client(
    playing: list[RunningClient], check: Callable[[RunningClient], Awaitable[None]]
) -> None:
    found = await asyncio.gather(*map(check, playing), return_exceptions=True)
    failed = []
    for one, error in zip(playing, found, strict=True):
        if isinstance(error, Exception):
            error.add_note(f"client: {one}")
            failed.append(error)
    if failed:
        raise ExceptionGroup("not of each client", failed)


@asynccontextmanager
async def seats_taken(
    guarded: GuardedService, model: str
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Occupy all seats of an engine; yield a function that ends these calls."""
    hog = {"authorization": f"Bearer {guarded.secrets[HOG]}"}
    operator = {"authorization": f"Bearer {guarded.secrets[OPERATOR]}"}
    endless = {
        "model": model,
        "stream": True,
        "max_tokens": ENDLESS,
        "messages": [{"role": "user", "content": f"@@{HOG}@@"}],
        "tools": [{"type": "function", "function": {"name": "none", "parameters": {}}}],
    }
    async with (
        httpx.AsyncClient(base_url=guarded.url, timeout=None, headers=hog) as http,
        AsyncExitStack() as stack,
    ):
        for _ in range(SEATS):
            await stack.enter_async_context(
                http.stream("POST", "/v1/chat/completions", json=endless)
            )

        async def seats_are_taken() -> bool:
            answer = await http.get("/v1/status", headers=operator, params={"model": model})
            replicas = answer.json()["replicas"].values()
            return SEATS <= sum(int(replica["running"]) for replica in replicas)

        await eventually(seats_are_taken, "the seats are taken", 120.0, every_s=0.5)
        yield stack.aclose


def check_still_running(playing: list[RunningClient]) -> None:
    """Check that no client's program has ended."""
    early = {str(one): str(one.run.result()) for one in playing if one.run.done()}
    assert not early, early


async def wait_until_all_wait(playing: list[RunningClient], signs: int) -> None:
    """Wait until a waiting call of each client has received `signs` keep-alive events."""

    def all_have_waited() -> bool:
        check_still_running(playing)
        return all(any(call.pieces >= signs for call in one.session.calls) for one in playing)

    await eventually(all_have_waited, f"{signs} signs of life", _COME_WITHIN_S, every_s=0.5)


async def test_long_wait_in_the_queue_breaks_no_call(
    guarded: GuardedService, tmp_path: Path
) -> None:
    """Each client is configured to give up a stream after five silent seconds."""
    async with (
        seats_taken(guarded, LENIENT) as leave_seats,
        start_all_clients(
            guarded,
            tmp_path,
            lambda client: f"{client}-{WAITS}",
            model=LENIENT,
            script=TOOLS,
            impatient=True,
        ) as playing,
    ):
        await wait_until_all_wait(playing, _SILENT_S)
        await leave_seats()
        await check_each_client(playing, lambda one: one.check(ENDS[TOOLS], guarded))


async def test_clients_do_not_notice_the_death_of_an_engine(
    guarded: GuardedService, tmp_path: Path
) -> None:
    """The service's only engine dies during each answer; its successor continues the answers."""
    async with (
        seats_taken(guarded, LENIENT) as leave_seats,
        start_all_clients(
            guarded,
            tmp_path,
            lambda client: f"{client}-{DIES}",
            model=LENIENT,
            script=LONG,
            impatient=True,
        ) as playing,
    ):
        await wait_until_all_wait(playing, 1)
        await leave_seats()

        def all_are_answered() -> bool:
            check_still_running(playing)
            return all(any("word50" in call.said for call in one.session.calls) for one in playing)

        await eventually(all_are_answered, "each is being answered", 120.0)
        (engine,) = guarded.service.engine_process_ids(LENIENT)
        psutil.Process(engine).kill()
        await check_each_client(playing, lambda one: one.check(LONG_WORDS, guarded))


async def test_exhausted_quota_ends_a_session_after_one_call(
    guarded: GuardedService, tmp_path: Path
) -> None:
    """The refusal ends the session, except for clients that retry every refusal."""
    async with start_all_clients(
        guarded, tmp_path, lambda client: f"{SPENT}/{client}", model=STRICT, script=TOOLS
    ) as playing:

        async def check_client(one: RunningClient) -> None:
            if one.session.client.gives_up:
                run = await one.run
                assert 1 == len(one.session.calls), run
                assert "quota" in (run.output + run.errors).lower(), run
            else:
                await eventually(
                    lambda: len(one.session.calls) > 1, "it calls again", _COME_WITHIN_S
                )
                assert not one.run.done(), await one.run
            answered = [call for call in one.session.calls if call.status]
            assert {429} == {call.status for call in answered}
            assert {"false"} == {call.answer_headers["x-should-retry"] for call in answered}
            assert all(b"quota" in call.answer for call in answered)

        await check_each_client(playing, check_client)
