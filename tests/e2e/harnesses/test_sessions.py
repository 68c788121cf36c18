"""Each client, unchanged, plays a session: one application of its class, no turn too many.

Every line that a client is set up with is one of `deployments/harnesses.md`.
"""

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from tests.e2e.harnesses.clients import CLIENTS, Client
from tests.e2e.harnesses.conftest import OPERATOR, Guarded, Noted
from tests.e2e.harnesses.model import LENIENT, STRICT
from tests.e2e.harnesses.scenarios import (
    AGAIN,
    AGENTS,
    BELOW,
    ENDS,
    FILES,
    HOG,
    LONG,
    LONG_WORDS,
    TOOLS,
)
from tests.e2e.harnesses.service import SEATS, SPENT
from tests.e2e.harnesses.session import Session, class_of, session, told_use, used
from tests.eventually import eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.vllm,
    pytest.mark.harness,
    pytest.mark.parametrize("client", CLIENTS, ids=str),
]

_SILENT_S = 12
"""Signs of life, a second apart, in which a client that waits for five would have given up."""
_RESTARTED_WITHIN_S = 300.0


def check_calls(played: Session) -> None:
    """Hold that no call failed or came twice, and all are one application."""
    calls = played.calls
    assert {200} == {call.status for call in calls}, [call.answer[-300:] for call in calls]
    repeated = [times for times in Counter(call.body for call in calls).values() if times > 1]
    assert not repeated
    named = {call.application for call in calls if call.application is not None}
    assert 1 == len(named), [call.application for call in calls]  # None: begun before it was read


async def play(played: Session, *, agents: bool = True) -> None:
    """Play tools, a sub-agent and a resume, and hold that all was done and nothing failed."""
    scripts = [TOOLS, AGENTS, AGAIN] if agents and played.client.spawn else [TOOLS, AGAIN]
    for number, name in enumerate(scripts):
        run = await played.run(f"{played.client.program}-{name}", resume=number > 0)
        assert 0 == run.status, run
        assert ENDS[name] in run.output, run
    written = {file for file in FILES if AGENTS in scripts or file != BELOW}
    work = played.directory / "work"
    assert dict.fromkeys(written, "ran\n") == {
        file.name: file.read_text() for file in work.iterdir() if file.name in FILES
    }
    check_calls(played)


async def check_application(played: Session, guarded: Guarded, tenant: str) -> None:
    """Hold that its application has the class of the client, and every token is metered."""
    calls = played.calls
    application = next(filter(None, (call.application for call in calls)))
    found = await class_of(guarded.url, played.key, application)
    told = [told_use(call) for call in calls]
    prompt, output = map(sum, zip(*told, strict=True))
    expected = (1, len(calls), prompt, output)

    async def is_metered() -> bool:
        return expected == await used(guarded.url, guarded.secrets[OPERATOR], tenant)

    assert played.client.application_class == found
    assert all(prompt and output for prompt, output in told)
    await eventually(is_metered, f"{expected} of {tenant} are metered", 30.0)


@pytest.mark.parametrize("model", [LENIENT, STRICT])
async def test_session_is_one_application_from_the_first_call_to_the_resume(
    guarded: Guarded, client: Client, model: str, tmp_path: Path, note_sent: Noted
) -> None:
    tenant = f"{client}-{model}"
    key = guarded.secrets[tenant]
    async with session(client, guarded.url, tmp_path, model=model, key=key) as played:
        await play(played)
        note_sent(client, played.recorder.exchanges)
        await check_application(played, guarded, tenant)


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
