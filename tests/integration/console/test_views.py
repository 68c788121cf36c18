"""Figures in each view of the console, for a service whose frames are known."""

import pytest
from playwright.async_api import Locator, Position, expect

from tests.harness.console.made_up import MadeUp
from tests.harness.console.stand_in import PAGE, StandIn
from tests.integration.console.viewer import Viewers
from tests.pages import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")


def strip_tile(of: Locator, name: str) -> Locator:
    """Return the tile with this title in the strip at the top of the console."""
    return of.locator(".tile").filter(has=of.page.locator("dt", has_text=name))


async def test_console_header_shows_state_waits_replicas_memory_store_and_policy(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    strip = page.get_by_label("State of the queue")

    await expect(strip_tile(strip, "State")).to_contain_text("ready40 applications live")
    # Waits are 10 + n % 7 + 30 seconds for each fourth of 40 applications.
    await expect(strip_tile(strip, "Waiting")).to_contain_text("43 s p50p95 46 s · oldest 46 s")
    await expect(strip_tile(strip, "Drain time")).to_contain_text("42 s10 in the queue")
    await expect(strip_tile(strip, "Replicas")).to_contain_text("4 up · 5 wanted1 draining")
    await expect(strip_tile(strip, "KV memory")).to_contain_text("61 % of 400 k tokens")
    await expect(strip_tile(strip, "KV memory")).to_contain_text(
        "used 244 k · held 48.0 k · free 108 k"
    )
    await expect(strip_tile(strip, "Redis")).to_contain_text("connectedsaved 0.3 s ago · async")
    await expect(strip_tile(strip, "Policy")).to_contain_text("justitia-guarded")


async def test_queue_view_shows_why_and_how_long_each_application_waits(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    rows = page.get_by_label("Queue", exact=True).get_by_role("row")

    await expect(rows).to_have_count(11)
    first, second = rows.nth(1), rows.nth(2)
    for text in (
        *("run-0", "acme/search/alice", "it is first, and fits on no replica now"),
        *("would help: a replica with free KV memory", "1.0 – 4.0 s", "ends in 7.0 – 16 s"),
    ):
        await expect(first).to_contain_text(text)
    await expect(first.get_by_role("cell").nth(6)).to_have_text("6.0 s")
    await expect(second).to_contain_text("other applications come first")
    await expect(page.get_by_label("Live applications by reason")).to_contain_text("30 running")


async def test_new_console_data_replaces_the_old_figures(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    waited = (
        page.get_by_label("Queue", exact=True).get_by_role("row").nth(1).get_by_role("cell").nth(4)
    )
    await expect(waited).to_contain_text("40 s")

    stand_in.tick(5)

    await expect(waited).to_contain_text("45 s")


async def test_timeline_table_lists_running_held_and_planned_inferences(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    lanes = page.get_by_label("Lanes", exact=True)
    toggle = page.get_by_role("button", name="Lanes: show as table")

    await toggle.click()

    await expect(toggle).to_have_attribute("aria-pressed", "true")
    rows = lanes.get_by_role("row")
    # Three of four applications run or hold their context; the others are planned.
    await expect(rows).to_have_count(1 + 30 + 10)
    await expect(rows.filter(has_text="planned")).to_have_count(10)
    # At second 30, applications run that arrived 0 to 5 s after a multiple of nine before 30.
    running = sum((30 - n % 9) % 9 < 6 for n in range(40) if n % 4)
    await expect(rows.filter(has_text="running")).to_have_count(running)
    await expect(rows.filter(has_text="context held")).to_have_count(30 - running)
    await toggle.click()
    await expect(lanes.locator("canvas")).to_be_visible()


async def test_timeline_bar_names_its_application_on_hover_and_opens_it_on_click(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    canvas = page.locator("canvas")
    box = await canvas.bounding_box()
    assert box is not None
    # "Now" is at 72 % of the width; the lowest bar of the second lane ends just before it.
    place: Position = {"x": box["width"] * 0.72 - 6, "y": 84 + 4 + 84 - 1}

    await canvas.hover(position=place)

    card = page.locator(".card")
    await expect(card).to_contain_text("replica-1")
    name = (await card.locator("strong").inner_text()).split()[0]
    await canvas.click(position=place)
    await expect(page.get_by_role("heading", name=name)).to_be_visible()


async def test_timeline_lanes_can_be_read_by_keyboard(viewers: Viewers, stand_in: StandIn) -> None:
    page = (await viewers.open(stand_in.url)).page
    await page.get_by_role("application").focus()

    await page.keyboard.press("ArrowDown")
    told = page.locator("#lanes-chosen")
    await expect(told).to_contain_text("replica-1")
    first = await told.inner_text()
    await page.keyboard.press("ArrowDown")
    await expect(told).not_to_have_text(first)
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", name=first.split()[0], exact=True)).to_be_visible()


async def test_view_of_shares_shows_the_tenant_tree_with_quotas_and_history(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, "?view=shares")).page
    tree = page.get_by_label("Tenants", exact=True)

    globex = tree.get_by_role("row").filter(has_text="globex")
    await expect(globex).to_contain_text("50 % 500 M of 1.0 G token·iterations")
    await expect(globex).to_contain_text("per hour, again full in 20 min")
    acme = tree.get_by_role("row").nth(1)
    await expect(acme.get_by_role("cell").nth(3)).to_have_text("66 %")
    await expect(acme.get_by_role("cell").nth(4)).to_have_text("60 %")
    chart = page.get_by_role("img", name="Used shares of the KV memory")
    await expect(chart).to_have_attribute(
        "aria-label",
        "Used shares of the KV memory over time; now acme 66 %, globex 22 %, initech 22 %",
    )
    await page.get_by_role("button", name="Used shares: show as table").click()
    past = page.get_by_label("Used shares", exact=True).get_by_role("row")
    # Shares are recorded every five seconds, so seven of them exist at second 30.
    await expect(past).to_have_count(1 + 7)
    await expect(past.nth(1)).to_contain_text("0.0 s66 %22 %22 %")


async def test_application_view_shows_reason_outlook_timeline_and_costs(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await page.get_by_role("link", name="run-12").click()

    await expect(page.get_by_role("heading", name="run-12")).to_be_visible()
    why = page.get_by_label("Why and when")
    await expect(why).to_contain_text("It waits: it is first, and fits on no replica now.")
    await expect(why).to_contain_text("Starts in1.0 – 4.0 sp10 to p90")
    cost = page.get_by_label("Cost", exact=True)
    await expect(cost).to_contain_text("Predicted cost4.0 M")
    await expect(cost).to_contain_text("Cost so far3.1 M78 % of the predicted")
    await expect(cost).to_contain_text("of them cached5,70048 % found in the engine's cache")
    await expect(cost).to_contain_text("computed6,300not found in it")
    await page.get_by_role("button", name="Timeline: show as table").click()
    second = page.get_by_label("Timeline", exact=True).get_by_role("row").nth(2)
    # Expected: 2 s at a tool, 1 s in the queue, 1.5 s in prefill, 4.5 s in decode.
    for text in ("finished", "1.0 s", "1.5 s", "4.5 s", "2.0 s", "4,000", "1,900"):
        await expect(second).to_contain_text(text)
    await page.go_back()
    await expect(page.get_by_label("Queue", exact=True)).to_be_visible()


async def test_predictor_view_shows_the_error_of_each_class(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, "?view=predictor")).page

    rows = page.get_by_label("Predictor", exact=True).get_by_role("row")
    learned = rows.filter(has_text="react_fever")
    for text in ("320", "4.2 M", "network, version 2 pinned", "25 %", "200", "2027-01-15 07:30"):
        await expect(learned).to_contain_text(text)
    await expect(rows.filter(has_text="code_feedback")).to_contain_text("mean of the class")


async def test_what_if_view_shows_the_estimated_change_for_each_tenant(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, "?view=what-if")).page
    ask = page.get_by_role("button", name="Estimate")
    await expect(ask).to_be_disabled()

    await page.get_by_label("Policy").select_option("fcfs")
    await page.get_by_label("Replicas").fill("6")
    await page.get_by_label("Weight of globex").fill("3")
    await ask.click()

    answer = page.get_by_label("Estimate", exact=True)
    await expect(answer).to_contain_text("an estimate")
    await expect(answer).to_contain_text(
        "With fcfs, 6 replicas, globex at weight 3 the mean completion time would be 25 % shorter"
        " than with justitia-guarded, 4 replicas; 90 % of the applications would end no later."
    )
    await expect(answer).to_contain_text("42 s in truth and is 40 s simulated unchanged (−5 %)")
    await page.get_by_role("button", name="Estimate: show as table").click()
    row = answer.get_by_role("row").filter(has_text="acme/reports")
    await expect(row).to_contain_text("40 s → 30 s−25 %")


async def test_tenant_sees_only_its_own_applications(viewers: Viewers, stand_in: StandIn) -> None:
    viewer = await viewers.open(stand_in.url, key="acme-key")
    page = viewer.page

    await expect(page.get_by_role("button", name="acme", exact=True)).to_be_visible()
    queue = page.get_by_label("Queue", exact=True)
    await expect(queue.get_by_role("row")).to_have_count(1 + 6)
    await expect(queue).to_contain_text("others: 16 applications, 4 calls wait, 12 run")
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    views = page.get_by_label("Views").get_by_role("link")
    await expect(views).to_have_text(["Now", "Shares"])
    assert "globex" not in await page.locator("#console").inner_text()
    await page.get_by_role("button", name="Lanes: show as table").click()
    await expect(page.get_by_label("Lanes", exact=True).get_by_role("row")).to_have_count(1 + 24)
    assert "initech" not in await page.locator("#console").inner_text()


async def test_console_page_keeps_filters_in_its_address(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    rows = page.get_by_label("Queue", exact=True).get_by_role("row")
    await page.get_by_role("combobox", name="Tenant").select_option("acme/search")
    await expect(rows).to_have_count(1 + 4)
    await page.get_by_role("searchbox").fill("bob")
    await expect(rows).to_have_count(1 + 2)
    address = page.url

    assert "tenant=acme%2Fsearch" in address
    assert "text=bob" in address
    again = (await viewers.open(stand_in.url, f"?{address.partition('?')[2]}")).page
    await expect(again.get_by_label("Queue", exact=True).get_by_role("row")).to_have_count(1 + 2)
    await expect(again.get_by_role("searchbox")).to_have_value("bob")
    await again.get_by_role("button", name="Clear filters").click()
    await expect(again.get_by_label("Queue", exact=True).get_by_role("row")).to_have_count(1 + 10)


async def test_console_page_replaces_unknown_parts_of_its_address_by_defaults(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, "?view=none&past=long&model=none&other=1")).page

    await expect(page.get_by_label("Past")).to_have_value("120")
    await expect(page.get_by_label("Queue", exact=True).get_by_role("row")).to_have_count(1 + 10)


async def test_user_opens_an_application_outside_the_table_by_typing_its_id(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    search = page.get_by_role("searchbox")

    await search.fill("run-13")
    await expect(page.get_by_label("Queue", exact=True)).to_contain_text(
        "Enter opens the application"
    )
    await search.press("Enter")

    await expect(page.get_by_role("heading", name="run-13")).to_be_visible()
    await expect(page.get_by_label("Why and when")).to_contain_text("1 call of it runs now")


async def test_console_shows_separate_figures_for_each_model(viewers: Viewers) -> None:
    models = (MadeUp(), MadeUp("qwen", replicas=2, applications=8, epoch=3))
    with StandIn(page=ROOT / PAGE, models=models, interval_s=None) as stand_in:
        page = (await viewers.open(stand_in.url)).page
        names = page.locator(".lane-names li")
        await expect(names).to_have_count(4)

        await page.get_by_label("Model").select_option("qwen")

        await expect(names).to_have_count(2)
        assert "model=qwen" in page.url
        await expect(page.get_by_label("State of the queue")).to_contain_text("8 applications live")


async def test_operator_cancels_an_application_after_a_confirmation(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    await page.get_by_role("button", name="Cancel run-4", exact=True).click()
    await page.get_by_role("button", name="Keep it").click()
    assert stand_in.cancelled == []

    await page.get_by_role("button", name="Cancel run-4", exact=True).click()
    question = page.get_by_role("dialog", name="Cancel run-4?")
    await question.get_by_role("button", name="Cancel the application").click()

    await expect(page.get_by_text("run-4 is cancelled.")).to_be_visible()
    assert stand_in.cancelled == ["initech|run-4"]
