"""Applications shared by tests of the serving path; a module may define its own `service`."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

if TYPE_CHECKING:
    from tests.harness.service import Service, Serving

MOST_APPLICATIONS = 100
MOST_OUTSTANDING = 100


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(serving: "Serving") -> "Service":
    """Application shared by all tests; each test leaves it idle and kills nothing in it."""
    from tests.harness.service import PROBED

    service = serving.service("shared", import_path=PROBED, ingress={"keepalive_s": 0.2})
    await service.deploy()
    return service


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def limited(serving: "Serving") -> "Service":
    """Application with one fast engine, and limits low enough for a test to reach."""
    from tests.harness.service import PROBED

    service = serving.service(
        "limited",
        import_path=PROBED,
        replicas=1,
        fake={"iteration_s": 0.001},
        scheduler={"max_open_applications": MOST_APPLICATIONS},
        ingress={"max_body_bytes": 1_000_000, "max_outstanding": MOST_OUTSTANDING},
    )
    await service.deploy()
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: "Service") -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of the module's application, which must be idle again after the test."""
    async with service.http() as client:
        yield client
    await service.until_idle()
