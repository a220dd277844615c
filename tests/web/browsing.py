"""A real browser for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def needs_browser(what: str) -> list[pytest.MarkDecorator]:
    """The marks of a module that tries ``what`` in a browser."""
    missing = f"NO BROWSER: {what} is not tried. Install chromium (apt install chromium)"
    return [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=missing)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, as tests often are in containers.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
