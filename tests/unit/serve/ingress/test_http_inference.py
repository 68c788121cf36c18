"""Routes of the inference endpoints and the error format of each API family."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, cast

import httpx
import pytest

from justitia_ray.errors import ContextLengthExceeded, EngineError, NotServed, QueueFull
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
)
from justitia_ray.protocol.pooling_bodies import EMBEDDINGS
from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.http_inference import until_disconnect
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.eventually import eventually
from tests.unit.serve.ingress.asgi_caller import Caller, FedStream
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, served_model

_BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "a",
    "input": "a",
    "query": "a",
    "queries": "a",
    "documents": ["a"],
    "texts": ["a"],
    "max_tokens": 5,
}
"""Request body that every endpoint accepts."""
_OPEN = Door(None, DEFAULT_TENANT)
_ENGINE_ERROR = b'{"error": {"message": "m", "type": "BadRequestError", "code": 400}}'


@pytest.fixture
def gateway() -> StandInGateway:
    return StandInGateway()


@pytest.fixture
async def http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(served_model(gateway)) as client:
        yield client


@pytest.mark.parametrize("path", INFERENCE_PATHS)
async def test_every_endpoint_of_the_table_answers(http: httpx.AsyncClient, path: str) -> None:
    body = {name: value for name, value in _BODY.items() if (path, name) != (RESPONSES, "prompt")}
    answer = await http.post(path, json=body)

    assert (200, "told") == (answer.status_code, answer.text)


@pytest.mark.parametrize("path", UNSCHEDULED_PATHS)
async def test_unscheduled_call_is_answered_by_any_replica(
    http: httpx.AsyncClient, gateway: StandInGateway, path: str
) -> None:
    answer = await http.post(path, json=_BODY)

    assert (200, "unscheduled") == (answer.status_code, answer.text)
    gateway.unscheduled_answer = (400, {}, _ENGINE_ERROR)
    refused = await http.post(path, json=_BODY)
    assert 400 == refused.status_code
    assert ("error" == refused.json().get("type")) == path.startswith(MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_the_format_of_their_api_family(
    http: httpx.AsyncClient, gateway: StandInGateway, stream: bool
) -> None:
    """Anthropic's and OpenAI's clients read errors before, during and after the queue."""
    body = _BODY | {"stream": stream}
    malformed = await http.post(MESSAGES, json=body | {"max_tokens": 0})
    gateway.items = [(400, {}), _ENGINE_ERROR]
    by_engine = await http.post(MESSAGES, json=body)
    gateway.failure = QueueFull("full", 7.0)
    full = await http.post(MESSAGES, json=body)
    gateway.refusal = NotServed("not here")
    not_served = await http.post(MESSAGES, json=body)

    answers = (malformed, by_engine, full, not_served)
    assert [400, 400, 429, 404] == [answer.status_code for answer in answers]
    assert full.headers["retry-after"] in ("7", "8")  # 7 s with up to 10 % jitter
    assert [
        "invalid_request_error",
        "invalid_request_error",
        "rate_limit_error",
        "not_found_error",
    ] == [answer.json()["error"]["type"] for answer in answers]


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS, CHAT])
async def test_internal_error_behind_a_path_prefix_has_the_format_of_its_api(
    gateway: StandInGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def divide_by_zero(*arguments: Any) -> Any:
        raise ZeroDivisionError("secret")

    gateway.failure = ZeroDivisionError("secret")
    monkeypatch.setattr(gateway, "unscheduled", divide_by_zero)
    async with client_of(served_model(gateway), raise_app_exceptions=False, root="/llm") as client:
        answer = await client.post("/llm" + path, json=_BODY)

    assert 500 == answer.status_code
    assert (None if path == CHAT else "error") == answer.json().get("type")
    assert "the service failed to answer; its log says why" == answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_call_of_a_disconnected_caller_ends_at_once(
    gateway: StandInGateway, stream: bool
) -> None:
    """Otherwise the inference would run until there is output to send."""
    source, caller = FedStream(), Caller(json.dumps(_BODY | {"stream": stream}).encode())
    gateway.source = source
    call = asyncio.create_task(_post_call(gateway, COMPLETIONS, caller))
    source.feed((200, {}))
    if stream:
        source.feed(b"a")
        await caller.wait_for_chunks(1)
    await eventually(lambda: source.items.empty(), "the call waits")
    caller.leaves.set()
    await call

    assert (source.closed, call.cancelling()) == (True, 0)
    assert (2 if stream else 0) == len(caller.messages)


async def test_call_cancelled_by_ray_serve_ends_in_the_gateway() -> None:
    """Ray Serve may cancel a call directly, which is no normal end."""
    caller, never = Caller(), asyncio.Event()
    call = asyncio.create_task(until_disconnect(caller.receive, cast(Any, never.wait())))
    await asyncio.sleep(0)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call


async def _post_call(gateway: StandInGateway, path: str, caller: Caller, **ingress: Any) -> None:
    model = served_model(gateway, ingress={"keepalive_s": 60.0, **ingress})
    app = build_http_app(ServedModels([model]), ApplicationSpecCache(600.0, 100), _OPEN, FINDER)
    head = [(name.encode(), value.encode()) for name, value in caller.headers.items()]
    scope: Message = {"type": "http", "method": "POST", "path": path, "headers": head}
    await app(scope, caller.receive, caller.send)


async def test_caller_receives_the_replicas_stream_head_and_chunks(
    http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """A stream has no length and forbids proxies to buffer it."""
    gateway.items = [(200, {"content-type": "text/event-stream", "x-a": "b"}), b"c", b"d"]
    streamed = await http.post(COMPLETIONS, json=_BODY | {"stream": True})
    whole = await http.post(COMPLETIONS, json=_BODY)

    head = {"content-type": "text/event-stream", "x-a": "b"}
    passes = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    assert (head | passes, b"cd") == (dict(streamed.headers), streamed.content)
    assert (head | {"content-length": "2"}, b"cd") == (dict(whole.headers), whole.content)


async def test_request_body_sent_in_pieces_is_read_completely(
    http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """Proxies split long bodies, and a client need not declare a length."""

    async def single_bytes() -> AsyncGenerator[bytes]:
        for byte in json.dumps(_BODY).encode():
            yield bytes([byte])

    answer = await http.post(COMPLETIONS, content=single_bytes())

    assert (200, "told", 1) == (answer.status_code, answer.text, gateway.answered)


async def test_retry_with_an_idempotency_key_gets_the_same_answer(
    http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    for stream in (False, True):
        headers = {"idempotency-key": f"key-{stream}"}
        first, again = [
            await http.post(COMPLETIONS, json=_BODY | {"stream": stream}, headers=headers)
            for _ in range(2)
        ]
        assert (first.headers, first.content) == (again.headers, again.content)
    assert 2 == gateway.answered


@pytest.mark.parametrize("error", [EngineError("given up"), ZeroDivisionError()])
async def test_stream_that_fails_midway_sends_one_head_and_raises_the_error(
    gateway: StandInGateway, error: Exception
) -> None:
    """The caller reads the error in the stream, and Ray Serve counts the raised one."""
    source, caller = FedStream(), Caller(json.dumps(_BODY | {"stream": True}).encode())
    gateway.source = source
    source.feed((200, {}), b"a", error)
    with pytest.raises(type(error)):
        await _post_call(gateway, COMPLETIONS, caller)

    assert 1 == sum(m["type"] == "http.response.start" for m in caller.messages)
    assert ([b"a", b""], 3) == (caller.chunks[::2], len(caller.chunks))
    assert b'data: {"error": ' == caller.chunks[1][:16]
    assert [502 if isinstance(error, EngineError) else 500] == gateway.failed_streams


@pytest.mark.parametrize(
    ("asked", "configured", "first"),
    [
        (None, {}, b"event: ping\n"),
        (None, {"keepalive": "comment"}, b": "),
        ("chunk", {"keepalive": "comment"}, b"event: ping\n"),
        ("Comment", {}, b": "),
    ],
)
async def test_caller_or_operator_chooses_the_format_of_keepalives(
    gateway: StandInGateway, asked: str | None, configured: dict[str, str], first: bytes
) -> None:
    source, caller = FedStream(), Caller(json.dumps(_BODY | {"stream": True}).encode())
    gateway.source = source
    caller.headers |= {} if asked is None else {"x-justitia-keepalive": asked}
    call = asyncio.create_task(
        _post_call(gateway, MESSAGES, caller, keepalive_s=0.01, **configured)
    )
    await caller.wait_for_chunks(1)
    caller.leaves.set()
    await call

    assert caller.chunks[0].startswith(first)


@pytest.mark.parametrize(
    ("agent", "asked", "configured", "first"),
    [
        ("QwenCode/0.24.4 (linux; x64)", None, "event", b'data: {"id": "chatcmpl-'),
        ("QwenCode/0.24.4 (linux; x64)", None, "comment", b": "),
        ("QwenCode/0.24.4 (linux; x64)", "event", "event", b": "),
        ("OpenAI/JS 6.1.0", None, "event", b": "),
    ],
)
async def test_client_that_ignores_comments_gets_keepalive_chunks(
    gateway: StandInGateway, agent: str, asked: str | None, configured: str, first: bytes
) -> None:
    """A header or the operator's setting replaces comments by chunks."""
    source, caller = FedStream(), Caller(json.dumps(_BODY | {"stream": True}).encode())
    gateway.source = source
    caller.headers |= {"user-agent": agent}
    caller.headers |= {} if asked is None else {"x-justitia-keepalive": asked}
    call = asyncio.create_task(
        _post_call(gateway, CHAT, caller, keepalive_s=0.01, keepalive=configured)
    )
    await caller.wait_for_chunks(1)
    caller.leaves.set()
    await call

    assert caller.chunks[0].startswith(first)


@pytest.mark.parametrize("refusal", [None, ContextLengthExceeded("too long")])
async def test_stream_has_keepalives_while_its_prompt_is_counted(
    gateway: StandInGateway, refusal: Exception | None
) -> None:
    """A long prompt may wait behind others; an error in it is sent as an event."""
    caller = Caller(json.dumps(_BODY | {"stream": True}).encode())
    gateway.may_count.clear()
    gateway.failure = refusal
    gateway.items = [(200, {}), b"told"]
    call = asyncio.create_task(_post_call(gateway, MESSAGES, caller, keepalive_s=0.01))
    await caller.wait_for_chunks(2)
    gateway.may_count.set()
    with suppress(ContextLengthExceeded):
        await call

    assert caller.chunks[0].startswith(b"event: ping\n")
    last = b"told" if refusal is None else b"event: error\n"
    assert caller.chunks[-2].startswith(last)
    assert ([] if refusal is None else [400]) == gateway.failed_streams


@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_kind_of_keepalive_is_refused(
    http: httpx.AsyncClient, gateway: StandInGateway, stream: bool
) -> None:
    headers = {"x-justitia-keepalive": "dots"}
    answer = await http.post(COMPLETIONS, json=_BODY | {"stream": stream}, headers=headers)

    assert (400, 0) == (answer.status_code, gateway.answered)
    assert "one of event, chunk, comment, none is allowed" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_unsupported_http_methods_are_refused(http: httpx.AsyncClient, method: str) -> None:
    answer = await http.request(method, COMPLETIONS)
    elsewhere = await http.request("PATCH", "/v1/models")

    assert 405 == answer.status_code == elsewhere.status_code
    assert method == "HEAD" or answer.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
    ],
)
async def test_error_for_a_path_of_anthropics_api_has_anthropics_format(
    http: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    answer = await http.request(method, path, json={})

    assert (status, "error") == (answer.status_code, answer.json()["type"])
    assert kind == answer.json()["error"]["type"]


async def test_application_prefix_is_removed_from_the_path(gateway: StandInGateway) -> None:
    """Ray Serve passes the whole path and, separately, the application's prefix."""
    app = build_http_app(
        ServedModels([served_model(gateway)]), ApplicationSpecCache(600.0, 100), _OPEN, FINDER
    )
    answers = []
    for path in ("/llm/v1/messages", "/v1/messages", "/v1/messages/"):
        caller = Caller(json.dumps(_BODY).encode())
        scope: Message = {"type": "http", "method": "POST", "path": path, "root_path": "/llm"}
        scope.update(headers=[], query_string=b"", server=("a", 80), scheme="http")
        await app(scope, caller.receive, caller.send)
        answers.append(caller.messages[0]["status"])

    assert [200, 200, 307] == answers


async def test_large_request_body_is_refused_if_memory_is_full(gateway: StandInGateway) -> None:
    """The answer is 429 with a retry time, while small bodies are still read."""
    section = {"max_body_bytes": 100_000, "max_body_bytes_held": 150_000}
    model = served_model(gateway, ingress=section)
    held, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_when_allowed(path: str, payload: bytes) -> Answer:
        held.set()
        await may_answer.wait()
        return 200, {}, b"unscheduled"

    gateway.unscheduled = answer_when_allowed  # type: ignore[method-assign]
    large = {"messages": [{"role": "user", "content": "a" * 90_000}]}
    async with client_of(model) as http, asyncio.TaskGroup() as tasks:
        tasks.create_task(http.post("/tokenize", json=large))
        await held.wait()
        refused = await http.post(CHAT, json=large)
        read = await http.post(CHAT, json=_BODY)
        may_answer.set()

    assert (429, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
    assert "max_body_bytes_held" in refused.json()["error"]["message"]
    assert {"retry-after", "retry-after-ms"} <= set(refused.headers)
    assert 200 == read.status_code


async def test_large_request_body_delays_the_next_until_its_tokens_are_counted(
    gateway: StandInGateway,
) -> None:
    """A second body of 20 MiB is read only after the tokens of the first are counted."""
    model = served_model(gateway, ingress={"max_body_bytes": 2**25})
    counting: list[asyncio.Event] = []

    async def count_slowly(context: Any, body: Any) -> Any:
        counting.append(asyncio.Event())
        await counting[-1].wait()
        return body

    gateway.counted = count_slowly  # type: ignore[method-assign]
    large = {"messages": [{"role": "user", "content": "a" * 20 * 2**20}], "max_tokens": 1}
    async with client_of(model) as http, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(http.post(CHAT, json=large)) for _ in range(2)]
        await eventually(lambda: counting, "the first is read")
        await eventually(lambda: gateway.answered == 0, "none is answered")
        assert 1 == len(counting)
        counting[0].set()
        await eventually(lambda: len(counting) == 2, "the second is read")
        counting[1].set()

    assert [200, 200] == [call.result().status_code for call in calls]


@pytest.mark.parametrize("path", [EMBEDDINGS, "/tokenize"])
async def test_large_request_body_waiting_for_a_replica_does_not_delay_the_next(
    gateway: StandInGateway, path: str
) -> None:
    """A second body of 13 MiB is read while the first waits for a replica."""
    model = served_model(gateway)
    waiting: list[str] = []
    may_answer = asyncio.Event()

    async def answer_when_allowed(path: str, payload: bytes = b"") -> Answer:
        waiting.append(path)
        await may_answer.wait()
        return 200, {}, b"unscheduled"

    gateway.check_served = answer_when_allowed  # type: ignore[method-assign,assignment]
    gateway.unscheduled = answer_when_allowed  # type: ignore[method-assign]
    large = {"input": "a" * 13 * 2**20}
    async with client_of(model) as http, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(http.post(path, json=large)) for _ in range(2)]
        await eventually(lambda: len(waiting) == 2, "both wait for a replica")
        may_answer.set()

    assert [200, 200] == [call.result().status_code for call in calls]


async def test_body_of_an_unscheduled_call_counts_while_waiting_for_a_replica(
    gateway: StandInGateway,
) -> None:
    """The wait takes up to 30 s, and only this memory bounds the waiting bodies."""
    model = served_model(
        gateway, ingress={"max_body_bytes": 300_000, "max_body_bytes_held": 300_000}
    )
    waits, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_when_allowed(path: str, payload: bytes) -> Answer:
        waits.set()
        await may_answer.wait()
        return 200, {}, b"unscheduled"

    gateway.unscheduled = answer_when_allowed  # type: ignore[method-assign]
    large = {"prompt": "a" * 200_000}
    async with client_of(model) as http, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(http.post("/tokenize", json=large))
        await waits.wait()
        refused = await http.post("/tokenize", json=large)
        may_answer.set()

    assert (200, 429) == (call.result().status_code, refused.status_code)
