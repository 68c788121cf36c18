"""An in-memory service and clients for it, over both transports."""

from collections.abc import AsyncGenerator

import pytest

from justitia_ray.client import HandleTransport, HttpTransport, JustitiaClient, Transport
from tests.unit.client.fakes import FakeHandle, FakeService


@pytest.fixture
def fake_service() -> FakeService:
    return FakeService()


@pytest.fixture
def serve_handle(fake_service: FakeService) -> FakeHandle:
    return fake_service.serve_handle()


@pytest.fixture
def waits_s() -> list[float]:
    """Return the list in which the client's pauses between attempts are recorded."""
    return []


@pytest.fixture(params=["http", "handle"])
async def client(
    request: pytest.FixtureRequest,
    fake_service: FakeService,
    serve_handle: FakeHandle,
    waits_s: list[float],
) -> AsyncGenerator[JustitiaClient]:
    """Return an asynchronous client, once over HTTP and once over a Serve handle."""

    async def record_wait(seconds: float) -> None:
        waits_s.append(seconds)

    transport: Transport
    if request.param == "http":
        transport = HttpTransport("http://service", transport=fake_service.http_transport())
    else:
        transport = HandleTransport(serve_handle)
    async with JustitiaClient(transport, sleep=record_wait) as client:
        yield client
