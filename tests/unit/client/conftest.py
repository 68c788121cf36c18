"""A service in memory and clients on it, over both transports."""

from collections.abc import AsyncGenerator

import pytest

from justitia_ray.client import HandleTransport, HttpTransport, JustitiaClient, Transport
from tests.unit.client.fakes import FakeHandle, FakeService


@pytest.fixture
def service() -> FakeService:
    """A service that nothing has been asked of."""
    return FakeService()


@pytest.fixture
def handle(service: FakeService) -> FakeHandle:
    """The service as a Serve handle."""
    return service.handle()


@pytest.fixture
def waits_s() -> list[float]:
    """What the client waited between attempts, instead of waiting it."""
    return []


@pytest.fixture(params=["http", "handle"])
async def client(
    request: pytest.FixtureRequest,
    service: FakeService,
    handle: FakeHandle,
    waits_s: list[float],
) -> AsyncGenerator[JustitiaClient]:
    """A client on the service, once over each transport."""

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)

    transport: Transport
    if request.param == "http":
        transport = HttpTransport("http://service", transport=service.http())
    else:
        transport = HandleTransport(handle)
    async with JustitiaClient(transport, sleep=sleep) as client:
        yield client
