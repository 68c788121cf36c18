"""Rules of every console page: all parts are accessible, and no parts overlap.

Each page of every test also obeys its policy, asks no other host and stores no key:
`viewer.Viewer.check`.
"""

from pathlib import Path
from typing import Any, Literal

import axe_playwright_python
import pytest
from playwright.async_api import Page, expect

from tests.harness.console.made_up import MadeUp
from tests.harness.console.stand_in import PAGE, StandIn
from tests.integration.console.viewer import Viewers
from tests.pages import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")

_AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
_VIEWS = {
    "now": "",
    "shares": "?view=shares",
    "predictor": "?view=predictor",
    "what-if": "?view=what-if",
    "application": "?application=acme%2Freports%7Crun-12",
}
_BEYOND = """() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => element.closest(".scroll, .views, .hidden-text, .skip");
  return [...document.querySelectorAll("#console *")]
    .filter((one) => !scrolls(one) && one.getBoundingClientRect().right > wide + 0.5)
    .map((one) => one.outerHTML.slice(0, 80));
}"""
"""JavaScript that lists page elements outside the window, except in boxes that scroll."""
_OVERLAPS = """() => {
  const texts = [...document.querySelectorAll("#console *")].filter((one) =>
    [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) &&
    !one.closest(".hidden-text, .skip, .tick, .card, option, dialog, noscript, .uplot, caption"));
  const boxes = texts.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return [one, range.getBoundingClientRect()];
  }).filter(([, box]) => box.width && box.height);
  const found = [];
  for (const [index, [one, a]] of boxes.entries()) {
    for (const [other, b] of boxes.slice(index + 1)) {
      if (one.contains(other) || other.contains(one)) continue;
      if (one.closest(".top") || other.closest(".top")) continue;
      const clipped = (element) => element.classList.contains("clip") || element.closest(".clip");
      if (clipped(one) || clipped(other)) continue;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push(`${one.textContent} / ${other.textContent}`);
    }
  }
  return found;
}"""
"""JavaScript that lists pairs of texts that cover each other."""


_FULL_LANE = """async () => {
  const { LaneLayout } = await import("./app/lane_layout.js");
  const layout = new LaneLayout();
  const [open, capacity] = [[], 1000];
  let [seed, free] = [1, capacity];
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const start = (id, at) => {
    const kv = 1 + Math.floor(random() * Math.min(300, free));
    const application = `a${Math.floor(random() * 30)}`;
    open.push({ id, replica: "r", application, kind: "run", start: at, end: null, kv });
    free -= kv;
    layout.take([{ ...open.at(-1) }], capacity);
  };
  const end = (at) => {
    const [bar] = open.splice(Math.floor(random() * open.length), 1);
    free += bar.kv;
    layout.take([{ ...bar, end: at }], capacity);
  };
  for (let time = 0; time < 400; time += 1) {
    while (open.length && (random() < 0.3 || free < 50)) end(time);
    start(time, time);
  }
  const boxes = layout.pieces.map(({ bar, start, end, y }) => [start, end ?? 1e9, y, y + bar.kv]);
  let covered = boxes.filter(([, , , high]) => high > capacity).length;
  boxes.forEach(([from, to, low, high], index) => {
    covered += boxes.slice(index + 1)
      .filter(([a, b, c, d]) => a < to && from < b && c < high && low < d).length;
  });
  return { covered, moved: boxes.length - 400 };
}"""
"""JavaScript that draws 400 timeline bars in random order, and counts those that overlap or move
when drawn again.
"""


async def axe_violations(page: Page) -> list[str]:
    """Return the accessibility rules of axe-core that the page breaks, each with one element."""
    await page.evaluate(f"() => {{ if (!window.axe) {{ {_AXE} }} }}")
    told: dict[str, Any] = await page.evaluate(
        "() => axe.run(document, {resultTypes: ['violations']})"
    )
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]}" for one in told["violations"]]


async def prepare_view(page: Page, view: str) -> None:
    """Wait until a view shows figures, and open as many of its parts as possible."""
    if view == "application":
        await expect(page.get_by_label("Cost", exact=True)).to_be_visible()
        return
    await expect(page.get_by_label("State of the queue")).to_be_visible()
    if view == "what-if":
        await page.get_by_label("Policy").select_option("fcfs")
        await page.get_by_role("button", name="Estimate").click()
        await expect(page.get_by_text("an estimate", exact=True)).to_be_visible()


@pytest.mark.parametrize("view", _VIEWS)
async def test_accessibility_check_finds_nothing_in_light_and_dark_charts_and_tables(
    viewers: Viewers, stand_in: StandIn, view: str
) -> None:
    page = (await viewers.open(stand_in.url, _VIEWS[view])).page
    await prepare_view(page, view)

    assert [] == await axe_violations(page)
    await page.get_by_role("button", name="Use the dark theme").click()
    assert [] == await axe_violations(page)
    for toggle in await page.get_by_role("button", name="show as table").all():
        await toggle.click()
    assert [] == await axe_violations(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessibility_check_finds_nothing_in_dialogs_and_notices(
    viewers: Viewers, stand_in: StandIn, scheme: Literal["light", "dark"]
) -> None:
    viewer = await viewers.open(stand_in.url, key="wrong-key", scheme=scheme)
    page = viewer.page
    await expect(page.get_by_role("alert")).to_be_visible()
    assert [] == await axe_violations(page)

    await viewer.give_key("operator-key")
    cancel = page.get_by_role("button", name="Cancel run-4", exact=True)
    await expect(cancel).to_be_visible()
    stand_in.trouble.add("llama")
    await cancel.click()
    stand_in.tick()
    await expect(page.get_by_text("No figures of llama")).to_be_visible()

    assert [] == await axe_violations(page)


@pytest.mark.parametrize("size", [(1280, 800), (800, 900)], ids=["1280", "800"])
async def test_page_elements_neither_overlap_nor_leave_the_window(
    viewers: Viewers, stand_in: StandIn, size: tuple[int, int]
) -> None:
    page = (await viewers.open(stand_in.url, size=size)).page
    for view, query in _VIEWS.items():
        await page.evaluate("(query) => { history.pushState(null, '', query || '.'); }", query)
        await page.evaluate("() => dispatchEvent(new PopStateEvent('popstate'))")
        await prepare_view(page, view)
        assert (view, []) == (view, await page.evaluate(_BEYOND))
        assert (view, []) == (view, await page.evaluate(_OVERLAPS))
        assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


async def test_page_theme_follows_the_system_until_the_user_switches_it(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url, scheme="dark")).page
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(ground)
    await page.emulate_media(color_scheme="light")
    await page.wait_for_function(f"(dark) => ({ground})() !== dark", arg=dark)
    light = await page.evaluate(ground)

    assert dark != light
    await page.get_by_role("button", name="Use the dark theme").click()
    assert dark == await page.evaluate(ground)
    await page.reload()
    assert dark == await page.evaluate(ground)


async def test_keyboard_reaches_every_control_with_a_visible_focus(
    viewers: Viewers, stand_in: StandIn
) -> None:
    """The Tab key goes from the top through links, switches, filters, lanes and rows in order."""
    page = (await viewers.open(stand_in.url)).page
    await expect(page.get_by_label("Lanes", exact=True)).to_be_visible()
    await expect(page.locator("#content")).to_be_focused()
    await page.locator(".skip").focus()
    await page.keyboard.press("Shift+Tab")
    seen = []
    for _ in range(24):
        await page.keyboard.press("Tab")
        seen.append(
            await page.evaluate(
                "() => { const one = document.activeElement;"
                " return one.getAttribute('aria-label') || one.textContent.trim().slice(0, 20); }"
            )
        )
        outline = "() => getComputedStyle(document.activeElement).outlineStyle"
        assert "none" != await page.evaluate(outline), seen

    wanted = (
        *("Skip to the figures", "justitia_ray", "Now", "Shares", "Predictor", "What if"),
        *("All tenants", "Use the dark theme"),
    )
    assert tuple(seen[: len(wanted)]) == wanted
    assert "Text in id, tenant or class" in seen
    assert "Lanes: show as table" in seen
    assert any(name.startswith("Lanes: arrow keys") for name in seen)
    assert "run-0" in seen
    assert "Cancel run-0" in seen


async def test_escape_closes_a_dialog_and_restores_the_focus(
    viewers: Viewers, stand_in: StandIn
) -> None:
    page = (await viewers.open(stand_in.url)).page
    button = page.get_by_role("button", name="Cancel run-8", exact=True)
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()

    await page.keyboard.press("Escape")

    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(button).to_be_focused()
    assert stand_in.cancelled == []


async def test_timeline_lanes_move_between_frames_unless_reduced_motion_is_set(
    viewers: Viewers, stand_in: StandIn
) -> None:
    copies = """() => new Promise((resolve) => {
      let copied = 0;
      const draw = CanvasRenderingContext2D.prototype.drawImage;
      CanvasRenderingContext2D.prototype.drawImage = function (...given) {
        copied += 1;
        return draw.apply(this, given);
      };
      setTimeout(() => resolve(copied), 400);
    })"""
    moving = (await viewers.open(stand_in.url, motion="no-preference")).page
    await expect(moving.locator("canvas")).to_be_visible()
    still = (await viewers.open(stand_in.url, motion="reduce")).page
    await expect(still.locator("canvas")).to_be_visible()

    assert 2 <= await moving.evaluate(copies)
    assert 0 == await still.evaluate(copies)


async def test_bars_of_a_timeline_lane_never_overlap(viewers: Viewers) -> None:
    """Overlaps are most likely in a lane that is full of bars."""
    models = (MadeUp(replicas=2, applications=80),)
    with StandIn(page=ROOT / PAGE, models=models, interval_s=None) as stand_in:
        page = (await viewers.open(stand_in.url)).page
        covered = await page.evaluate(_FULL_LANE)

    assert covered["covered"] == 0
    assert covered["moved"] > 0
