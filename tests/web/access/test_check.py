"""Who may ask the http door what."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import running_hub

from headrace import web
from headrace.net.server.process import Server
from headrace.web.access.check import is_own_name

CLIENT, KEY = "0123456789abcdef01234567", "s3cret"


def basic(name: str, key: str) -> str:
    return "Basic " + b64encode(f"{name}:{key}".encode()).decode()


@pytest.mark.parametrize(
    "path", ["/api/status", "/api/history", "/api/events", "/api/messages", "/api/services", "/api/tail"]
)
async def test_under_auth_required_only_who_has_a_key(tmp_path: Path, path: str) -> None:
    sets = ("auth.required=true", f"auth.clients.{CLIENT}={KEY}")
    async with (
        running_hub(tmp_path, *sets, http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        wrongs = [
            "",
            basic(CLIENT, "wrong"),
            basic("0" * 24, KEY),
            "Basic",
            "Basic ?",
            "Basic /w==",
            "Bearer x",
        ]
        for wrong in wrongs:
            async with http.get(path, headers={"Authorization": wrong}) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Basic")
        # A stranger who says for whom it asks is not listened to, whatever it says.
        async with http.get(path, headers={"Forwarded": "for=;;proto"}) as answer:
            assert answer.status == 401
        async with http.get(path, headers={"Authorization": basic(CLIENT.upper(), KEY)}) as answer:
            assert answer.status == 200
        assert server.hub.counters.get("refused", door="http", reason="unauthenticated") == 8


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/dashboard/app.js"])
async def test_what_needs_no_key(tmp_path: Path, path: str) -> None:
    async with (
        running_hub(tmp_path, "auth.required=true", http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
        http.get(path) as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1", 200),
        ("hub.localhost", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("10.0.0.1", 421),
    ],
)
async def test_a_foreign_name_that_leads_here(
    server: Server, http: aiohttp.ClientSession, name: str, status: int
) -> None:
    async with http.get("/api/status", headers={"Host": f"{name}:8470"}) as answer:
        assert answer.status == status


@pytest.mark.parametrize("here", ["127.0.0.1", "::1", "::1%lo", "::ffff:127.0.0.1"])
def test_a_door_of_this_machine_has_names_of_this_machine(here: str) -> None:
    transport = asyncio.BaseTransport({"sockname": (here, 8470)})
    assert is_own_name(transport, "localhost")
    assert not is_own_name(transport, "evil.example")


async def test_pages_may_load_nothing_from_elsewhere(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "https://" not in await answer.text()


async def test_a_page_that_has_not_changed_is_not_sent_again(http: aiohttp.ClientSession) -> None:
    async with http.get("/dashboard/app.js") as answer:
        tag = answer.headers["ETag"]
    async with http.get("/dashboard/app.js", headers={"If-None-Match": tag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
