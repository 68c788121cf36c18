"""A browser, and a stand-in for the service whose frames the tests send one by one."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.debian_programs import debian_program
from tests.harness.console.stand_in import PAGE, StandIn
from tests.integration.console.viewer import Viewers
from tests.pages import ROOT


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, started once for all tests of the page."""
    program = debian_program("chromium", "chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def viewers(browser: Browser) -> AsyncIterator[Viewers]:
    """Pages of the console; at the end each must have kept the rules that hold for every page."""
    opened = Viewers(browser)
    yield opened
    await opened.end()


@pytest.fixture
def service() -> Iterator[StandIn]:
    """Stand-in for the service: a frame comes only when the test sends it."""
    with StandIn(page=ROOT / PAGE, interval_s=None) as stand_in:
        yield stand_in
