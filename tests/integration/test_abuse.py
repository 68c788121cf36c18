"""Callers that exceed limits, send invalid data, read slowly, or disconnect."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from urllib.parse import urlsplit

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.open_calls import cancel_calls
from tests.harness.service import ENDLESS, SEATS, Service
from tests.integration.conftest import MOST_OUTSTANDING

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_SEED = 7
_LOTS = 3
_LEFT = tuple(f"left-{i}" for i in range(10))
_LEAVERS = 80
_PLACES = ("at once", "waiting", "running", "in mid-stream", "after the last token", "never")


@pytest_asyncio.fixture(loop_scope="session")
async def service(limited: Service) -> AsyncIterator[Service]:
    """Application with limits on open applications and queue length; each test leaves it idle."""
    yield limited
    await limited.until_idle()
    await eventually(limited.kv_is_free, "KV is free")


async def test_only_a_tenant_that_never_closes_applications_is_limited(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The limit is 80 of 100 open applications; the 81st is refused with a retry time."""
    body = {"application_class": "c", "tenant": "greedy"}
    opened = []
    while (answer := await http.post("/v1/applications", json=body)).status_code == 200:
        opened.append(answer.json()["application_id"])
    first_requests = [
        await http.post(
            COMPLETIONS,
            json=completion(),
            headers={"x-justitia-application": "new", "x-justitia-tenant": tenant},
        )
        for tenant in ("greedy", "modest")
    ]
    anonymous = await http.post(COMPLETIONS, json=completion())
    for application_id in opened:
        await http.delete(f"/v1/applications/greedy|{application_id}")
    await http.delete("/v1/applications/modest|new")
    after = await http.post("/v1/applications", json=body | {"application_id": "again"})
    await http.delete("/v1/applications/greedy|again")

    assert 80 == len(opened)
    for refused in (answer, first_requests[0]):
        assert 429 == refused.status_code
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert "too_many_applications" == refused.json()["error"]["code"]
        assert "scheduler.max_open_applications" in refused.json()["error"]["message"]
    served = (first_requests[1], anonymous, after)
    assert [200] * 3 == [answer.status_code for answer in served]


async def test_full_queue_refuses_calls_with_a_retry_time(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Without a limit, the queue would exceed the memory of the ingress."""
    headers = {"x-justitia-application": "crowd"}
    body = completion(max_tokens=ENDLESS)
    calls = [
        asyncio.create_task(http.post(COMPLETIONS, json=body, headers=headers))
        for _ in range(MOST_OUTSTANDING)
    ]
    await service.until(
        lambda s: s["in_flight"] + s["waiting"] == MOST_OUTSTANDING, "all are outstanding"
    )
    refused = await http.post(COMPLETIONS, json=completion(), headers=headers)
    await cancel_calls(calls)
    await http.post("/v1/applications/crowd/close")
    await service.until_idle()
    taken = await http.post(COMPLETIONS, json=completion())
    error = refused.json()["error"]

    assert 429 == refused.status_code
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert ("RateLimitError", "queue_full") == (error["type"], error["code"])
    assert 200 == taken.status_code


class RawConnection:
    """TCP connection on which a test writes and reads bytes."""

    def __init__(self, service: Service) -> None:
        self._address = urlsplit(service.url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)

    async def send_head(self, *headers: str) -> None:
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, (self._address.hostname, self._address.port))
        lines = [
            f"POST {self._address.path}{COMPLETIONS} HTTP/1.1",
            f"Host: {self._address.netloc}",
            "Content-Type: application/json",
            *headers,
        ]
        await self.send_bytes("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read_until(self, mark: bytes) -> bytes:
        """Read until a mark has arrived or the connection has ended."""
        loop, read = asyncio.get_running_loop(), b""
        while mark not in read and (more := await loop.sock_recv(self._socket, 65_536)):
            read += more
        return read

    def close(self) -> None:
        self._socket.close()


@pytest_asyncio.fixture(loop_scope="session")
async def raw(service: Service) -> AsyncIterator[RawConnection]:
    raw = RawConnection(service)
    yield raw
    raw.close()


async def test_declared_body_length_above_the_limit_is_refused_at_once(
    raw: RawConnection,
) -> None:
    """A caller that waits for `100 Continue` need not upload a body that is too large."""
    await raw.send_head(f"Content-Length: {10 * 2**30}")
    answer = await asyncio.wait_for(raw.read_until(b"\r\n\r\n"), 30.0)

    assert b" 413 " in answer.splitlines()[0]


async def test_endless_chunked_body_is_refused_during_the_upload(raw: RawConnection) -> None:
    """A body without a declared length is read up to the limit."""
    await raw.send_head("Transfer-Encoding: chunked")
    piece = b" " * 10_000

    async def send_chunks() -> None:
        with suppress(ConnectionError):
            while True:
                await raw.send_bytes(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    sending = asyncio.create_task(send_chunks())
    answer = await asyncio.wait_for(raw.read_until(b"\r\n\r\n"), 30.0)
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending

    assert b" 413 " in answer.splitlines()[0]


@pytest.mark.parametrize(
    "header",
    ["x-justitia-class", "x-justitia-application", "x-justitia-tenant", "idempotency-key"],
)
async def test_large_header_does_not_affect_other_calls(
    http: httpx.AsyncClient, header: str
) -> None:
    answer = await http.post(COMPLETIONS, json=completion(), headers={header: "a" * 30_000})
    after = await http.post(COMPLETIONS, json=completion())

    expected = 200 if header == "idempotency-key" else 400
    assert expected == answer.status_code, answer.text[:500]
    assert len(answer.text) < 2_000
    assert 200 == after.status_code


async def test_caller_that_stops_reading_holds_no_lease_and_little_memory(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The generation runs to its end, at most `max_tokens`, and unread output is kept.

    As many stalled readers as seats: other calls run as soon as their generations end. The memory
    is the least growth over a few rounds, because processes also grow for other reasons, and only
    the readers' part repeats in each round.
    """
    lots, memory = [await stalled_readers(service, http)], [memory_by_process(service)]
    for _ in range(_LOTS):
        lots.append(await stalled_readers(service, http))
        memory.append(memory_by_process(service))
    grown = [sum(after[pid] - before[pid] for pid in before) for before, after in pairwise(memory)]
    stalled = [raw for lot in lots for raw in lot]
    rests = [await raw.read_until(b"\r\n0\r\n\r\n") for raw in stalled]
    for raw in stalled:
        raw.close()

    assert all(rest.rstrip().endswith(b"0") and b"[DONE]" in rest for rest in rests)
    unread = sum(len(rest) for rest in rests) / len(lots)
    assert min(grown) < 10 * unread + 30 * 2**20, f"a lot of {unread:.0f} bytes: {memory}"


async def stalled_readers(service: Service, http: httpx.AsyncClient) -> list[RawConnection]:
    """Start one caller per seat; the callers' streams have ended but are not read."""
    stalled = [RawConnection(service) for _ in range(SEATS)]
    for i, raw in enumerate(stalled):
        body = json.dumps(completion(f"stalled {i}", 2_000, stream=True)).encode()
        await raw.send_head(f"Content-Length: {len(body)}")
        await raw.send_bytes(body)
    await service.until(lambda s: s["in_flight"] == SEATS, "all of them run")
    answer = await http.post(COMPLETIONS, json=completion("next"))
    await service.until_idle(30.0)
    await eventually(service.kv_is_free, "KV is free")

    assert 200 == answer.status_code
    return stalled


def memory_by_process(service: Service) -> dict[int, int]:
    """Return the resident memory in bytes of each process that answers calls."""
    names = ("ray::ProxyActor", f"ray::ServeReplica:{service.name}:")
    memory = {
        process.pid: process.memory_info().rss
        for process in psutil.Process().children(recursive=True)
        if " ".join(process.cmdline()).startswith(names)
    }
    assert len(memory) > 1, "the proxy and the application's processes are children of this one"
    return memory


async def test_callers_that_disconnect_at_random_leave_no_lease_or_memory(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Callers disconnect while they wait, run or stream, after the last token, or never.

    Anything left of them would accumulate until the service stops.
    """
    lots = random.Random(_SEED)

    async def scheduler_knows_all_ends() -> dict[str, int] | None:
        left = await ingress_counts(service)
        return left if left["applications"] == left["inferences"] == 0 else None

    before = await eventually(scheduler_knows_all_ends, "the ingress has heard of all ends")
    ends = await asyncio.gather(
        *(
            call_and_disconnect(http, f"own-{i}", random.Random(lots.random()))
            for i in range(_LEAVERS)
        )
    )
    for application_id in (*_LEFT, *(f"own-{i}" for i in range(_LEAVERS))):
        await http.delete(f"/v1/applications/{application_id}")
    await service.until_idle()
    await eventually(service.kv_is_free, "KV is free")

    async def service_is_quiet() -> bool:
        return bool(await ingress_counts(service) == before)

    await eventually(service_is_quiet, f"the ingress has as much as before: {before}", 20.0)
    kinds = {kind: ends.count(kind) for kind in set(ends)}
    assert set(_PLACES) == set(kinds)
    assert 200 == (await http.post(COMPLETIONS, json=completion())).status_code


async def call_and_disconnect(http: httpx.AsyncClient, own: str, lots: random.Random) -> str:
    """Call and disconnect at a random point; return the name of the point.

    A caller that leaves while it waits or runs has its own application `own`, whose state shows
    when.
    """
    body = completion(f"leaver {lots.randrange(1_000)}", lots.randrange(20, 300))
    headers = {}
    if lots.random() < 0.3:
        headers["x-justitia-application"] = lots.choice(_LEFT)
    where = lots.choice(_PLACES)
    if where in ("in mid-stream", "after the last token"):
        events = lots.randrange(1, 4) if where == "in mid-stream" else None
        async with http.stream(
            "POST", COMPLETIONS, json=body | {"stream": True}, headers=headers
        ) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and events is not None:
                    events -= 1
                if events == 0 or line == "data: [DONE]":
                    break
    else:
        if where in ("waiting", "running"):
            headers["x-justitia-application"] = own
        call = asyncio.create_task(http.post(COMPLETIONS, json=body, headers=headers))
        if where == "at once":
            await asyncio.sleep(0)  # let the call begin
        elif where != "never":
            await eventually(
                lambda: scheduler_has_application(http, own, where), f"{own} is {where}", 60.0
            )
        if where != "never":
            call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    return where


async def scheduler_has_application(
    http: httpx.AsyncClient, application_id: str, where: str
) -> bool:
    """Return whether the scheduler has an application; with `running`, whether it runs."""
    answer = await http.get(f"/v1/applications/{application_id}")
    if answer.status_code == 404:
        return False
    seen = answer.json()
    return where == "waiting" or seen["running"] + seen["ended"] > 0


async def ingress_counts(service: Service) -> dict[str, int]:
    """Return the numbers of inferences, applications and tasks in the ingress."""
    left: dict[str, int] = await service.handle().left.remote()
    return left
