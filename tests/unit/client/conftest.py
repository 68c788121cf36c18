"""An in-memory service and clients for it, over both transports."""

from collections.abc import AsyncGenerator

import pytest

from justitia_ray.client import HandleTransport, HttpTransport, JustitiaClient, Transport
from tests.unit.client.fakes import FakeHandle, FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def handle(service: FakeService) -> FakeHandle:
    return service.handle()


@pytest.fixture
def waits_s() -> list[float]:
    """Waits between the client's attempts, which are recorded and skipped."""
    return []


@pytest.fixture(params=["http", "handle"])
async def client(
    request: pytest.FixtureRequest,
    service: FakeService,
    handle: FakeHandle,
    waits_s: list[float],
) -> AsyncGenerator[JustitiaClient]:
    """Client of the service, once for each transport."""

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)

    transport: Transport
    if request.param == "http":
        transport = HttpTransport("http://service", transport=service.http())
    else:
        transport = HandleTransport(handle)
    async with JustitiaClient(transport, sleep=sleep) as client:
        yield client
