"""Measure the console page in Chromium: frame rate of its lanes, CPU, longest task, memory.

A stand-in for the service sends made-up frames once a second, as a scheduler does. The lanes move
by `requestAnimationFrame`; a frame counts if the picture was drawn anew in it.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from playwright.async_api import CDPSession, Page, async_playwright

from scripts.bench.output import print_machine, write_json
from tests.harness.console.made_up import MadeUp
from tests.harness.console.stand_in import OPERATOR_KEY, StandIn

WANTED_FPS = 30.0
_WARM_UP_S = 5.0
_COUNT = """(seconds) => new Promise((resolve) => {
  const drawn = new Set();
  const draw = CanvasRenderingContext2D.prototype.drawImage;
  CanvasRenderingContext2D.prototype.drawImage = function (...given) {
    drawn.add(document.timeline.currentTime);
    return draw.apply(this, given);
  };
  const tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ entryTypes: ["longtask"] });
  setTimeout(() => {
    const times = [...drawn].sort((one, other) => one - other);
    const gaps = times.slice(1).map((time, index) => time - times[index]).sort((a, b) => a - b);
    resolve({
      drawn: times.length,
      fps: times.length / seconds,
      gap_ms_p50: gaps[Math.floor(gaps.length / 2)] ?? 0,
      gap_ms_p95: gaps[Math.floor(gaps.length * 0.95)] ?? 0,
      gap_ms_max: gaps.at(-1) ?? 0,
      long_tasks: tasks.length,
      longest_task_ms: Math.max(0, ...tasks),
    });
  }, seconds * 1000);
})"""


_PIECES = """async () => {
  const { feed } = await import("./app/feed.js");
  const { lanes } = feed.value;
  const past = [...lanes.lanes.values()].map((one) => one.pieces.length);
  return past.reduce((sum, one) => sum + one, lanes.planned.length);
}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if Chromium is missing, otherwise 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--applications", type=int, default=1_000)
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time (default 20)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    program = shutil.which("chromium")
    if program is None:
        print("scripts/bench_console_page: no chromium on the PATH", file=sys.stderr)
        return 1
    about = print_machine(("playwright",))
    model = MadeUp(applications=options.applications, replicas=options.replicas)
    with StandIn(models=(model,)) as service:
        service.second = 120
        found = asyncio.run(_measure_page(program, service.url, options.seconds))
    verdict = "met" if found["fps"] >= WANTED_FPS else "MISSED"
    print(
        f"{options.applications:,} applications, {options.replicas} replicas,"
        f" {found['pieces']:,} rectangles, {options.seconds:g} s:\n"
        f"{found['fps']:.1f} frames a second (target {WANTED_FPS:g}: {verdict});"
        f" between two frames p50 {found['gap_ms_p50']:.0f} ms, p95 {found['gap_ms_p95']:.0f} ms,"
        f" at most {found['gap_ms_max']:.0f} ms\n"
        f"the browser's processes took {found['cpu']:.2f} s of CPU a second, script"
        f" {found['script']:.2f} s;"
        f" {found['long_tasks']} tasks above 50 ms, the longest {found['longest_task_ms']:.0f} ms;"
        f" heap {found['heap_mb']:.0f} MB"
    )
    plan = {name: getattr(options, name) for name in ("applications", "replicas", "seconds")}
    write_json(options.json, {"machine": about, "plan": plan, "found": found})
    return 0


async def _measure_page(program: str, url: str, seconds: float) -> dict[str, Any]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(f"{url}/console/?past=300")
        await page.get_by_role("textbox", name="Key", exact=True).fill(OPERATOR_KEY)
        await page.get_by_role("button", name="Use this key").click()
        await page.locator("canvas").wait_for()
        await page.wait_for_timeout(_WARM_UP_S * 1000)
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable")
        before = await _page_metrics(session)
        used = _cpu_seconds()
        found = await _page_counts(page, seconds)
        used = _cpu_seconds() - used
        after = await _page_metrics(session)
        pieces = await page.evaluate(_PIECES)
        await browser.close()
    return {
        **found,
        "pieces": pieces,
        "cpu": used / seconds,
        "script": (after["ScriptDuration"] - before["ScriptDuration"]) / seconds,
        "heap_mb": after["JSHeapUsedSize"] / 1e6,
    }


def _cpu_seconds() -> float:
    browser = [
        one for one in psutil.Process().children(recursive=True) if "chrom" in one.name().lower()
    ]
    return sum(sum(one.cpu_times()[:2]) for one in browser)


async def _page_counts(page: Page, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(_COUNT, seconds)
    return found


async def _page_metrics(session: CDPSession) -> dict[str, float]:
    told = await session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in told["metrics"]}


if __name__ == "__main__":
    sys.exit(main())
