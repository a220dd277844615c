"""Web pages of other origins: which may use /v1/, and how a browser learns of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import running_hub
from tests.web.access.test_check import CLIENT, KEY
from tests.web.streams.test_door import ask

from headrace import web
from headrace.net.server.process import Server

SHOP, EVIL = "https://shop.example", "https://evil.example"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    sets = ("auth.required=true", f"auth.clients.{CLIENT}={KEY}", f"auth.origins={SHOP}")
    async with running_hub(tmp_path, *sets, http=web.start) as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/publish/orders", "/v1/stream/orders", "/v1/service/fleet/1"])
async def test_a_preflight_is_answered_without_a_proof(http: aiohttp.ClientSession, path: str) -> None:
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,headrace-attr-city,x-other",
    }
    _, headers = await ask(http, "OPTIONS", path, 204, Origin=SHOP, **wanted)
    assert headers["Access-Control-Allow-Origin"] == SHOP
    assert "POST" in headers["Access-Control-Allow-Methods"]
    allowed = {name.strip() for name in headers["Access-Control-Allow-Headers"].split(",")}
    assert {"authorization", "content-type", "headrace-attr-city"} <= allowed
    assert "x-other" not in allowed
    assert "Access-Control-Allow-Credentials" not in headers
    _, headers = await ask(http, "OPTIONS", path, 204, Origin=EVIL, **wanted)
    assert "Access-Control-Allow-Origin" not in headers


async def test_the_request_itself_needs_its_proof_and_the_page_can_read_why(
    http: aiohttp.ClientSession,
) -> None:
    body, headers = await ask(http, "POST", "/v1/publish/orders", 401, b"x", Origin=SHOP)
    assert b"auth.required" in body
    assert headers["Access-Control-Allow-Origin"] == SHOP
    proof = aiohttp.encode_basic_auth(CLIENT, KEY)
    body, _ = await ask(http, "POST", "/v1/publish/orders", 200, b"x", Origin=SHOP, Authorization=proof)
    assert body == b'{"seq":1}\n'
    await ask(http, "POST", "/v1/publish/orders", 403, b"x", Origin=EVIL, Authorization=proof)
    _, headers = await ask(http, "GET", "/v1/stream/orders", 200, Origin=SHOP, Authorization=proof)
    assert headers["Vary"] == "Origin"
    assert "stream-next-offset" in headers["Access-Control-Expose-Headers"]


async def test_no_other_page_of_the_hub_is_shared(http: aiohttp.ClientSession) -> None:
    for path, status in {"/": 200, "/metrics": 200, "/api/status": 401}.items():
        _, headers = await ask(http, "GET", path, status, Origin=SHOP)
        assert "Access-Control-Allow-Origin" not in headers
