"""Serve behind HAProxy: its connection limit, and its restarts while streams are open."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from scripts.bench.connections import WaitingLoad
from scripts.bench.load import Target
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion, encoded_json
from tests.harness.front_cluster import FrontCluster, front_cluster
from tests.harness.key_ring import KeyRing
from tests.harness.open_calls import OpenStream

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_CONNECTIONS = 24
_OUTSTANDING = 12
_HARD_STOP_S = 12
_ITERATION_S = 0.05
_SEATS = 16
_MAX_MODEL_LEN = 65_536
_LONGEST = 60_000
_ENDLESS = completion(max_tokens=_LONGEST)
_TOKENS = 60
"""Length of a stream that outlasts a restart of HAProxy and ends long before it is cut."""
_CALLERS = 4
_SOON_S = 2.0
"""Time limit in seconds: the engine frees memory within one second, and the query takes another."""
_CHANGED_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    keys = KeyRing(tmp_path_factory.mktemp("front") / "keys.yaml")
    keys.add("caller", "team", "infer", "own", "operate")
    keys.write()
    return keys.file, keys.secrets["caller"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(key: tuple[Path, str]) -> AsyncIterator[FrontCluster]:
    """Cluster with API keys; HAProxy holds few connections and cuts old streams early."""
    environment = {
        "RAY_SERVE_HAPROXY_MAXCONN": str(_CONNECTIONS),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(_HARD_STOP_S),
    }
    args = {
        "engine": {
            "kind": "fake",
            "fake": {
                "iteration_s": _ITERATION_S,
                "max_num_seqs": _SEATS,
                "kv_tokens": _SEATS * _MAX_MODEL_LEN,
                "max_model_len": _MAX_MODEL_LEN,
            },
        },
        "ingress": {"max_outstanding": _OUTSTANDING},
        "access": {"keys_file": str(key[0])},
        # All processes of the test share two cores.
        "scheduler": {"replica_timeout_s": 15.0, "lease_timeout_s": 30.0},
        "replica": {"lease_grace_s": 5.0},
    }
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, front_cluster(environment, args))
        await asyncio.to_thread(stack.close)


@pytest_asyncio.fixture(loop_scope="session")
async def http(cluster: FrontCluster, key: tuple[Path, str]) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client whose number of connections is not limited."""
    limits, headers = httpx.Limits(max_connections=None), {"authorization": f"Bearer {key[1]}"}
    async with httpx.AsyncClient(
        base_url=cluster.url, timeout=120.0, limits=limits, headers=headers
    ) as http:
        yield http

    async def service_is_idle() -> bool:
        async with httpx.AsyncClient(
            base_url=cluster.url, timeout=120.0, headers=headers
        ) as asking:
            status = (await asking.get("/v1/status")).json()
        return bool(0 == status["waiting"] == status["in_flight"])

    await eventually(service_is_idle, "nothing of any call is left", 60.0)


@asynccontextmanager
async def keep_streaming(http: httpx.AsyncClient) -> AsyncIterator[list[OpenStream]]:
    """Keep some callers streaming during a `with` block; yield the streams."""
    streams: list[OpenStream] = []
    over = asyncio.Event()
    # A replaced HAProxy closes idle connections: a call sent on one is repeated.
    # by its client.
    fresh = httpx.AsyncClient(
        base_url=http.base_url,
        timeout=120.0,
        headers=http.headers,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )

    async def stream_repeatedly() -> None:
        while not over.is_set():
            streams.append(OpenStream(fresh, completion(f"stream {len(streams)}", _TOKENS)))
            await streams[-1].end()

    async with fresh:
        callers = [asyncio.create_task(stream_repeatedly()) for _ in range(_CALLERS)]
        await eventually(
            lambda: sum(s.has_begun() for s in streams) >= _CALLERS, "all stream", 60.0
        )
        try:
            yield streams
        finally:
            over.set()
            await asyncio.gather(*callers)


def streams_are_whole(streams: list[OpenStream]) -> bool:
    return all(stream.events[-1] == "[DONE]" for stream in streams)


def count_exceeds(streams: list[OpenStream], count: int) -> Callable[[], bool]:
    return lambda: len(streams) > count


async def test_status_reports_haproxy_as_the_http_proxy(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """Operators see in the status whether HAProxy's environment variables took effect."""
    answer = await http.post(COMPLETIONS, json=completion())
    status = (await http.get("/v1/status")).json()
    seen = (await http.get("/v1/examination")).json()

    assert 200 == answer.status_code
    assert 1 == len(cluster.haproxy_process_ids())
    assert {"kind": "haproxy", "max_connections": _CONNECTIONS} == status["front"]
    assert "haproxy" == seen["serve"]["front"] == seen["ingress"]["front"]["kind"]
    assert seen["serve"]["tls"] is False


async def test_direct_port_of_an_ingress_requires_a_credential(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """A caller that reaches an ingress's own port bypasses HAProxy but not access control."""
    statuses = []
    async with httpx.AsyncClient(timeout=10.0) as stranger:
        for port in cluster.ingress_ports():
            url = f"http://127.0.0.1:{port}/v1/models"
            with suppress(httpx.HTTPError):  # a port with another protocol
                headers = http.headers
                answers = [await stranger.get(url), await stranger.get(url, headers=headers)]
                statuses.append([answer.status_code for answer in answers])

    assert [[401, 200]] == statuses


async def test_ingress_refuses_callers_above_its_limit_and_haproxy_lets_others_wait(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """HAProxy holds connections above its limit unanswered, so the ingress must refuse first."""
    (before,) = cluster.haproxy_process_ids()
    streams = [OpenStream(http, _ENDLESS) for _ in range(_OUTSTANDING)]
    await eventually(lambda: all(s.has_begun() for s in streams), "all seats are taken", 60.0)
    told = await http.post(COMPLETIONS, json=_ENDLESS)
    address = (http.base_url.host, http.base_url.port)
    with ExitStack() as idle:
        for _ in range(_CONNECTIONS):  # Some connections are still in the kernel's queue.
            idle.enter_context(socket.create_connection(address))
        async with httpx.AsyncClient(base_url=cluster.url, timeout=120.0) as later:
            beyond = asyncio.create_task(later.get("/healthz"))
            done, _ = await asyncio.wait([beyond], timeout=1.0)
            idle.close()
            answer = await beyond
    for stream in streams:
        await stream.close_stream()

    assert 429 == told.status_code
    assert told.headers["retry-after"]
    assert not done
    assert 200 == answer.status_code
    assert {before} == cluster.haproxy_process_ids()


async def test_unary_call_ends_when_its_caller_disconnects(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """Official Python clients send the body in a TCP segment after the head."""
    url, body = http.base_url, encoded_json(_ENDLESS)
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        f"Authorization: {http.headers['authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def call_is_in_flight() -> int:
        return int((await http.get("/v1/status")).json()["in_flight"])

    async def service_is_idle_again() -> bool:
        return not await call_is_in_flight()

    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode())
    await writer.drain()
    await http.get("/healthz")  # HAProxy has forwarded the head by now.
    writer.write(body)
    await eventually(call_is_in_flight, "it runs", 60.0)
    writer.close()

    await eventually(service_is_idle_again, "it is given up", _SOON_S)


async def test_adding_and_removing_ingresses_keeps_open_streams_whole(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """Each change starts another HAProxy; the old HAProxy and ingress complete their streams."""
    (before,) = cluster.haproxy_process_ids()
    async with keep_streaming(http) as streams:
        for ingresses in (2, 1):
            at_change = asyncio.create_task(asyncio.to_thread(cluster.scale, ingresses))
            await eventually(
                lambda: len(cluster.haproxy_process_ids()) > 1, "another HAProxy", _CHANGED_WITHIN_S
            )
            await at_change
            await eventually(count_exceeds(streams, len(streams) + 8), "callers go on", 60.0)
    await eventually(
        lambda: len(cluster.haproxy_process_ids()) == 1, "the old processes ended", 60.0
    )

    assert len(streams) > 16
    assert streams_are_whole(streams)
    assert {before} != cluster.haproxy_process_ids()


@pytest.mark.long
async def test_stream_longer_than_haproxys_hard_stop_is_cut(
    cluster: FrontCluster, http: httpx.AsyncClient
) -> None:
    """A stream breaks off if it lasts longer than a replaced HAProxy may live."""
    stream = OpenStream(http, _ENDLESS)
    await eventually(stream.has_begun, "a stream runs", 60.0)
    await asyncio.to_thread(cluster.scale, 2)

    with pytest.raises(httpx.HTTPError):
        await stream.end()
    assert "[DONE]" not in stream.events
    assert 200 == (await http.post(COMPLETIONS, json=completion())).status_code


@pytest.mark.long
async def test_waiting_callers_of_a_removed_ingress_leave_no_inference_behind(
    cluster: FrontCluster, key: tuple[Path, str]
) -> None:
    await asyncio.to_thread(cluster.scale, 2)
    port = int(cluster.url.rpartition(":")[2])
    load = WaitingLoad(Target(port, "", credential=key[1]), "fake-7b", _SEATS, _LONGEST)
    waited = await load.drain_with_waiting_callers(
        8, cluster.process_ids, partial(cluster.scale, 1)
    )
    left = await load.disconnect_at_random(10, seed=1)

    assert {"200": 8} == waited.answers
    assert 0 == waited.lost
    assert waited.memory_mb > 100.0
    assert 10 == left.callers
