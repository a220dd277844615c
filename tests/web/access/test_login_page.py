"""The login page in a real browser, and what the dashboard offers to somebody who may not do everything."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.hubprocess import HubProcess
from tests.web.browsing import browser, needs_browser

SCREENSHOTS = os.environ.get("HEADRACE_SCREENSHOTS")

pytestmark = needs_browser("the login page")
__all__ = ["browser"]

CLIENT, KEY, TOKEN = "0123456789abcdef01234567", "s3cret", "t0ken-of-the-reader"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    sets = (
        "auth.required=true",
        f"auth.clients.{CLIENT}={KEY}",
        f"access.reader.token_sha256={hashlib.sha256(TOKEN.encode()).hexdigest()}",
        "access.reader.allow=read news/**",
    )
    with HubProcess.start(tmp_path_factory.mktemp("login"), *sets) as hub:
        yield hub


@pytest.fixture
def page(browser: Browser, hub: HubProcess) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on(
            "console", lambda said: failures.append(said.text) if "Security Policy" in said.text else None
        )
        yield page
        assert failures == []


def log_in(page: Page, client: str, key: str) -> None:
    page.get_by_label("Client id").fill(client)
    page.get_by_label("Key or token").fill(key)
    page.get_by_role("button", name="Log in").click()


def keep(page: Page, name: str) -> None:
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


def test_in_and_out_and_back_to_the_page_that_was_asked_for(page: Page, hub: HubProcess) -> None:
    where = f"http://{hub.doors['http']}"
    page.goto(f"{where}/#/stream?topic=news/a")
    expect(page).to_have_url(f"{where}/login#/stream?topic=news/a")
    keep(page, "login")
    log_in(page, CLIENT, "wrong")
    expect(page.get_by_role("alert").filter(has_text="not known here")).to_be_visible()
    expect(page.get_by_label("Key or token")).to_have_value("")
    keep(page, "login-wrong")
    log_in(page, CLIENT, KEY)
    expect(page).to_have_url(f"{where}/#/stream?topic=news/a")
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.get_by_text(CLIENT)).to_be_visible()
    expect(page.get_by_text("Publish a message")).to_be_visible()
    # A script that got into the page could not take the session with it.
    assert page.evaluate("document.cookie") == ""
    keep(page, "logged-in")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile(rf"^{re.escape(where)}/login"))
    page.goto(f"{where}/#/overview")
    expect(page).to_have_url(f"{where}/login#/overview")


def test_what_a_reader_may_not_do_is_not_offered(page: Page, hub: HubProcess) -> None:
    where = f"http://{hub.doors['http']}"
    page.goto(f"{where}/#/stream")
    log_in(page, "", TOKEN)
    expect(page.get_by_text("reader", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Stream")).to_be_visible()
    for hidden in ("Settings", "Connections", "Subscriptions", "Consumers", "Cluster"):
        expect(page.get_by_role("link", name=hidden, exact=True)).to_be_hidden()
    expect(page.get_by_text("Publish a message")).to_be_hidden()
    keep(page, "reader")
    # The pages that are left work with what a reader is told.
    for name in ("Overview", "Services"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator("#connection")).to_have_text("live")
        keep(page, f"reader-{name}")


def test_a_hub_that_is_open_to_everyone_says_so(page: Page, tmp_path: Path) -> None:
    with HubProcess.start(tmp_path, "listen.spp=0.0.0.0:0", options=("--insecure",)) as hub:
        page.goto(f"http://{hub.doors['http']}/")
        expect(page.get_by_role("alert").filter(has_text="everyone who reaches spp")).to_be_visible()
        # Nobody needs to log in there, and nobody is asked to.
        expect(page.get_by_role("link", name="Log in")).to_be_hidden()
        expect(page.get_by_role("link", name="Settings")).to_be_visible()
        page.goto("about:blank")
    assert "insecure: everyone who reaches spp" in hub.stderr
