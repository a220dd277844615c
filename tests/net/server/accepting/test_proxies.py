"""Proxies in front of a hub: the PROXY protocol at every door, Forwarded at http, and whom the hub believes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import Authority

from headrace.errors import WireError
from headrace.net.server.accepting import proxy_header
from headrace.testing import Hub
from headrace.web.access.forwarded import origin_of

SECONDS = 20.0
KEEPALIVE = b"\x10" + bytes(6)
ACK = b"\x20" + bytes(6)


def header(address: str, port: int = 1234, *, more: bytes = b"") -> bytes:
    packed = ip_address(address).packed
    family = 0x11 if len(packed) == 4 else 0x21
    body = packed + bytes(len(packed)) + port.to_bytes(2) + (80).to_bytes(2) + more
    return proxy_header.SIGNATURE + bytes([0x21, family]) + len(body).to_bytes(2) + body


LOCAL = proxy_header.SIGNATURE + bytes([0x20, 0x00, 0, 0])


def dial(hub: Hub, door: str = "fyrehose") -> socket.socket:
    host, _, port = hub.doors[door].rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def ask(hub: Hub, first: bytes) -> bytes:
    """Send a header and a KEEPALIVE; return the answer, empty if the hub closed."""
    with dial(hub) as sock:
        try:
            sock.sendall(first + KEEPALIVE)
            return sock.recv(100)
        except ConnectionError:
            return b""


def refused(hub: Hub, door: str, reason: str) -> int:
    return hub._running.hub.counters.get("refused", door=door, reason=reason)


def until(what: str, met: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"waited for nothing: {what}"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def behind() -> object:
    """A hub that only a proxy of this machine reaches; of each address it takes one connection a door."""
    settings = {
        "limits.proxies": ["127.0.0.1"],
        "limits.connections_per_address": 1,
        "limits.handshake_seconds": 1.0,
    }
    with Hub(settings) as hub:
        yield hub


def test_addresses_behind_a_proxy_have_slots_of_their_own(behind: Hub) -> None:
    with dial(behind) as one, dial(behind) as two, dial(behind) as again:
        one.sendall(header("203.0.113.7") + KEEPALIVE)
        assert one.recv(100) == ACK
        two.sendall(header("2001:db8::7") + KEEPALIVE)
        assert two.recv(100) == ACK
        before = refused(behind, "fyrehose", "connections")
        again.sendall(header("203.0.113.7", 99))
        assert again.recv(100) == b""
        assert refused(behind, "fyrehose", "connections") == before + 1


def test_a_header_may_come_byte_by_byte_with_extensions(behind: Hub) -> None:
    with dial(behind) as sock:
        for byte in header("203.0.113.8", more=bytes(200)) + KEEPALIVE:
            sock.sendall(bytes([byte]))
        assert sock.recv(100) == ACK


def test_a_proxy_may_connect_for_itself(behind: Hub) -> None:
    assert ask(behind, LOCAL) == ACK


@pytest.mark.parametrize(
    "first",
    [
        b"PROXY TCP4 203.0.113.7 203.0.113.8 1 2\r\n",
        b"",
        header("203.0.113.7")[:12] + b"\x11" + header("203.0.113.7")[13:],
        proxy_header.SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
        proxy_header.SIGNATURE + b"\x21\x31\x00\x00",
        proxy_header.SIGNATURE + b"\x21\x11\xff\xff",
    ],
    ids=["version 1", "none", "another version", "too short", "a Unix socket", "too long"],
)
def test_a_bad_header_is_refused_and_counted(behind: Hub, first: bytes) -> None:
    before = refused(behind, "fyrehose", "malformed") + refused(behind, "fyrehose", "limit")
    assert ask(behind, first + bytes(32)) == b""
    until(
        "it is counted",
        lambda: refused(behind, "fyrehose", "malformed") + refused(behind, "fyrehose", "limit") == before + 1,
    )


@pytest.mark.parametrize("door", ["fyrehose", "tube_tcp", "http"])
def test_a_proxy_that_says_nothing_is_cut_off(behind: Hub, door: str) -> None:
    name = {"tube_tcp": "tube"}.get(door, door)
    before = refused(behind, name, "stalled")
    with dial(behind, door) as sock:
        sock.sendall(header("203.0.113.7")[:5] if door == "tube_tcp" else b"")
        assert sock.recv(100) == b""
    assert refused(behind, name, "stalled") == before + 1


def test_nobody_else_is_believed() -> None:
    with Hub({"limits.proxies": ["192.0.2.0/24"]}) as hub:
        assert ask(hub, header("203.0.113.7")) == b""
        until("it is counted", lambda: refused(hub, "fyrehose", "malformed") == 1)
        assert ask(hub, b"") == ACK


def test_rights_are_those_of_the_address_behind_the_proxy(tmp_path: Path) -> None:
    """And TLS begins after the proxy's header."""
    authority = Authority(tmp_path)
    certificate = authority.sign("hub")
    settings = {
        "limits.proxies": ["127.0.0.1"],
        "tls.cert": str(certificate.cert),
        "tls.key": str(certificate.key),
        "auth.required": True,
        "access.gateway.addresses": ["10.0.7.0/24"],
        "access.gateway.allow": ["read **"],
    }
    answers = []
    with Hub(settings) as hub:
        for address in ("10.0.7.5", "10.0.8.5"):
            with dial(hub) as sock:
                sock.sendall(header(address))
                context = ssl.create_default_context(cafile=authority.ca)
                with context.wrap_socket(sock, server_hostname="localhost") as secured:
                    secured.sendall(KEEPALIVE)
                    answers.append(secured.recv(100))
    assert answers == [ACK, b""]


def get(hub: Hub, path: str, **headers: str) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(f"http://{hub.doors['http']}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_forwarded_at_http(behind: Hub) -> None:
    assert get(behind, "/healthz")[0] == 200
    before = refused(behind, "http", "malformed")
    code, told = get(behind, "/healthz", Forwarded="for=nobody")
    assert code == 400
    assert "Forwarded" in str(told)
    assert refused(behind, "http", "malformed") == before + 1


def test_a_proxy_header_at_http(behind: Hub) -> None:
    with dial(behind, "http") as sock:
        sock.sendall(header("203.0.113.9") + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 200")


PROXIES = ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ([], "10.0.0.1"),
        (["for=203.0.113.7"], "203.0.113.7"),
        (["for=198.51.100.1, for=203.0.113.7"], "203.0.113.7"),
        (["for=203.0.113.7, for=10.0.0.2"], "203.0.113.7"),
        (["for=203.0.113.7", "for=10.0.0.2;by=10.0.0.1"], "203.0.113.7"),
        (['For="[2001:db8::1]:99";Proto=https'], "2001:db8::1"),
        (['for="203.0.113.7:4711"'], "203.0.113.7"),
        (["for=10.0.0.2"], "10.0.0.2"),
        (['for="::ffff:203.0.113.7"'], "203.0.113.7"),
    ],
)
def test_whom_a_request_is_from(headers: list[str], origin: str) -> None:
    assert origin_of(headers, "10.0.0.1", PROXIES).address == origin


def test_what_a_client_wrote_itself_is_not_reached() -> None:
    assert origin_of(["for=unknown, for=203.0.113.7"], "10.0.0.1", PROXIES).address == "203.0.113.7"
    assert origin_of(["for=192.0.2.1"], "203.0.113.7", PROXIES).address == "203.0.113.7"


@pytest.mark.parametrize(
    "text", ["for=unknown", "for=_hidden", "proto=https", "for", "for=a b", ",".join(["for=10.0.0.2"] * 40)]
)
def test_a_proxy_that_names_nobody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it|address"):
        origin_of([text], "10.0.0.1", PROXIES)


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda rest: proxy_header.SIGNATURE + rest))
def test_arbitrary_headers_are_read_or_refused(data: bytes) -> None:
    if len(data) < proxy_header.FIXED_BYTES:
        return
    with contextlib.suppress(WireError):
        length = proxy_header.length_of(data[: proxy_header.FIXED_BYTES])
        assert proxy_header.FIXED_BYTES <= length <= proxy_header.MAX_BYTES
        proxy_header.parse_origin(data[:length].ljust(length, b"\0"))
