"""Applications that tests of the serving path share; a module may define a `service` of its own."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

from tests.debian_programs import debian_program

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.harness.service import Service, Serving
    from tests.integration.console.viewer import Viewers

MOST_APPLICATIONS = 100
MOST_OUTSTANDING = 100


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(serving: "Serving") -> "Service":
    """Application that all tests share; each test leaves it idle with all processes alive."""
    from tests.harness.service import PROBED

    service = serving.service("shared", import_path=PROBED, ingress={"keepalive_s": 0.2})
    await service.deploy()
    return service


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def limited(serving: "Serving") -> "Service":
    """Application with one fast engine, and with limits low enough for a test to reach."""
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
    """HTTP client of the module's application, which the test must leave idle."""
    async with service.http() as client:
        yield client
    await service.until_idle()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """Chromium, started once for all tests of the console page."""
    from playwright.async_api import async_playwright

    program = debian_program("chromium", "chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def viewers(browser: "Browser") -> AsyncIterator["Viewers"]:
    """Opens pages of the console, and checks at the end that none had an error."""
    from tests.integration.console.viewer import Viewers

    opened = Viewers(browser)
    yield opened
    await opened.end()
