"""Logging in: sessions, tokens, keys, and how wrong ones are refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from tests.certificates import Authority
from tests.net.raw import SECONDS, running_hub

from headrace import web
from headrace.config import load
from headrace.hub.access.principal import EVERYTHING, Principal
from headrace.hub.access.principals import Principals
from headrace.net.server.process import Server
from headrace.web.access import sessions as sessions_module
from headrace.web.access.check import HEADERS
from headrace.web.access.sessions import IDLE_SECONDS, LONGEST_SECONDS, MAX_OF_PRINCIPAL, Sessions

CLIENT, KEY, TOKEN = "0123456789abcdef01234567", "s3cret", "t0ken-of-the-reader"
OURS = {"X-Headrace": "1"}
SETS = (
    "auth.required=true",
    f"auth.clients.{CLIENT}={KEY}",
    f"access.reader.token_sha256={hashlib.sha256(TOKEN.encode()).hexdigest()}",
    "access.reader.allow=read news/**",
)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path, *SETS, http=web.start) as server:
        yield server


@pytest.fixture
async def browser(guarded: Server) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps cookies, also those of an address."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(f"http://{guarded.doors['http']}", cookie_jar=jar) as http:
        yield http


async def log_in(http: aiohttp.ClientSession, **given: str) -> int:
    async with http.post("/login", json=given, headers=OURS) as answer:
        return answer.status


async def status_of(http: aiohttp.ClientSession, path: str = "/api/status", **options: object) -> int:
    async with http.get(path, **options) as answer:  # type: ignore[arg-type]
        return answer.status


async def test_a_session_lasts_until_it_is_logged_out(browser: aiohttp.ClientSession) -> None:
    assert await status_of(browser) == 401
    async with browser.post("/login", json={"client_id": CLIENT.upper(), "key": KEY}, headers=OURS) as answer:
        assert answer.status == 200
        said = answer.headers["Set-Cookie"]
    for word in ("headrace-session=", "HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert word in said
    assert "Secure" not in said, "a browser would not send it without TLS"
    assert KEY not in said
    async with browser.get("/api/me") as answer:
        me = await answer.json()
    assert (me["name"], me["session"], me["may"]["admin"]) == (CLIENT, True, True)
    cookies = {cookie.key: cookie.value for cookie in browser.cookie_jar}
    async with browser.get("/api/tail") as tail:
        async with browser.post("/logout", headers=OURS) as answer:
            assert answer.status == 200
        # What is under way ends, too.
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(aiohttp.ClientError):
                await tail.content.read()
    assert await status_of(browser) == 401
    # The cookie itself is worth nothing now, whoever has kept it.
    assert await status_of(browser, cookies=cookies) == 401


@pytest.mark.parametrize("trusted", [True, False])
async def test_behind_a_proxy_that_ends_tls_the_cookie_is_secure(tmp_path: Path, trusted: bool) -> None:
    sets = (*SETS, "limits.proxies=127.0.0.0/8") if trusted else SETS
    headers = {**OURS, "Forwarded": "for=203.0.113.7;proto=https"}
    async with (
        running_hub(tmp_path, *sets, http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        async with http.post("/login", json={"token": TOKEN}, headers=headers) as answer:
            said = answer.headers["Set-Cookie"]
        assert said.startswith("__Host-headrace-session=" if trusted else "headrace-session=")
        assert ("Secure" in said) is trusted
        cookie = said.partition(";")[0]
        assert await status_of(http, headers={**headers, "Cookie": cookie}) == 200


async def test_under_tls_the_cookie_is_secure(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("localhost")
    trust = ssl.create_default_context(cafile=authority.ca)
    async with running_hub(tmp_path, *SETS, *certificate.settings(), http=web.start) as server:
        where = f"https://localhost:{server.doors['http'].rpartition(':')[2]}"
        async with (
            aiohttp.ClientSession(where, connector=aiohttp.TCPConnector(ssl=trust)) as http,
            http.post("/login", json={"token": TOKEN}, headers=OURS) as answer,
        ):
            said = answer.headers["Set-Cookie"]
    assert said.startswith("__Host-headrace-session=")
    assert "Secure" in said


async def test_who_may_read_a_little_may_do_no_more(guarded: Server, browser: aiohttp.ClientSession) -> None:
    assert await log_in(browser, token=TOKEN) == 200
    async with browser.get("/api/me") as answer:
        me = await answer.json()
    assert me["name"] == "reader"
    assert {action for action, may in me["may"].items() if may} == {"read"}
    for path in ("/api/settings", "/api/connections"):
        assert await status_of(browser, path) == 403
    async with browser.post("/api/messages", json={"topic": "news/a"}, headers=OURS) as answer:
        assert answer.status == 403
    async with browser.post("/api/log/seal", headers=OURS) as answer:
        assert answer.status == 403


async def test_a_bearer_token_needs_no_session(browser: aiohttp.ClientSession) -> None:
    assert await status_of(browser, headers={"Authorization": f"Bearer {TOKEN}"}) == 200
    assert await status_of(browser, headers={"Authorization": f"Bearer {TOKEN}x"}) == 401
    assert not list(browser.cookie_jar)


async def test_a_wrong_proof_is_not_made_good_by_a_session(browser: aiohttp.ClientSession) -> None:
    await log_in(browser, client_id=CLIENT, key=KEY)
    assert await status_of(browser, headers={"Authorization": "Bearer wrong"}) == 401
    assert await status_of(browser, headers={"Authorization": "Digest x"}) == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"key": 1}', b'{"client_id": "", "other": 1}', b" " * 9000, b'"\xff"']
)
async def test_what_is_no_login(browser: aiohttp.ClientSession, body: bytes) -> None:
    async with browser.post("/login", data=body, headers=OURS) as answer:
        assert answer.status == 400


async def test_other_pages_cannot_log_anybody_in_or_out(browser: aiohttp.ClientSession) -> None:
    for path in ("/login", "/logout"):
        async with browser.post(path, json={"client_id": CLIENT, "key": KEY}) as answer:
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers


async def test_guesses_are_slowed_and_the_unknown_is_told_what_the_wrong_is(
    guarded: Server, browser: aiohttp.ClientSession
) -> None:
    told: dict[str, list[tuple[int, str]]] = {}
    for client in (CLIENT, "f" * 24):
        told[client] = []
        for _ in range(7):
            async with browser.post("/login", json={"client_id": client, "key": "x"}, headers=OURS) as answer:
                told[client].append((answer.status, await answer.text()))
    assert told[CLIENT] == told["f" * 24]
    assert [status for status, _ in told[CLIENT]] == [403] * 5 + [429] * 2
    assert await log_in(browser, client_id=CLIENT, key=KEY) == 429
    basic = "Basic " + b64encode(f"{CLIENT}:{KEY}".encode()).decode()
    async with browser.get("/api/status", headers={"Authorization": basic}) as answer:
        assert answer.status == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
    # Others at the same address are not in the way of each other.
    assert await status_of(browser, headers={"Authorization": f"Bearer {TOKEN}"}) == 200
    assert guarded.hub.counters.get("refused", door="http", reason="too_many_failures") == 6


async def test_scripts_of_our_pages_are_not_asked_by_the_browser(browser: aiohttp.ClientSession) -> None:
    for mode, scheme in (("cors", "Bearer"), ("same-origin", "Bearer"), ("navigate", "Basic")):
        async with browser.get("/api/status", headers={"Sec-Fetch-Mode": mode}) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"].split()[0]) == (401, scheme)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/login", 200),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/api/status", 401),
        ("GET", "/nowhere", 404),
        ("PUT", "/healthz", 405),
        ("POST", "/api/log/seal", 403),
    ],
)
async def test_every_answer_says_what_browsers_may_do_with_it(
    browser: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    extra = OURS if method == "PUT" else {}
    async with browser.request(method, path, headers=extra) as answer:
        assert answer.status == status
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


async def test_streams_and_what_is_no_request_say_it_too(
    guarded: Server, browser: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(browser, client_id=CLIENT, key=KEY)
    async with browser.get("/api/events") as answer:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    reader, writer = await asyncio.open_connection(*guarded.doors["http"].split(":"))
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    assert head.startswith("HTTP/1.0 400")
    assert all(f"{name}: {value}" in head for name, value in HEADERS.items())

    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(guarded, "status", fail)
    async with browser.get("/api/status") as answer:
        assert answer.status == 500
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "mistake" not in await answer.text()


class TestSessions:
    def principals(self, *sets: str) -> Principals:
        return Principals(load(environ={}, sets=["auth.required=true", *sets]), {})

    def test_they_end_by_themselves(self) -> None:
        table = self.principals(f"auth.clients.{CLIENT}=a")
        someone = table.of_client_id(CLIENT)
        assert someone is not None
        sessions = Sessions()
        cookie = sessions.begin(someone, 0.0)
        assert sessions.find(cookie, table, IDLE_SECONDS) is someone
        assert sessions.find(cookie, table, 2 * IDLE_SECONDS + 1) is None
        cookie, now = sessions.begin(someone, 0.0), 0.0
        while now + IDLE_SECONDS < LONGEST_SECONDS:
            now += IDLE_SECONDS
            assert sessions.find(cookie, table, now) is someone
        assert sessions.find(cookie, table, LONGEST_SECONDS + 1) is None
        assert len(sessions) == 0

    def test_rights_follow_the_settings_and_another_key_ends_them(self) -> None:
        before = self.principals(f"auth.clients.{CLIENT}=a")
        someone = before.of_client_id(CLIENT)
        assert someone is not None
        sessions = Sessions()
        cookie = sessions.begin(someone, 0.0)
        same = self.principals(f"auth.clients.{CLIENT}=a", "access.other.allow=read **")
        assert sessions.find(cookie, same, 1.0) is same.of_client_id(CLIENT)
        assert sessions.find(cookie, self.principals(f"auth.clients.{CLIENT}=b"), 2.0) is None
        assert sessions.find(cookie, before, 3.0) is None

    @pytest.mark.parametrize("who", [lambda number: "one", lambda number: f"principal {number}"])
    def test_there_is_a_most_of_them(
        self, monkeypatch: pytest.MonkeyPatch, who: Callable[[int], str]
    ) -> None:
        monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 100)
        sessions = Sessions()
        for number in range(300):
            sessions.begin(Principal(who(number), EVERYTHING), float(number))
        assert len(sessions) == (MAX_OF_PRINCIPAL if who(0) == who(1) else 100)
