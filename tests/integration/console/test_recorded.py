"""The console page on a recorded run shows the figures that the engines themselves counted."""

import re

import pytest
from playwright.async_api import Page

from justitia_ray.sim.settings import RunSettings
from tests.eventually import eventually
from tests.harness.console.recorded import (
    RecordedRun,
    RecordedSource,
    constant_engine,
    nine_class_applications,
    record_run,
)
from tests.harness.console.stand_in import PAGE, StandIn
from tests.integration.console.viewer import Viewers
from tests.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

REPLICAS = 2
_SECONDS = (20, 40, 60)


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    """Simulated run of 40 applications of nine classes and four tenants, on two engines."""
    return record_run(
        nine_class_applications(40), RunSettings(constant_engine(), replicas=REPLICAS), ("t1",)
    )


async def _kv_tokens_by_replica(page: Page) -> dict[str, int]:
    """Return the sum of the running inferences' KV tokens by replica, as the console shows them."""
    found: dict[str, int] = {}
    for replica, _, _, state, tokens, *_ in await page.get_by_label("Lanes", exact=True).evaluate(
        "(lanes) => [...lanes.querySelectorAll('tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    ):
        if state == "running":
            found[replica] = found.get(replica, 0) + int(tokens.replace(",", ""))
    return found


async def test_console_shows_the_running_kv_tokens_that_each_engine_counts(
    viewers: Viewers, run: RecordedRun
) -> None:
    source = RecordedSource(run)
    with StandIn(page=ROOT / PAGE, models=(source,), interval_s=None) as stand_in:
        stand_in.second = _SECONDS[0]
        page = (await viewers.open(stand_in.url)).page
        await page.get_by_role("button", name="Lanes: show as table").click()
        for second in _SECONDS:
            stand_in.tick(second - stand_in.second)
            counted = run.counters[second].used_kv_tokens
            wanted = {name: kv for name, kv in counted.items() if kv}

            async def table_is_right(wanted: dict[str, int] = wanted) -> bool:
                return await _kv_tokens_by_replica(page) == wanted

            await eventually(table_is_right, f"the lanes show {wanted} at second {second}", 5.0)
            assert wanted


async def test_console_shows_a_tenant_only_its_own_applications_of_a_run(
    viewers: Viewers, run: RecordedRun
) -> None:
    with StandIn(page=ROOT / PAGE, models=(RecordedSource(run),), interval_s=None) as stand_in:
        stand_in.keys["t1-key"] = "t1"
        stand_in.second = 30
        page = (await viewers.open(stand_in.url, key="t1-key")).page
        await page.get_by_role("button", name="Lanes: show as table").click()

        text = await page.locator("#console").inner_text()

    assert "t1" in text
    assert re.findall(r"\bt[023]\b", text) == []
