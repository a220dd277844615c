"""Every door over TLS with its real client; and what comes that is no TLS, or is of another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from tests.tls.conftest import TlsHub

import headrace
from headrace.config import DOORS
from headrace.errors import UnreachableError
from headrace.testing import Hub

SECONDS = 20.0


def until(what: str, met: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"waited for nothing: {what}"
        time.sleep(0.005)


async def test_the_link_and_the_backbone(tls: TlsHub) -> None:
    async with (
        tls.hub.connect("tube+tls://", ca=tls.ca) as link,
        tls.hub.connect("wss://", ca=tls.ca) as web,
        tls.hub.connect("fyrehose+tls://", ca=tls.ca) as backbone,
    ):
        big = bytes(range(256)) * 4096
        first = (await link.publish(big, topic="a")).first
        await web.publish(b"two", topic="b")
        await backbone.publish(b"three")
        found = [message async for message in _take(link.follow(from_seq=first), 3)]
        assert [message.payload for message in found] == [big, b"two", b"three"]
        assert [message.topic for message in found[:2]] == ["a", "b"]
        seen = [message async for message in _take(backbone, 3)]
        assert [message.seq for message in seen] == [first, first + 1, first + 2]


async def test_services(tls: TlsHub) -> None:
    async with tls.hub.connect("spp+tls://", ca=tls.ca) as client:
        await client.publish({"speed": 61}, topic="fleet/42")
        async with client.subscribe("fleet/42") as service:
            assert service.value == {"speed": 61}


async def test_content_routing_and_an_orderly_end(tls: TlsHub, caplog: pytest.LogCaptureFixture) -> None:
    async with tls.hub.connect("sdk+tls://", ca=tls.ca) as client:
        await client.subscribe({"x": headrace.between(0, 10)})
        async with tls.hub.connect("publisher+tls://", ca=tls.ca) as publisher:
            await publisher.publish([b"payload %d" % n for n in range(5000)], attributes={"x": 5})
        found = [message.payload async for message in _take(client, 5000)]
    assert found == [b"payload %d" % n for n in range(5000)]
    assert "may be lost" not in caplog.text


def test_http(tls: TlsHub) -> None:
    context = ssl.create_default_context(cafile=tls.ca)
    url = f"https://{tls.hub.doors['http']}/api/status"
    with urllib.request.urlopen(url, context=context, timeout=SECONDS) as answer:
        assert json.load(answer)["head"] >= 0


def test_blocking_clients(tls: TlsHub) -> None:
    with tls.hub.connect_sync("tube+tls://", ca=tls.ca) as link:
        assert link.publish(b"hello").first > 0


@pytest.mark.parametrize("door", DOORS)
def test_plain_bytes_are_turned_away_and_counted(tls: TlsHub, door: str) -> None:
    name = {"tube_tcp": "tube", "tube_ws": "tube"}.get(door, door)
    before = tls.refusals(name, "plain")
    with tls.dial(door) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = _rest(sock)
    assert tls.refusals(name, "plain") == before + 1
    assert answer == b"" or (answer.startswith(b"HTTP/1.1 400") and b"https" in answer)
    assert (answer != b"") == (door in ("http", "tube_ws"))


@pytest.mark.parametrize("door", ["fyrehose", "tube_tcp", "http"])
def test_a_handshake_that_fails_is_counted(tls: TlsHub, door: str) -> None:
    """The client does not know our authority, and says so."""
    name = {"tube_tcp": "tube"}.get(door, door)
    before = tls.refusals(name, "handshake")
    with (
        tls.dial(door) as sock,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(sock, server_hostname="127.0.0.1")
    until("it is counted", lambda: tls.refusals(name, "handshake") == before + 1)


def test_an_old_version_is_refused(tls: TlsHub) -> None:
    context = ssl.create_default_context(cafile=tls.ca)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        tls.dial("tube_tcp") as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_the_backbone_has_no_datagrams_under_tls(tls: TlsHub) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(tls.endpoint("fyrehose"))
        sock.settimeout(SECONDS)
        sock.send(b"\x10" + bytes(6))
        # The system says that nobody is there.
        with pytest.raises(ConnectionRefusedError):
            sock.recv(100)
    told = tls.hub._running.status()["tls"]
    assert told["doors"] == sorted(DOORS)  # type: ignore[index]
    assert "TCP only" in told["shut"]["fyrehose/udp"]  # type: ignore[index]


async def test_who_knows_no_authority_is_told_what_to_do(tls: TlsHub) -> None:
    for scheme in ("tube+tls", "wss", "fyrehose+tls", "spp+tls", "sdk+tls", "publisher+tls"):
        with pytest.raises(UnreachableError, match="pass ca=FILE"):
            await tls.hub.connect(scheme).open()


async def test_who_has_another_authority_is_told_so(tls: TlsHub, other_authority: object) -> None:
    with pytest.raises(UnreachableError, match="authority that is not known here"):
        await tls.hub.connect("tube+tls://", ca=other_authority.ca).open()  # type: ignore[attr-defined]


async def test_who_speaks_plainly_is_told_of_tls(tls: TlsHub) -> None:
    with pytest.raises(UnreachableError, match=r"tube\+tls://"):
        await tls.hub.connect("tube://").open()


@pytest.fixture(scope="module")
def plain() -> Iterator[TlsHub]:
    """A hub without TLS."""
    with Hub({"limits.handshake_seconds": 0.5, "limits.slow_seconds": 0.5}) as hub:
        yield TlsHub(hub, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("door", DOORS)
def test_a_tls_hello_at_a_plain_door_is_named_as_such(plain: TlsHub, door: str) -> None:
    name = {"tube_tcp": "tube", "tube_ws": "tube"}.get(door, door)
    before = plain.refusals(name, "tls")
    context = ssl.create_default_context()
    with (
        plain.dial(door) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
    until("it is counted", lambda: plain.refusals(name, "tls") == before + 1)


async def test_who_speaks_tls_to_a_plain_door_is_told_so(plain: TlsHub) -> None:
    for scheme in ("fyrehose+tls", "tube+tls", "wss", "publisher+tls"):
        with pytest.raises(UnreachableError, match=r"may not speak TLS|does not speak TLS"):
            await plain.hub.connect(scheme).open()


async def _take(stream, count: int):  # type: ignore[no-untyped-def]
    async with asyncio.timeout(SECONDS):
        async for message in stream:
            yield message
            count -= 1
            if not count:
                return


def _rest(sock: socket.socket) -> bytes:
    found = b""
    while more := sock.recv(4096):
        found += more
    return found


def test_what_was_sent_before_an_abrupt_end_is_taken(tls: TlsHub) -> None:
    # More than a turn of the hub may bring, by connections that end without a word: they wait in line, and are lost to
    # nobody meanwhile.
    hub = tls.hub._running.hub
    before, publishers, messages = hub.log.head, 12, 20_000
    trusting = ssl.create_default_context(cafile=tls.ca)
    socks = [
        trusting.wrap_socket(tls.dial("fyrehose"), server_hostname="127.0.0.1") for _ in range(publishers)
    ]
    for sock in socks:
        sock.sendall(b"\x02\x00\x01x" * messages)
        sock.close()
    until("all of it", lambda: hub.log.head == before + publishers * messages)


@pytest.mark.parametrize("first", [1, 5, 100])
def test_a_hello_may_come_in_pieces(tls: TlsHub, first: int) -> None:
    came, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=tls.ca).wrap_bio(came, going, server_hostname="127.0.0.1")
    with tls.dial("fyrehose") as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = going.read()
        sock.sendall(hello[:first])
        until("it has arrived", lambda: tls.hub._running.entrance.unfinished)
        sock.sendall(hello[first:])
        shaken, answer = False, b""
        while len(answer) < 7 and (data := sock.recv(1 << 16)):
            came.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                if not shaken:
                    client.do_handshake()
                    shaken = True
                    client.write(b"\x10" + bytes(6))
                    sock.sendall(going.read())
                answer += client.read(7)
        assert answer == b"\x20" + bytes(6)
