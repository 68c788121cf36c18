"""Pages of the console in a browser, and the rules that hold for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from tests.harness.console.stand_in import OPERATOR_KEY

_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`violated: ${event.violatedDirective} by ${event.blockedURI || event.sample}`));
"""
_STORED = """() => JSON.stringify([
  {...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state, name,
])"""
_PENDING_MS = 30_000
expect.set_options(timeout=_PENDING_MS)


@dataclass
class Viewer:
    """An open page of the console, with a record of its requests and errors."""

    page: Page
    context: BrowserContext
    key: str | None
    requests: list[Request] = field(default_factory=list)
    messages: list[ConsoleMessage] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def give_key(self, key: str) -> None:
        """Type a key into the dialog that asks for it, and submit it."""
        self.key = key
        await self.page.get_by_role("textbox", name="Key", exact=True).fill(key)
        await self.page.get_by_role("button", name="Use this key").click()

    async def check(self) -> None:
        """Check that the page had no error, obeyed its content policy, and kept its key private."""
        told = [one.text for one in self.messages if one.type in ("error", "warning")]
        # The browser itself reports answers such as 401, which tests provoke.
        unexpected = [text for text in told if "Failed to load resource" not in text]
        assert (self.errors, unexpected) == ([], [])
        hosts = {urlsplit(request.url).netloc for request in self.requests}
        assert hosts == {urlsplit(self.page.url).netloc}
        if self.key:
            stored = await self.page.evaluate(_STORED)
            assert self.key not in stored
            assert [] == [one.url for one in self.requests if self.key in one.url]
            assert [] == await self.context.cookies()


class Viewers:
    """Opens console pages in separate browser contexts, and checks all of them at the end."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: list[Viewer] = []

    async def open(
        self,
        url: str,
        query: str = "",
        key: str | None = OPERATOR_KEY,
        size: Sequence[int] = (1280, 800),
        scheme: Literal["light", "dark"] = "light",
        motion: Literal["reduce", "no-preference"] = "reduce",
        path: str = "/console/",
        **options: Any,
    ) -> Viewer:
        """Open the console page, and give it a key.

        Args:
            url: URL of the service.
            query: Query of the address, with its question mark.
            key: Key to give once the page asks for one; None: give none.
            size: Width and height of the window.
            scheme: The system's colours, `light` or `dark`.
            motion: The system's choice, `reduce` or `no-preference`; lanes that move take CPU.
            path: Path of the page.
            options: More for the browser's context.
        """
        context = await self._browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            reduced_motion=motion,
            **options,
        )
        context.set_default_timeout(_PENDING_MS)
        await context.add_init_script(_REPORT_VIOLATIONS)
        page = await context.new_page()
        viewer = Viewer(page, context, None)
        page.on("request", lambda request: viewer.requests.append(request))
        page.on("console", lambda message: viewer.messages.append(message))
        page.on("pageerror", lambda error: viewer.errors.append(str(error)))
        self._opened.append(viewer)
        await page.goto(f"{url}{path}{query}")
        if key is not None:
            await viewer.give_key(key)
        return viewer

    async def end(self) -> None:
        """Check and close all pages."""
        for viewer in self._opened:
            await viewer.check()
        for viewer in self._opened:
            await viewer.context.close()
