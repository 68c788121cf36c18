"""The transport over a Serve handle: one context a call, and explicit cancels."""

import asyncio

import pytest

from justitia_ray.client import HandleTransport, fan_out

from .fakes import SERVE_REQUEST_ID, FakeHandle, FakeService

CHAT = "/v1/chat/completions"


@pytest.fixture
def transport(handle: FakeHandle) -> HandleTransport:
    """A transport over the service's handle."""
    return HandleTransport(handle)


async def test_fifty_calls_of_one_parent_have_contexts_of_their_own(
    transport: HandleTransport, service: FakeService
) -> None:
    """Serve matches calls by an id from the context: of calls that share one, all but one hang."""
    SERVE_REQUEST_ID.set("the agent's own request")

    async def stream() -> int:
        async with transport.stream("POST", CHAT, {}) as streamed:
            return streamed.status

    await fan_out(transport.request("GET", "/v1/models", {}) for _ in range(50))
    await fan_out(stream() for _ in range(50))

    assert len(service.requests) == 100
    assert SERVE_REQUEST_ID.get() == "the agent's own request"


async def test_cancelling_a_call_cancels_its_response(
    transport: HandleTransport, service: FakeService, handle: FakeHandle
) -> None:
    """Nothing else tells the ingress: in its own context the call has no parent."""
    service.hold = CHAT
    task = asyncio.create_task(transport.request("POST", CHAT, {}))
    await service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [response.cancels for response in handle.responses] == [1]


async def test_cancelling_a_stream_before_its_head_cancels_its_response(
    transport: HandleTransport, service: FakeService, handle: FakeHandle
) -> None:
    """A stream may wait in the queue for minutes before its first byte."""
    service.hold = CHAT

    async def read() -> None:
        async with transport.stream("POST", CHAT, {}):
            pass

    task = asyncio.create_task(read())
    await service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [response.cancels for response in handle.responses] == [1]


async def test_a_sibling_outlives_a_cancel(
    transport: HandleTransport, service: FakeService, handle: FakeHandle
) -> None:
    """Only the call whose caller has gone is ended."""
    service.hold = CHAT
    left = asyncio.create_task(transport.request("POST", CHAT, {}))
    await service.held.acquire()
    stays = asyncio.create_task(transport.request("GET", "/v1/models", {}))
    left.cancel()

    assert (await stays).status == 200
    assert [response.cancels for response in handle.responses] == [1, 0]


@pytest.mark.parametrize("taken", [0, 1])
async def test_leaving_a_stream_cancels_its_response(
    transport: HandleTransport, handle: FakeHandle, taken: int
) -> None:
    """Dropping a Serve generator does not: the replica would run to the end."""
    async with transport.stream("POST", CHAT, {}, b'{"stream": true}') as streamed:
        for _ in range(taken):
            await anext(streamed.chunks)

    assert [response.cancels for response in handle.responses] == [1]


async def test_a_stream_read_to_its_end_is_not_cancelled(
    transport: HandleTransport, handle: FakeHandle
) -> None:
    """The ingress would see a caller leave that had it all."""
    async with transport.stream("POST", CHAT, {}, b'{"stream": true}') as streamed:
        chunks = [chunk async for chunk in streamed.chunks]

    assert chunks[-1] == b"data: [DONE]\n\n"
    assert [response.cancels for response in handle.responses] == [0]


async def test_header_names_are_lower_case(transport: HandleTransport) -> None:
    """As over HTTP, so that one client reads both."""
    assert (await transport.request("GET", "/v1/models", {})).headers == {
        "content-type": "application/json"
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_call_is_a_connection_error_with_its_cause(
    transport: HandleTransport, service: FakeService, handle: FakeHandle, stream: bool
) -> None:
    """An agent catches the same errors over both transports, and Ray's own stays readable."""
    failure = LookupError("actor died")
    service.answers[CHAT] = [failure]

    async def call() -> None:
        if stream:
            async with transport.stream("POST", CHAT, {}):
                pass
        else:
            await transport.request("POST", CHAT, {})

    with pytest.raises(ConnectionError, match="LookupError") as caught:
        await call()

    assert failure is caught.value.__cause__
    assert [response.cancels for response in handle.responses] == [0]


async def test_a_cancel_by_serve_is_not_taken_for_the_callers(
    transport: HandleTransport, service: FakeService
) -> None:
    """A CancelledError out of nowhere would end the agent's task without a word."""
    service.hold = CHAT
    task = asyncio.create_task(transport.request("POST", CHAT, {}))
    await service.held.acquire()
    [step] = asyncio.all_tasks() - {task, asyncio.current_task()}
    step.cancel()

    with pytest.raises(ConnectionError, match="Serve cancelled"):
        await task


async def test_a_stream_without_a_head_has_broken_off(transport: HandleTransport) -> None:
    """An ingress that ends at once has answered nothing."""

    class Nothing:
        def __getattr__(self, name: str) -> "Nothing":
            return self

        def options(self, *, stream: bool) -> "Nothing":
            return self

        def remote(self, *_: object) -> "Nothing":
            return self

        async def __anext__(self) -> None:
            raise StopAsyncIteration

    with pytest.raises(ConnectionError, match="before its head"):
        async with HandleTransport(Nothing()).stream("POST", CHAT, {}):
            pass
