"""A stream may grow, and be closed, while a page of it is read: the next page begins where this one ended."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from headrace.web.streams import pages

PATH = "/v1/stream/s"
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize("live", ["", "&live=long-poll"], ids=["at once", "long poll"])
async def test_what_comes_while_a_page_is_read_is_in_the_next(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, live: str
) -> None:
    assert (await http.put(PATH, headers=TEXT)).status == 201
    assert (await http.post(PATH, data=b"first;", headers=TEXT)).status == 204
    in_thread = pages.in_thread
    later = [{**TEXT, "Stream-Closed": "true"}, TEXT]

    async def slowly(*arguments: Any, **options: Any) -> Any:
        found = await in_thread(*arguments, **options)
        while later:
            payload = b"third;" if len(later) == 1 else b"second;"
            assert (await http.post(PATH, data=payload, headers=later.pop())).status == 204
        return found

    monkeypatch.setattr(pages, "in_thread", slowly)
    page = await http.get(f"{PATH}?offset=-1{live}")
    assert await page.read() == b"first;"
    assert "Stream-Closed" not in page.headers
    rest = await http.get(f"{PATH}?offset={page.headers['Stream-Next-Offset']}{live}")
    assert await rest.read() == b"second;third;"
    assert rest.headers["Stream-Closed"] == "true"
