"""The application that the tests of the serving path share."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

if TYPE_CHECKING:
    from tests.integration.service import Service, Serving


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(serving: "Serving") -> "Service":
    """The application that all tests share; each leaves it idle, and kills nothing in it."""
    service = serving.service("shared", ingress={"keepalive_s": 0.2})
    await service.deploy()
    return service


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: "Service") -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the shared application."""
    async with service.http() as client:
        yield client
