"""A long wait, an engine's death and a spent quota, as each client takes them."""

import asyncio
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from tests.e2e.harnesses.clients import CLIENTS, Client
from tests.e2e.harnesses.conftest import OPERATOR, Guarded
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.plays import check_calls
from tests.e2e.harnesses.scenarios import ENDS, HOG, LONG, LONG_WORDS, TOOLS
from tests.e2e.harnesses.service import SEATS, SPENT
from tests.e2e.harnesses.session import session
from tests.eventually import eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.vllm,
    pytest.mark.harness,
    pytest.mark.parametrize("client", CLIENTS, ids=str),
]

_SILENT_S = 12
"""Signs of life, a second apart, in which a client that waits for five would have given up."""


async def test_long_wait_in_the_queue_breaks_no_call(
    guarded: Guarded, client: Client, tmp_path: Path
) -> None:
    """Each would take five silent seconds for a lost stream, where it can be told so."""
    key = guarded.secrets[f"{client}-busy"]
    hog = {"authorization": f"Bearer {guarded.secrets[HOG]}"}
    endless = {
        "model": LENIENT,
        "stream": True,
        "messages": [{"role": "user", "content": f"@@{HOG}@@"}],
        "tools": [{"type": "function", "function": {"name": "none", "parameters": {}}}],
    }
    async with (
        httpx.AsyncClient(base_url=guarded.url, timeout=None, headers=hog) as http,
        session(client, guarded.url, tmp_path, model=LENIENT, key=key, impatient=True) as played,
    ):
        streams = [
            await http.send(
                http.build_request("POST", "/v1/chat/completions", json=endless), stream=True
            )
            for _ in range(SEATS)
        ]

        async def have_begun() -> bool:
            operator = {"authorization": f"Bearer {guarded.secrets[OPERATOR]}"}
            answer = await http.get("/v1/status", headers=operator, params={"model": LENIENT})
            replicas = answer.json()["replicas"].values()
            return SEATS <= sum(int(replica["running"]) for replica in replicas)

        await eventually(have_begun, "the seats are taken", 120.0, every_s=0.5)
        run = asyncio.create_task(played.run(f"{client.program}-{TOOLS}"))

        def has_waited() -> bool:
            waiting = bool(played.calls) and played.calls[-1].pieces >= _SILENT_S
            return waiting or run.done()

        await eventually(has_waited, f"{_SILENT_S} signs of life", 120.0, every_s=0.5)
        assert not run.done(), await run
        for stream in streams:
            await stream.aclose()
        ended = await run
    assert 0 == ended.status, ended
    assert ENDS[TOOLS] in ended.output, ended
    check_calls(played)


async def test_death_of_an_engine_is_not_seen(
    guarded: Guarded, client: Client, tmp_path: Path
) -> None:
    """The only one, in the middle of an answer, which goes on when it is back."""
    key = guarded.secrets[f"{client}-busy"]
    async with session(client, guarded.url, tmp_path, model=LENIENT, key=key) as played:
        run = asyncio.create_task(played.run(f"{client.program}-{LONG}"))

        def is_answered() -> bool:
            return b"word50" in b"".join(call.answer for call in played.calls) or run.done()

        await eventually(is_answered, "it is being answered", 120.0, every_s=0.02)
        (engine,) = guarded.service.engines(LENIENT)
        psutil.Process(engine).kill()
        ended = await run
    assert 0 == ended.status, ended
    assert LONG_WORDS in ended.output, ended
    check_calls(played)


async def test_spent_quota_is_told_once(guarded: Guarded, client: Client, tmp_path: Path) -> None:
    """It ends the session: nothing comes back by waiting."""
    key = guarded.secrets[f"{SPENT}/{client}"]
    async with session(client, guarded.url, tmp_path, model=STRICT, key=key) as played:
        run = await played.run(f"{client.program}-{TOOLS}")
    assert {429} == {call.status for call in played.calls}
    assert len(played.calls) <= client.tries, [call.headers for call in played.calls]
    assert "quota" in run.output + run.errors, run
