"""Take the docs' pictures of the dashboard and of the demo's terminal: ``python tools/screenshots.py [SECONDS]``.

It runs the demo with Spark, for 100 seconds unless told otherwise, and after three quarters of it has a browser
(Chromium) open each page of the dashboard, light and dark. What is seen is therefore what a user would see: real
traffic, real results. The pictures are written to ``docs/img``; look at them before you commit them.
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.cli.demo_run import staged

IMG = Path(__file__).resolve().parent.parent / "docs" / "img"
PAGES = ("overview", "stream", "services", "subscriptions", "cluster", "pipeline")
SIZE = {"width": 1180, "height": 800}
TERMINAL = 120, 34
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def photograph(address: str) -> None:
    """A picture of each page, light and dark."""
    from playwright.sync_api import sync_playwright

    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
            for name in PAGES:
                page.goto(f"{address}#/{name}")
                page.reload()
                page.wait_for_timeout(1500)
                _arrange(page, name)
                page.wait_for_timeout(1500)
                page.screenshot(path=IMG / f"{name}-{scheme}.png")
        browser.close()


def _arrange(page: Any, name: str) -> None:
    """Open something, where a page is empty until one does."""

    if name == "stream":
        page.get_by_role("button", name="Pause").click()
        page.locator("tbody tr").first.locator("button.link").click()
    elif name == "services":
        page.get_by_label("Find a service").fill("tram")
        page.get_by_role("button", name="vehicle/tram-1", exact=True).click()
    elif name == "subscriptions":
        page.get_by_label("Attributes").fill("x=500 y=300")
        page.get_by_role("button", name="Who would get this?").click()


def main(seconds: float) -> None:
    """Run the demo, and take pictures of it."""
    with staged(spark=True) as stage:
        from headrace.cli.demo_view import draw
        from headrace.demo.play import Play

        play = Play(stage.doors, vehicles=24, seconds=seconds, spark=stage.spark_end)
        camera = threading.Thread(target=photograph, args=(play.dashboard,))
        shown = ""

        def look() -> None:
            nonlocal shown
            if play.elapsed >= seconds * 0.6 and play.results.fleet and not shown:
                out = Console(record=True, file=io.StringIO(), force_terminal=True, width=TERMINAL[0])
                out.print(draw(play, *TERMINAL))
                shown = out.export_svg(title="headrace demo")
                camera.start()

        audit = asyncio.run(play.run(look))
        if not shown:
            sys.exit("Spark had found nothing in time: give it more seconds")
        camera.join()
    # Pages load nothing from elsewhere; any font of equal widths will do.
    (IMG / "demo.svg").write_text(_WEB_FONT.sub("", shown).replace("Fira Code", "ui-monospace"))
    print("\n".join(finding.says for finding in audit.findings))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
