"""The web page of ``examples/browser`` in a real browser, served from another origin than the hub's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.hubprocess import HubProcess
from tests.web.browsing import browser, needs_browser

import headrace

__all__ = ["browser"]

FOLDER = Path(__file__).parents[2] / "examples" / "browser"

pytestmark = needs_browser("the example")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(FOLDER))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_it_follows_a_topic_and_a_service_and_publishes(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with (
        HubProcess.start(tmp_path, f"auth.origins={origin}") as hub,
        browser.new_context() as context,
        headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link,
        headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp,
    ):
        page = context.new_page()
        page.goto(f"{origin}/?hub=http://{hub.doors['http']}&topic=orders/eu")
        page.get_by_label("Message").fill("grüße from the page")
        page.get_by_role("button", name="Publish").click()
        expect(page.locator("output")).to_have_text("message 1")
        expect(page.locator("#messages li")).to_have_text(["grüße from the page"])
        assert next(link.follow(from_seq=1)).payload.decode() == "grüße from the page"
        link.publish(b"from the link", topic="orders/eu")
        expect(page.locator("#messages li").first).to_contain_text("from the link")
        spp.publish({"speed": 60, "driver": "Ada"}, topic="fleet/42")
        expect(page.locator("#object")).to_contain_text('"speed": 60')
        spp.publish({"speed": 61}, topic="fleet/42")
        expect(page.locator("#object")).to_contain_text('"speed": 61')
        expect(page.locator("#object")).to_contain_text('"driver": "Ada"')


def test_a_hub_that_does_not_name_the_origin_is_explained(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    with HubProcess.start(tmp_path) as hub, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{origin}/?hub=http://{hub.doors['http']}")
        page.get_by_label("Message").fill("hello")
        page.get_by_role("button", name="Publish").click()
        expect(page.get_by_role("alert")).to_contain_text("auth.origins")
