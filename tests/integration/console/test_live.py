"""The console page on a running service, behind the route prefix of its application."""

import asyncio

import httpx
import pytest
from playwright.async_api import expect

from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import ENDLESS, MODEL, Service
from tests.integration.console.viewer import Viewers

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_console_page_shows_opens_and_cancels_a_running_application(
    viewers: Viewers, service: Service, http: httpx.AsyncClient
) -> None:
    named = {"x-justitia-application": "seen", "x-justitia-tenant": "watched/team"}
    body = completion(max_tokens=ENDLESS)
    call = asyncio.create_task(http.post(COMPLETIONS, json=body, headers=named))
    await service.until(lambda status: status["in_flight"] == 1, "the call runs")

    # Without access control, the console page asks for no key.
    page = (await viewers.open(service.url, key=None)).page

    strip = page.get_by_label("State of the queue")
    await expect(strip).to_contain_text("ready", timeout=20_000)
    await expect(strip).to_contain_text("1 application live")
    await page.get_by_role("button", name="Lanes: show as table").click()
    row = page.get_by_label("Lanes", exact=True).get_by_role("row").filter(has_text="seen")
    await expect(row).to_contain_text("running")
    await expect(row).to_contain_text("watched/team")
    await row.get_by_role("link", name="seen").click()
    await expect(page.get_by_role("heading", name="seen")).to_be_visible()
    await expect(page.get_by_label("Why and when")).to_contain_text("1 call of it runs now")
    await page.get_by_role("button", name="Cancel seen").click()
    await page.get_by_role("button", name="Cancel the application").click()
    await expect(page.get_by_text("seen is cancelled.")).to_be_visible()
    assert (await call).status_code >= 400


async def test_console_files_are_compressed_and_have_a_content_security_policy(
    http: httpx.AsyncClient,
) -> None:
    page = await http.get("/console/")
    script = await http.get("/console/app/main.js")

    for answer in (page, script):
        assert answer.status_code == 200
        assert answer.headers["content-encoding"] == "gzip"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert script.headers["content-type"].startswith("text/javascript")
    again = await http.get(
        "/console/app/main.js", headers={"if-none-match": script.headers["etag"]}
    )
    assert again.status_code == 304


async def test_console_views_show_the_figures_of_a_running_service(
    viewers: Viewers, service: Service
) -> None:
    page = (await viewers.open(service.url, key=None)).page
    await expect(page.get_by_label("Queue", exact=True)).to_contain_text(
        "Nothing waits.", timeout=20_000
    )

    await page.get_by_role("link", name="Shares").click()
    await expect(page.get_by_label("Tenants", exact=True)).to_be_visible()
    await page.get_by_role("link", name="Predictor").click()
    await expect(page.get_by_label("Predictor", exact=True)).to_be_visible(timeout=20_000)
    await page.get_by_role("link", name="What if").click()
    await expect(page.get_by_role("button", name="Estimate")).to_be_visible()
    await expect(page.get_by_role("heading", name=f"Console of {MODEL}")).to_be_attached()
