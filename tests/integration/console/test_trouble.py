"""What the console page shows for each error, and how it recovers without a reload."""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.eventually import eventually
from tests.harness.console.stand_in import StandIn
from tests.integration.console.viewer import Viewers

pytestmark = pytest.mark.asyncio(loop_scope="session")


def first_waiting_time(page: Page) -> Locator:
    return (
        page.get_by_label("Queue", exact=True).get_by_role("row").nth(1).get_by_role("cell").nth(4)
    )


async def test_console_page_without_a_key_asks_for_a_key(
    viewers: Viewers, stand_in: StandIn
) -> None:
    viewer = await viewers.open(stand_in.url, key=None)
    dialog = viewer.page.get_by_role("dialog", name="API key")

    await expect(dialog).to_contain_text("The service asks for a key.")
    await expect(dialog.get_by_role("textbox")).to_be_focused()
    assert stand_in.authorizations == [None]


async def test_console_page_explains_a_wrong_key_and_accepts_another_key(
    viewers: Viewers, stand_in: StandIn
) -> None:
    viewer = await viewers.open(stand_in.url, key="wrong-key")
    dialog = viewer.page.get_by_role("dialog", name="API key")
    await expect(dialog).to_contain_text("The service does not accept this key")

    await viewer.give_key("operator-key")

    await expect(viewer.page.get_by_label("Lanes", exact=True)).to_be_visible()
    assert stand_in.authorizations == [None, "Bearer wrong-key", "Bearer operator-key"]


async def test_console_page_names_the_scope_that_the_key_lacks(
    viewers: Viewers, stand_in: StandIn
) -> None:
    stand_in.refused = (403, "this credential lacks the scope 'own'")

    page = (await viewers.open(stand_in.url)).page

    dialog = page.get_by_role("dialog", name="API key")
    await expect(dialog).to_contain_text("This key may not do that.")
    await expect(dialog).to_contain_text("This credential lacks the scope 'own'.")


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (429, "64 viewers are connected", "The service serves no more viewers now. 64 viewers are"),
        (503, "no ingress answers", "The service cannot answer now. No ingress answers."),
        (502, "", "The service answered 502."),
    ],
)
async def test_refused_console_viewer_tries_again(
    viewers: Viewers, stand_in: StandIn, status: int, message: str, told: str
) -> None:
    stand_in.refused = (status, message)
    page = (await viewers.open(stand_in.url)).page
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text(told)
    await expect(alert).to_contain_text("Next try in 5 s.")

    stand_in.refused = None
    await alert.get_by_role("button", name="Try now").click()

    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    await expect(alert).to_have_count(0)


async def test_console_page_resumes_when_a_dead_scheduler_has_restarted(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()

    stand_in.trouble.add("llama")
    stand_in.tick(2)

    notice = page.get_by_role("status").filter(has_text="No figures of llama for")
    await expect(notice).to_contain_text("the scheduler is being started again")
    await expect(notice).to_contain_text("The page goes on when the scheduler answers")
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    stand_in.trouble.clear()
    stand_in.tick()
    await expect(notice).to_have_count(0)
    await expect(first_waiting_time(page)).to_contain_text("43 s")


async def test_console_reports_a_scheduler_that_is_dead_at_the_first_message(
    viewers: Viewers, stand_in: StandIn
) -> None:
    stand_in.trouble.add("llama")

    page = (await viewers.open(stand_in.url)).page

    await expect(page.get_by_role("status")).to_contain_text("No figures of llama")


async def test_console_reopens_a_lost_connection_and_keeps_the_last_figures(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()

    stand_in.cut_streams()

    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("The service does not answer.")
    await expect(alert).to_contain_text("The figures below are the last ones.")
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    await eventually(lambda: stand_in.viewers == 1, "the page has connected again")
    stand_in.tick()
    await expect(alert).to_have_count(0)
    await expect(first_waiting_time(page)).to_contain_text("41 s")


async def test_console_abandons_a_silent_stream(viewers: Viewers, stand_in: StandIn) -> None:
    page = (await viewers.open(stand_in.url, key=None)).page
    await page.clock.install()
    await page.reload()
    await page.get_by_role("textbox", name="Key", exact=True).fill("operator-key")
    await page.get_by_role("button", name="Use this key").click()
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    before = len(stand_in.authorizations)

    await page.clock.fast_forward(9_000)
    await expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
    await page.clock.fast_forward(2_000)

    await eventually(lambda: len(stand_in.authorizations) > before, "the page has connected again")


async def test_console_silently_reopens_a_stream_that_ends_at_its_time_limit(
    viewers: Viewers, stand_in: StandIn
) -> None:
    """The service ends each console stream after a minute; the page must stay as it is."""
    places = """async () => {
      const { feed } = await import("./app/feed.js");
      const pieces = [...feed.value.lanes.lanes.values()].flatMap((lane) => lane.pieces);
      return pieces.map(({ bar, start, y }) => [bar.id, start, y]).sort(([a], [b]) => a - b);
    }"""
    notices = """() => {
      window.noticed = 0;
      new MutationObserver(() => { window.noticed += document.querySelectorAll(".notice").length; })
        .observe(document.body, { childList: true, subtree: true });
    }"""
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    before = await page.evaluate(places)
    await page.evaluate(notices)

    stand_in.end_streams("limit", 0.0)

    await eventually(lambda: len(stand_in.authorizations) == 3, "the page has connected again")
    stand_in.tick()
    await expect(first_waiting_time(page)).to_contain_text("41 s")
    assert await page.evaluate("() => window.noticed") == 0
    after = await page.evaluate(places)
    assert len(before) > 100
    assert [] == [one for one in before if one not in after]


async def test_console_reopens_its_stream_at_the_time_that_a_stopping_service_names(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()

    stand_in.end_streams("leaving", 0.1)

    await eventually(lambda: len(stand_in.authorizations) == 3, "the page has connected again")
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_console_clears_figures_and_asks_for_another_key_after_a_revocation(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()

    stand_in.end_streams("invalid_api_key", None)

    await expect(page.get_by_role("dialog", name="API key")).to_be_visible()
    await expect(page.get_by_label("Lanes", exact=True)).to_have_count(0)


async def test_console_reports_an_unknown_application(viewers: Viewers, stand_in: StandIn) -> None:
    page = (await viewers.open(stand_in.url, "?application=acme%7Cnone")).page

    await expect(page.get_by_role("status")).to_contain_text("No such application is open")


async def test_console_keeps_the_last_figures_of_an_ended_application(
    viewers: Viewers, stand_in: StandIn
) -> None:
    viewer = await viewers.open(stand_in.url, "?application=initech%7Crun-4")
    page = viewer.page
    await expect(page.get_by_label("Cost", exact=True)).to_be_visible()

    await page.get_by_role("button", name="Cancel run-4").click()
    await page.get_by_role("button", name="Cancel the application").click()

    ended = page.get_by_text("The application has ended and is no longer kept")
    await expect(ended).to_be_visible()
    await expect(page.get_by_label("Cost", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (
            400,
            "weights: 'nobody' is no tenant",
            "The service answered 400. Weights: 'nobody' is no",
        ),
        (429, "one is made", "Another estimate is being made"),
        (503, "nothing is recorded yet", "The service cannot answer now. Nothing is recorded yet."),
        (504, "the limit is reached", "The estimate took too long: ask for fewer minutes."),
    ],
)
async def test_console_reports_a_refused_what_if_estimate(
    viewers: Viewers, stand_in: StandIn, status: int, message: str, told: str
) -> None:
    stand_in.what_if_error = (status, message)
    page = (await viewers.open(stand_in.url, "?view=what-if")).page

    await page.get_by_label("Policy").select_option("vtc")
    await page.get_by_role("button", name="Estimate").click()

    await expect(page.get_by_role("status")).to_contain_text(told)
    await expect(page.get_by_role("button", name="Estimate")).to_be_enabled()


async def test_tenant_sees_that_a_console_view_is_for_operators(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, "?view=what-if", key="acme-key")).page

    await expect(page.get_by_role("status")).to_contain_text("Only a key with the scope “operate”")
