"""Take the docs' pictures of the dashboard and of the demo's terminal: ``python tools/screenshots.py [SECONDS]``.

It runs the demo with Spark, for 240 seconds unless told otherwise, and after a third of it has a browser
(Chromium) open each page of the dashboard, light and dark, in a window and as on a telephone. What is seen is therefore
what a user would see: real traffic, real results. The page Cluster is that of the example's three nodes, and one sheet
shows the pages of a hub to which nothing has happened yet. The pictures are written to ``docs/img``; look at them
before you commit them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import headrace
from headrace.cli.run.demo.processes import JOBS, started_processes

IMG = Path(__file__).resolve().parent.parent / "docs" / "img"
PAGES = (
    *("overview", "stream", "topics", "services", "consumers", "subscriptions"),
    *("connections", "pipeline", "sql", "settings"),
)
CLUSTER = IMG.parent.parent / "examples" / "cluster" / "run.py"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZE: Any = {"width": 1180, "height": 800}
HEIGHTS = {"pipeline": 1260, "subscriptions": 820, "cluster": 480}
"""Pages that have more, or less, to show."""
PHONE: Any = {"width": 390, "height": 844}
TERMINAL = 120, 34
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def consume(url: str) -> None:
    """A durable consumer with something to show: some messages done, some waiting, one given up."""
    with (
        headrace.connect_sync(url) as link,
        link.consumer("workshop", topic="vehicle/*", max_tries=1) as consumer,
    ):
        for count, message in enumerate(consumer):
            if count == 3:
                consumer.nack(message)
            else:
                consumer.ack(message)
            if count == 20:
                break


def photograph(address: str, pages: Sequence[str], *, phone: bool = False) -> None:
    """A picture of each page, light and dark; with ``phone`` also one of all pages on a telephone."""
    with _browser() as browser:
        for scheme in SCHEMES:
            for name, picture in _pictures(browser, address, pages, scheme).items():
                (IMG / f"{name}-{scheme}.png").write_bytes(picture)
            if phone:
                shots = _pictures(browser, address, pages, scheme, PHONE)
                _sheet(browser, shots, scheme, IMG / f"phone-{scheme}.png")


def photograph_empty() -> None:
    """A picture of all pages of a hub to which nothing has happened yet, light and dark."""
    from headrace.testing import Hub

    with Hub() as hub, _browser() as browser:
        for scheme in SCHEMES:
            shots = _pictures(browser, f"http://{hub.doors['http']}/", PAGES, scheme, arrange=False)
            _sheet(browser, shots, scheme, IMG / f"empty-{scheme}.png", columns=4)


@contextlib.contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _pictures(
    browser: Any,
    address: str,
    pages: Sequence[str],
    scheme: Literal["light", "dark"],
    size: Any = None,
    *,
    arrange: bool = True,
) -> dict[str, bytes]:
    """The pages as they are seen in a window of this size, else in one that suits the page."""
    page = browser.new_context(viewport=size or SIZE, color_scheme=scheme).new_page()
    pictures = {}
    for name in pages:
        page.set_viewport_size(size or {**SIZE, "height": HEIGHTS.get(name, SIZE["height"])})
        page.goto(f"{address}#/{name}")
        page.reload()
        page.wait_for_timeout(1500)
        if arrange:
            _arrange(page, name)
            page.wait_for_timeout(1500)
        pictures[name] = page.screenshot()
    return pictures


def _sheet(
    browser: Any, shots: dict[str, bytes], scheme: Literal["light", "dark"], path: Path, columns: int = 5
) -> None:
    """Several pictures side by side, in one small file."""
    figures = "".join(
        f"<figure><img src='data:image/png;base64,{base64.b64encode(shot).decode()}'></figure>"
        for shot in shots.values()
    )
    ground = "#ffffff" if scheme == "light" else "#111111"
    style = (
        f"body{{margin:8px;background:{ground};display:grid;gap:8px;grid-template-columns:repeat({columns},1fr)}}"
        "figure{margin:0} img{width:100%;border:1px solid #8888;display:block}"
    )
    page = browser.new_context(viewport={"width": SIZE["width"], "height": 100}).new_page()
    page.set_content(f"<style>{style}</style>{figures}")
    page.screenshot(path=path, full_page=True)


def photograph_cluster() -> None:
    """The page Cluster, of three nodes."""
    with tempfile.TemporaryDirectory() as directory:
        program = [sys.executable, str(CLUSTER), "--data", directory]
        cluster = subprocess.Popen(  # noqa: S603 -- ourselves
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            told = [cluster.stdout.readline() for _ in range(4)]
            address = told[0].split()[-1]
            deadline = time.monotonic() + 60
            while not _works(address):
                if time.monotonic() > deadline:
                    sys.exit("the example's cluster does not come up")
                time.sleep(0.2)
            with headrace.connect_sync(told[3].split()[-2]) as link:
                for _ in range(40):
                    link.publish([b"a wheel turns"] * 25, topic="mill")
            photograph(address, ["cluster"])
        finally:
            cluster.terminate()
            cluster.wait()


def _works(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}api/status", timeout=5) as answer:  # noqa: S310 -- our own
            nodes = json.load(answer)["cluster"]["nodes"]
            return len(nodes) == 3 and all(node["mode"] == "WRK" for node in nodes)
    except OSError:
        return False


def _arrange(page: Any, name: str) -> None:
    """Open something, where a page is empty until one does."""

    if name == "stream":
        page.get_by_role("button", name="Pause").click()
        page.locator("tbody tr").first.locator("button.link").click()
    elif name == "services":
        page.get_by_label("Find a service").fill("tram")
        page.get_by_role("button", name="vehicle/tram-1", exact=True).click()
    elif name == "consumers":
        page.get_by_role("button", name="workshop", exact=True).click()
    elif name == "sql":
        page.get_by_role("button", name="Run", exact=True).click()
        page.locator("tbody tr").first.wait_for()
    elif name == "subscriptions":
        page.get_by_label("Attributes").fill("x=500 y=300")
        page.get_by_role("button", name="Who would get this?").click()


def main(seconds: float) -> None:
    """Run the demo, and take pictures of it."""
    with started_processes((*JOBS, "verify")) as stage:
        from headrace.cli.run.demo.picture import draw
        from headrace.demo.play import Play

        play = Play(stage.doors, vehicles=24, seconds=seconds, spark=stage.spark_end)
        # It takes messages of the demo, which come once this runs.
        threading.Thread(target=consume, args=(f"tube://{stage.doors['tube_tcp']}",), daemon=True).start()
        camera = threading.Thread(target=photograph, args=(play.dashboard, PAGES), kwargs={"phone": True})
        shown = ""

        def look() -> None:
            nonlocal shown
            if play.elapsed >= seconds / 3 and play.results.fleet and not shown:
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
    photograph_cluster()
    photograph_empty()
    print("\n".join(finding.says for finding in audit.findings))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 240.0)
